"""KIP-283, "Efficiency of Chunking Approach", end to end: the endpoint must never run out of memory, eagerly it must.

As there: 1,000,000 messages of 1 kB in 250 partitions, and a consumer whose fetches take 250 MB, 1 MB a partition, of a
server that may take 200 MB; here the limit is RLIMIT_AS, on what it takes beyond its start, and the consumer
fetches at v3. Exits with status 1 where a server does not do what it must.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.endpoints.endpoint_process import SERVE, EndpointProcess
from tests.process_memory import limit_virtual_bytes, peak_mib
from tests.serve.eager_endpoint import SERVE_EAGERLY
from tests.serve.raw_consumer import Consumption, ConsumptionError, consume

from bench import BUILD
from bench.experiments.fetch_memory import (
    FETCH_BYTES_A_PARTITION,
    LIMIT_BYTES,
    MESSAGES_A_PARTITION,
    OUT_OF_MEMORY,
    PARTITIONS,
    RECORD_BYTES,
)
from bench.results import Figure, Table, report
from bench.segments import Segment
from bench.serve import old_consumer
from bench.serve.logs import Topic, topic_of

VERSION = 3
FETCH_BYTES = PARTITIONS * FETCH_BYTES_A_PARTITION
UNLIMITED = "no limit"


def consume_raw(endpoint: EndpointProcess, topic: Topic) -> int:
    address = endpoint.host, endpoint.port
    limits = FETCH_BYTES_A_PARTITION, FETCH_BYTES
    return consume(Consumption(*address, topic.name, VERSION, topic.ends, *limits)).records


def consume_by_kafka_python(endpoint: EndpointProcess, topic: Topic) -> int:
    limits = FETCH_BYTES_A_PARTITION, FETCH_BYTES
    address = f"{endpoint.host}:{endpoint.port}"
    return old_consumer.consume(address, topic.name, PARTITIONS, topic.records_a_partition, *limits)


RAW, KAFKA_PYTHON = "raw", "kafka-python 1.3.5"
CONSUMERS = {RAW: consume_raw, KAFKA_PYTHON: consume_by_kafka_python}


@dataclass(frozen=True)
class Attempt:
    """A server, what it may take beyond its start (None: what it will), whether it must fail; who consumes."""

    way: str
    command: Sequence[str]
    limit: int | None
    must_fail: bool
    consumer: str = RAW


EAGER, LAZY = ("eager", SERVE_EAGERLY), ("lazy", SERVE)
ATTEMPTS = [
    Attempt(*EAGER, None, False),  # so that it is for want of memory that it fails
    *(Attempt(*EAGER, LIMIT_BYTES, True) for _ in range(3)),
    *(Attempt(*LAZY, LIMIT_BYTES, False) for _ in range(3)),
    Attempt(*LAZY, LIMIT_BYTES, False, KAFKA_PYTHON),
]


def attempted(attempt: Attempt, directory: Path, topic: Topic) -> tuple[int, float | None, str]:
    """Records, the peak in MiB above the start (None: the server is gone), and what went wrong."""
    log = BUILD / "serve_memory.log"
    options = "--max-fetch-size", str(FETCH_BYTES)
    with EndpointProcess(directory, *options, log=log, command=attempt.command) as endpoint:
        start = peak_mib(endpoint.pid)
        if attempt.limit is not None:
            limit_virtual_bytes(attempt.limit, endpoint.pid)
        try:
            records, failure = CONSUMERS[attempt.consumer](endpoint, topic), ""
        except (OSError, ConsumptionError, subprocess.CalledProcessError) as error:
            records, failure = 0, OUT_OF_MEMORY if "MemoryError" in log.read_text() else str(error)
        peak = peak_mib(endpoint.pid) - start if endpoint.is_running else None
    return records, peak, failure


def main() -> int:
    BUILD.mkdir(parents=True, exist_ok=True)
    headings = ("conversion", "consumer", "limit", "records", "peak above start", "outcome")
    rows: list[tuple[str, ...]] = [headings]
    as_expected = True
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        segment = Segment(value_size=1000, size=MESSAGES_A_PARTITION * RECORD_BYTES)
        topic = topic_of(segment, PARTITIONS, Path(folder))
        for attempt in ATTEMPTS:
            records, peak, failure = attempted(attempt, Path(folder), topic)
            as_expected &= failure == OUT_OF_MEMORY if attempt.must_fail else records == topic.records
            limit = UNLIMITED if attempt.limit is None else f"{attempt.limit // 10**6} MB"
            shown = "it ended" if peak is None else Figure(peak, f"{peak:.1f} MiB", "MiB")
            rows.append((attempt.way, attempt.consumer, limit, str(records), shown, failure or "completes"))
    title = (
        f"{PARTITIONS} partitions of {topic.records_a_partition} messages of 1 kB; Fetch v3 of 1 MB of each"
    )
    found = Table("serve_memory", title, rows, left=(0, 1, 5))
    report("serve_memory", [found], command="python -m bench.experiments.serve_memory")
    return int(not as_expected)


if __name__ == "__main__":
    sys.exit(main())
