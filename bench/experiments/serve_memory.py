"""KIP-283, "Efficiency of Chunking Approach", end to end: the endpoint must never run out of memory, eagerly it must.

As there: 1,000,000 messages of 1 kB in 250 partitions, and a consumer whose fetches take 250 MB, 1 MB a partition, of a
server that may take 200 MB; here the limit is RLIMIT_AS, on what it takes beyond its start, and the consumer
fetches at v3. Exits with status 1 where a server does not do what it must.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.process_memory import limit_virtual_bytes, peak_mib
from tests.serve.eager_endpoint import SERVE_EAGERLY
from tests.serve.endpoint_process import SERVE, EndpointProcess
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
from bench.segments import Segment
from bench.serve.logs import Topic, topic_of
from bench.table import aligned

VERSION = 3
FETCH_BYTES = PARTITIONS * FETCH_BYTES_A_PARTITION
UNLIMITED = "no limit"


@dataclass(frozen=True)
class Attempt:
    """A server, what it may take beyond its start (None: what it will), and whether it must fail."""

    way: str
    command: Sequence[str]
    limit: int | None
    must_fail: bool


EAGER, LAZY = ("eager", SERVE_EAGERLY), ("lazy", SERVE)
ATTEMPTS = [
    Attempt(*EAGER, None, False),  # so that it is for want of memory that it fails
    *(Attempt(*EAGER, LIMIT_BYTES, True) for _ in range(3)),
    *(Attempt(*LAZY, LIMIT_BYTES, False) for _ in range(3)),
]


def attempted(attempt: Attempt, directory: Path, topic: Topic) -> tuple[int, float | None, str]:
    """Records, the peak in MiB above the start (None: the server is gone), and what went wrong."""
    log = BUILD / "serve_memory.log"
    options = "--max-fetch-size", str(FETCH_BYTES)
    with EndpointProcess(directory, *options, log=log, command=attempt.command) as endpoint:
        start = peak_mib(endpoint.pid)
        if attempt.limit is not None:
            limit_virtual_bytes(attempt.limit, endpoint.pid)
        wanted = Consumption(
            endpoint.host,
            endpoint.port,
            topic.name,
            VERSION,
            topic.ends,
            partition_max_bytes=FETCH_BYTES_A_PARTITION,
            max_bytes=FETCH_BYTES,
        )
        try:
            records, failure = consume(wanted).records, ""
        except (OSError, ConsumptionError) as error:
            records, failure = 0, OUT_OF_MEMORY if "MemoryError" in log.read_text() else str(error)
        peak = peak_mib(endpoint.pid) - start if endpoint.is_running else None
    return records, peak, failure


def main() -> int:
    BUILD.mkdir(parents=True, exist_ok=True)
    rows = [("conversion", "limit", "records", "peak above start", "")]
    as_expected = True
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        segment = Segment(value_size=1000, size=MESSAGES_A_PARTITION * RECORD_BYTES)
        topic = topic_of(segment, PARTITIONS, Path(folder))
        for attempt in ATTEMPTS:
            records, peak, failure = attempted(attempt, Path(folder), topic)
            as_expected &= failure == OUT_OF_MEMORY if attempt.must_fail else records == topic.records
            limit = UNLIMITED if attempt.limit is None else f"{attempt.limit // 10**6} MB"
            shown = "it ended" if peak is None else f"{peak:.1f} MiB"
            rows.append((attempt.way, limit, str(records), shown, failure or "completes"))
    print(
        f"{PARTITIONS} partitions of {topic.records_a_partition} messages of 1 kB; Fetch v3 of 1 MB of each"
    )
    print(aligned(rows, left=(0, 4)))
    return int(not as_expected)


if __name__ == "__main__":
    sys.exit(main())
