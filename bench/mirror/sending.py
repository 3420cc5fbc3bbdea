"""A raw producer by itself: sends a segment to every partition of a topic, twice, and tells of the second time.

It runs by itself, and ends once all has arrived:
`python -m bench.mirror.sending SERVER METRICS TOPIC PARTITIONS SEGMENT BATCHES_A_REQUEST`, METRICS: where the server
serves its metrics, or `-`; the last one a number, or `auto`. The first time warms the server up, and tells the producer
how many batches of a partition it takes in a request.
"""

from __future__ import annotations

import json
import sys
import time

from tests.endpoints.scraping import metric

from kafkafmt import FileRecords
from kafkafmt.net import RawProducer

NO_METRICS = "-"
_FLUSH_SECONDS = 300.0


def main(server: str, metrics: str, topic: str, partitions: str, segment: str, most: str) -> None:
    limit = most if most == "auto" else int(most)
    with (
        FileRecords(segment) as records,
        RawProducer(bootstrap_servers=server, max_batches_per_request=limit) as producer,
    ):
        _send(producer, records, topic, int(partitions))
        requests, started, used = _requests(metrics), time.perf_counter(), time.process_time()
        _send(producer, records, topic, int(partitions))
        seconds, processor_seconds = time.perf_counter() - started, time.process_time() - used
        sent = None if requests is None else (_requests(metrics) or 0) - requests
    print(json.dumps({"requests": sent, "seconds": seconds, "processor_seconds": processor_seconds}))


def _send(producer: RawProducer, records: FileRecords, topic: str, partitions: int) -> None:
    for run in records.runs():
        for partition in range(partitions):
            producer.send_run(topic, run, partition=partition)
    producer.flush(_FLUSH_SECONDS)


def _requests(metrics: str) -> int | None:
    """Those to produce that were served so far."""
    return None if metrics == NO_METRICS else int(metric(metrics, "kafkafmt_requests_total", api="Produce"))


if __name__ == "__main__":
    main(*sys.argv[1:])
