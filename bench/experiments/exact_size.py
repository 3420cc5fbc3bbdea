"""KIP-283, "Determining Total Response Size": what the exact size saves, and what the walk costs that finds it.

Three endpoints serve the same uncompressed logs to a consumer of v1, which fetches 1 MiB of each partition at a time:
one promises the KIP's estimate, one always walks, and `kafkafmt serve` chooses. They take turns. For each kind of log:

- padding: bytes of responses that are no converted records;
- converted in vain: records that were converted, and then cut;
- processor time of the server and of the consumer, as ratios to those of the estimate.

The second table has the time of the walk alone, relative to that of the conversion that follows it. The source is a
file in the page cache, or is in memory.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.endpoints.logged_endpoint import LoggedEndpoint
from tests.endpoints.scraping import metric
from tests.serve.promising_endpoint import SERVE_BY_ESTIMATE, SERVE_BY_WALK
from tests.serve.raw_consumer import Consumption, ConsumptionError

from bench import BUILD, processes
from bench.results import Figure, Table, figure, report
from bench.segments import MIB, ONE_RECORD, Segment
from bench.serve.client import RAW, Client
from bench.serve.logs import Topic, topic_of
from kafkafmt import FileRecords, LazyDownConvertRecords, MemoryRecords, Records
from kafkafmt.convert.chunks import ChunkMemory
from kafkafmt.convert.exact_size import walk
from kafkafmt.records.range import RecordsRange

VERSION = 3
PARTITIONS, PARTITION_BYTES, ROUNDS = 2, 32 * MIB, 16
ESTIMATE, WALK, RULE = "estimate", "walk", "serve"
# By name: the log of a partition.
WORKS = {
    "one record of 100 B in a batch": Segment(value_size=100, batch_bytes=ONE_RECORD, size=PARTITION_BYTES),
    "one record of 300 B in a batch": Segment(value_size=300, batch_bytes=ONE_RECORD, size=PARTITION_BYTES),
    "one record of 1000 B in a batch": Segment(value_size=1000, batch_bytes=ONE_RECORD, size=PARTITION_BYTES),
    "batches of 16 KiB, 50 B": Segment(value_size=50, size=PARTITION_BYTES),
    "batches of 16 KiB, 100 B": Segment(value_size=100, size=PARTITION_BYTES),
    "batches of 16 KiB, 300 B": Segment(value_size=300, size=PARTITION_BYTES),
    "batches of 16 KiB, 500 B": Segment(value_size=500, size=PARTITION_BYTES),
    "batches of 16 KiB, 1000 B": Segment(value_size=1000, size=PARTITION_BYTES),
}


@dataclass
class Totals:
    """Of all rounds of one endpoint. Processor times are in seconds."""

    wire_bytes: int = 0
    fetches: int = 0
    records_converted: float = 0
    server_seconds: float = 0.0
    client_seconds: float = 0.0


class Contender:
    """One endpoint over all logs."""

    def __init__(self, directory: Path, command: tuple[str, ...] | None) -> None:
        options = ("--metrics", "127.0.0.1:0")
        given = {} if command is None else {"command": command}
        self.endpoint = LoggedEndpoint(directory, *options, **given)

    def __enter__(self) -> Contender:
        self.endpoint.start()
        self.metrics = self.endpoint.event("metrics are served")["address"]
        return self

    def __exit__(self, *_: object) -> None:
        self.endpoint.stop()

    def consume(self, client: Client, topic: Topic, totals: Totals) -> None:
        converted = metric(self.metrics, "kafkafmt_converted_records_total")
        seconds = processes.exact_seconds(self.endpoint.pid)
        wanted = Consumption(self.endpoint.host, self.endpoint.port, topic.name, VERSION, topic.ends)
        consumed = client.consume(wanted)
        if consumed.records != topic.records:
            raise ConsumptionError(f"{topic.name}: {consumed.records} records of {topic.records}")
        totals.server_seconds += processes.exact_seconds(self.endpoint.pid) - seconds
        totals.records_converted += metric(self.metrics, "kafkafmt_converted_records_total") - converted
        totals.client_seconds += consumed.processor_seconds
        totals.wire_bytes += consumed.wire_bytes
        totals.fetches += consumed.fetches


def converted_bytes(topic: Topic) -> int:
    """The size of all of a topic's records in v1."""
    total = 0
    for folder in topic.folders:
        for path in folder.glob("*.log"):
            with FileRecords(path) as records:
                total += records.down_convert(1).records.size_in_bytes
    return total


def rows_of(name: str, topic: Topic, found: dict[str, Totals]) -> list[tuple[str, ...]]:
    exact, records = ROUNDS * converted_bytes(topic), ROUNDS * topic.records
    estimate = found[ESTIMATE]
    rows: list[tuple[str, ...]] = []
    for way, totals in found.items():
        rows.append(
            (
                f"{name}: {way}",
                _share(totals.wire_bytes / exact - 1),
                _share(totals.records_converted / records - 1),
                figure(totals.fetches / ROUNDS, ".0f", "fetches"),
                _ratio(totals.server_seconds, estimate.server_seconds),
                _ratio(totals.client_seconds, estimate.client_seconds),
            )
        )
    return rows


class Sink:
    """Takes all that it is offered, and keeps nothing."""

    def write(self, data: memoryview) -> int:
        return len(data)


def ranges_of(records: Records) -> list[RecordsRange]:
    """What fetches of 1 MiB read, one after the other."""
    starts = records.index()["position"]
    firsts = [int(starts[starts.searchsorted(at)]) for at in range(0, records.size_in_bytes - MIB, MIB)]
    return [RecordsRange(records, first, first + MIB) for first in firsts]


def convert(ranges: Sequence[Records]) -> None:
    sink, memory = Sink(), ChunkMemory()
    for one in ranges:
        send = LazyDownConvertRecords(one, 1).to_send(memory)
        while not send.completed:
            send.write_to(sink)


def walk_over(ranges: Sequence[Records]) -> None:
    for one in ranges:
        walk(one, one.start_position, 0, 1, 0, 2 * MIB)


def seconds(call: Callable[[Sequence[Records]], None], ranges: Sequence[Records]) -> float:
    """The least time of the processor that a call takes."""
    least = math.inf
    for _ in range(5):
        began = time.process_time()
        call(ranges)
        least = min(least, time.process_time() - began)
    return least


def cost_row(name: str, topic: Topic) -> tuple[str, ...]:
    (path,) = topic.folders[0].glob("*.log")
    with FileRecords(path) as records:
        converted = records.down_convert(1).records.size_in_bytes
        in_file, in_memory = ranges_of(records), ranges_of(MemoryRecords(path.read_bytes()))
        return (
            name,
            figure(100 * (converted / records.size_in_bytes - 1), "+.1f", "%", " %"),
            _ratio(seconds(walk_over, in_file), seconds(convert, in_file)),
            _ratio(seconds(walk_over, in_memory), seconds(convert, in_memory)),
        )


def _share(value: float) -> Figure:
    return figure(100 * max(value, 0.0), ".1f", "%", " %")  # a counter may lag by a response


def _ratio(value: float, to: float) -> Figure:
    return figure(value / to, ".2f", "x")


def main() -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    headings = ("log: promise", "padding", "converted in vain", "fetches", "server's time", "consumer's time")
    rows: list[tuple[str, ...]] = [headings]
    with tempfile.TemporaryDirectory(dir=BUILD) as folder, ExitStack() as stack:
        directory = Path(folder)
        topics = {name: topic_of(segment, PARTITIONS, directory) for name, segment in WORKS.items()}
        client = stack.enter_context(Client(RAW))
        ways = {ESTIMATE: SERVE_BY_ESTIMATE, WALK: SERVE_BY_WALK, RULE: None}
        servers = {way: stack.enter_context(Contender(directory, command)) for way, command in ways.items()}
        for name, topic in topics.items():
            found = {way: Totals() for way in servers}
            for server in servers.values():
                server.consume(client, topic, Totals())
            for number in range(ROUNDS):
                for way, server in list(servers.items())[:: -1 if number % 2 else 1]:
                    server.consume(client, topic, found[way])
            rows += rows_of(name, topic, found)
        costs = [cost_row(name, topic) for name, topic in topics.items()]
    headings = ("log", "change of size", "walk of a file", "walk in memory")
    tables = [
        Table("exact_size", "Responses whose size is the KIP's estimate, or exact; Fetch v3 of 1 MiB", rows),
        Table("costs", "Time of the walk, relative to the conversion", [headings, *costs]),
    ]
    report("exact_size", tables, command="python -m bench.experiments.exact_size")


if __name__ == "__main__":
    main()
