"""`make bench-serve`: the endpoint beside a real Kafka 3.9.1 broker, over the same segments, with the same client.

Consumers that know message format v1 or v0 only are served by conversion, current ones by zero copy. The consumer
is a raw socket and a scan, and then librdkafka, to show what a real one leaves of it. Rates are those of the best
run, in bytes of values, with the median in brackets.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import kafkafmt
from bench.compare import machine, notes_of_load, show_progress
from bench.segments import Segment
from bench.serve.client import LIBRDKAFKA, RAW, Client
from bench.serve.logs import Topic, topic_of
from bench.serve.measure import Measured, take_turns
from bench.serve.servers import BROKER, OURS, both
from bench.table import aligned
from kafkafmt import Codec

PARTITIONS = 4
# How many times as fast as the broker the endpoint is to be.
CONVERTED, ZERO_COPY = 1.5, 0.9
ROUNDS = {RAW: 5, LIBRDKAFKA: 3}
V1, V0, V2 = 3, 1, 11  # versions of Fetch, by the format that they get
_FORMATS = {V1: "Fetch v3 -> v1", V0: "Fetch v1 -> v0", V2: "Fetch v11, as it is"}
NONE_1024, NONE_100 = Segment(value_size=1024), Segment(value_size=100)
LZ4_1024, LZ4_100 = Segment(Codec.LZ4, 1024), Segment(Codec.LZ4, 100)


@dataclass(frozen=True)
class Work:
    """A consumer, the version that it fetches at, and what it fetches."""

    client: str
    version: int
    segment: Segment

    @property
    def label(self) -> str:
        codec = self.segment.codec.name.lower()
        size = self.segment.value_size
        value = f"{size // 1024} KiB" if size >= 1024 else f"{size} B"
        return f"{self.client}, {_FORMATS[self.version]}, {codec}, {value}"

    @property
    def target(self) -> float:
        return ZERO_COPY if self.version == V2 else CONVERTED


WORKS = [
    *(Work(RAW, version, s) for version in (V1, V0) for s in (NONE_1024, NONE_100, LZ4_1024, LZ4_100)),
    *(Work(RAW, V2, segment) for segment in (NONE_1024, LZ4_100)),
    *(Work(LIBRDKAFKA, V0, segment) for segment in (NONE_1024, NONE_100, LZ4_1024)),
    *(Work(LIBRDKAFKA, V2, segment) for segment in (NONE_1024, NONE_100)),
]


@dataclass(frozen=True)
class Row:
    work: Work
    runs: dict[str, Measured]

    @property
    def ratio(self) -> float:
        return self.runs[OURS].best / self.runs[BROKER].best

    @property
    def most_ratio(self) -> float:
        """That of a server which takes no time, so that the client alone does."""
        return min(self.runs[BROKER].seconds) / self.runs[OURS].least_seconds

    @property
    def verdict(self) -> str:
        if self.ratio >= self.work.target:
            return "hit"
        return "bound by the client" if self.most_ratio < self.work.target else "MISSED"


def measure(works: Sequence[Work]) -> Iterator[Row]:
    topics: dict[Segment, Topic] = {}
    for segment in dict.fromkeys(work.segment for work in works):
        show_progress(f"making {segment.name}")
        topics[segment] = topic_of(segment, PARTITIONS)
    show_progress("starting the servers")
    with both(list(topics.values())) as servers, ExitStack() as stack:
        clients = {name: stack.enter_context(Client(name)) for name in {work.client for work in works}}
        for work in works:
            show_progress(work.label)
            client, topic = clients[work.client], topics[work.segment]
            yield Row(work, take_turns(client, topic, work.version, servers, ROUNDS[work.client]))


def rates_text(rows: Sequence[Row]) -> str:
    lines = [("consumer", "MB/s: ours", BROKER, "", "at most", "target", "")]
    for row in rows:
        rates = (f"{row.runs[name].best:.0f} ({row.runs[name].median:.0f})" for name in (OURS, BROKER))
        ratios = f"{row.ratio:.2f}x", f"{row.most_ratio:.1f}x", f">= {row.work.target}x"
        lines.append((row.work.label, *rates, *ratios, row.verdict))
    return aligned(lines, left=(0, 6))


def costs_text(rows: Sequence[Row]) -> str:
    columns = ("processors' s/GB: ours", BROKER, "busy: ours", "its client", BROKER, "its client")
    lines = [("consumer", *columns, "peak MiB: ours", BROKER)]
    for row in rows:
        runs = [row.runs[name] for name in (OURS, BROKER)]
        shares = (share for run in runs for share in (run.server_share, run.client_share))
        lines.append(
            (
                row.work.label,
                *(f"{run.server_seconds_a_gigabyte:.2f}" for run in runs),
                *(f"{share:.0%}" for share in shares),
                *(f"{run.peak_mib:.0f}" for run in runs),
            )
        )
    return aligned(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("-k", default="", metavar="TEXT", help="only the rows whose name has TEXT")
    arguments = parser.parse_args()
    started = time.monotonic()
    rows = list(measure([work for work in WORKS if arguments.k in work.label]))
    show_progress("")
    print(rates_text(rows), costs_text(rows), sep="\n\n")
    print(f"\n{machine()}, kafkafmt {kafkafmt.__version__}, {time.strftime('%Y-%m-%d')}")
    print(f"{time.monotonic() - started:.0f} seconds; what the rows mean: bench/README.md")
    print(*notes_of_load(2.5), sep="\n")
    if arguments.json:
        measured = [asdict(row) for row in rows]
        arguments.json.write_text(json.dumps({"machine": machine(), "rows": measured}, indent=1))


if __name__ == "__main__":
    main()
