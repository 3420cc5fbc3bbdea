"""KIP-283, "How many concurrent down-conversions": 1,000 consumers of old formats at once, within 200 MB above start.

Each has a connection of its own and fetches its part of a partition, 1 MB a fetch, at v0 to v3. One in four is slow: it
has a small receive buffer and pauses between reads. Every consumer must get every offset of its part. Exits
with status 1 where one does not, or the endpoint ends.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.endpoints.endpoint_process import EndpointProcess
from tests.process_memory import limit_virtual_bytes, peak_mib
from tests.serve.crowd import Member, Outcome, Pace, consume_together
from tests.serve.raw_consumer import ConsumptionError

from bench import BUILD
from bench.experiments.fetch_memory import LIMIT_BYTES
from bench.results import Figure, Table, report
from bench.segments import MIB, Segment
from bench.serve.logs import Topic, topic_of

CONNECTIONS = 1000
PARTITIONS, PARTITION_BYTES = 12, 64 * MIB
VERSIONS = (0, 1, 2, 3)
MESSAGES_A_CONSUMER = 2000
FAST = Pace()
SLOW = Pace(read_bytes=16 * 1024, pause_seconds=0.05, receive_buffer_bytes=8 * 1024)
SLOW_ONE_IN = 4


def crowd(topic: Topic, connections: int) -> list[Member]:
    """Parts begin anywhere, within batches too; each partition, version and pace meets each of the others."""
    room = topic.records_a_partition - MESSAGES_A_CONSUMER
    members = []
    for number in range(connections):
        start = number * 7919 % room
        version = VERSIONS[number // PARTITIONS % len(VERSIONS)]
        pace = SLOW if number % SLOW_ONE_IN == SLOW_ONE_IN - 1 else FAST
        end = start + MESSAGES_A_CONSUMER
        members.append(Member(topic.name, number % PARTITIONS, start, end, version, pace))
    return members


def waits(members: list[Member], outcomes: list[Outcome], pace: Pace) -> list[float]:
    """Sorted, in milliseconds."""
    pairs = zip(members, outcomes, strict=True)
    found = [outcome.first_byte_seconds for member, outcome in pairs if member.pace == pace]
    return sorted(seconds * 1e3 for each in found for seconds in each)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.experiments.serve_connections", description=__doc__
    )
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    connections = parser.parse_args().connections
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        topic = topic_of(Segment(value_size=1000, size=PARTITION_BYTES), PARTITIONS, Path(folder))
        members = crowd(topic, connections)
        with EndpointProcess(Path(folder), log=BUILD / "serve_connections.log") as endpoint:
            start = peak_mib(endpoint.pid)
            limit_virtual_bytes(LIMIT_BYTES, endpoint.pid)
            started = time.perf_counter()
            try:
                outcomes = consume_together(endpoint.host, endpoint.port, members)
            except (OSError, ConsumptionError) as error:
                print(f"{connections} connections: {error}")
                return 1
            seconds = time.perf_counter() - started
            peak = peak_mib(endpoint.pid) - start
    records = sum(outcome.records for outcome in outcomes)
    title = (
        f"{connections} consumers of {MESSAGES_A_CONSUMER} messages of 1 kB each, Fetch v0 to v3, limit 200 MB: all "
        f"got theirs, {records} records in {seconds:.1f} s; peak above start {peak:.1f} MiB"
    )
    rows: list[tuple[str, ...]] = [
        ("time to first byte, ms", "consumers", "fetches", "median", "99th percentile", "most")
    ]
    for name, pace in (("fast", FAST), ("slow", SLOW)):
        found = waits(members, outcomes, pace)
        counted = str(sum(member.pace == pace for member in members)), str(len(found))
        figures = statistics.median(found), statistics.quantiles(found, n=100)[98], found[-1]
        rows.append((name, *counted, *(Figure(figure, f"{figure:.0f}", "ms") for figure in figures)))
    found = Table("serve_connections", title, rows)
    report("serve_connections", [found], command="python -m bench.experiments.serve_connections")
    return 0


if __name__ == "__main__":
    sys.exit(main())
