"""`make bench-serve`: the endpoint beside a real Kafka 3.9.1 broker, over the same segments, with the same client.

Consumers that know message format v1 or v0 only are served by conversion, current ones by zero copy. The consumer
is a raw socket and a scan, and then librdkafka, to show what a real one leaves of it. Rates are those of the best
run, in bytes of values, with the median in brackets.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from bench.compare import show_progress
from bench.results import Table, add_arguments, figure, notes_of_load, report
from bench.segments import Segment
from bench.serve.client import LIBRDKAFKA, RAW, Client
from bench.serve.logs import Topic, topic_of
from bench.serve.measure import Measured, take_turns
from bench.serve.servers import BROKER, OURS, both
from kafkafmt import Codec

PARTITIONS = 4
# How many times as fast as the broker the endpoint is to be. With librdkafka the client limits most of the rows.
CONVERTED, ZERO_COPY = 1.5, 1.0
LIBRDKAFKA_ZERO_COPY = 0.9
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
        if self.version != V2:
            return CONVERTED
        return ZERO_COPY if self.client == RAW else LIBRDKAFKA_ZERO_COPY


WORKS = [
    *(Work(RAW, version, s) for version in (V1, V0) for s in (NONE_1024, NONE_100, LZ4_1024, LZ4_100)),
    *(Work(RAW, V2, segment) for segment in (NONE_1024, NONE_100, LZ4_1024, LZ4_100)),
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


def rates_table(rows: Sequence[Row]) -> Table:
    lines: list[tuple[str, ...]] = [("consumer", OURS, BROKER, "ratio", "at most", "target", "verdict")]
    for row in rows:
        rates = (_rate(row.runs[name]) for name in (OURS, BROKER))
        ratios = f"{row.ratio:.2f}x", f"{row.most_ratio:.1f}x", f">= {row.work.target}x"
        lines.append((row.work.label, *rates, *ratios, row.verdict))
    return Table("rates", "MB/s of values: the best run, and the median", lines, left=(0, 6))


def _rate(run: Measured) -> str:
    return figure(run.best, ".0f", "MB/s", f" ({run.median:.0f})")


def costs_table(rows: Sequence[Row]) -> Table:
    names = (OURS, BROKER)
    busy = (f"{name}: {of}" for name in names for of in ("busy", "its client"))
    peaks = (f"{name}: peak MiB" for name in names)
    lines: list[tuple[str, ...]] = [("consumer", *(f"{name}: s/GB" for name in names), *busy, *peaks)]
    for row in rows:
        runs = [row.runs[name] for name in (OURS, BROKER)]
        shares = (share for run in runs for share in (run.server_share, run.client_share))
        lines.append(
            (
                row.work.label,
                *(figure(run.server_seconds_a_gigabyte, ".2f", "s/GB") for run in runs),
                *(f"{share:.0%}" for share in shares),
                *(figure(run.peak_mib, ".0f", "MiB") for run in runs),
            )
        )
    return Table("costs", "What the server's process takes, and how busy it is", lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=__doc__)
    add_arguments(parser)
    arguments = parser.parse_args()
    started = time.monotonic()
    rows = list(measure([work for work in WORKS if arguments.k in work.label]))
    show_progress("")
    report(
        "serve",
        [rates_table(rows), costs_table(rows)],
        command="make bench-serve",
        path=arguments.json,
        is_whole=not arguments.k,
        measured={"rows": [asdict(row) for row in rows]},
    )
    print(f"{time.monotonic() - started:.0f} seconds; what the rows mean: bench/README.md")
    print(*notes_of_load(2.5), sep="\n")


if __name__ == "__main__":
    main()
