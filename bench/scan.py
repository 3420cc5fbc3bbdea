"""Scans of a broker's topics to Arrow, against confluent-kafka's consumer into a list of tuples.

    tools/with_java.sh .venv/bin/python -m bench.scan [--rounds 5] [--partitions 4]

Both read a whole topic of the same broker, from the first request to the last row, with all columns but headers. So
the time of either includes its connections, and of the scan its planning. A round runs each once, one after the other.
A ratio is the median of the ratios within rounds. librdkafka has the same limit of fetched bytes in every row, and
fetches again without a pause. The producers' batches have 16 KiB before compression, or 256 KiB.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition
from tests.broker.broker import KAFKA_4

import kafkafmt as kf
from bench import BUILD
from bench.broker import broker_of
from bench.segments import Segment, stored
from bench.serve.logs import topic_of
from bench.table import aligned

ROOT = BUILD / "scan"
LEAST = 10
# A little more than the records of each size take, 16 bytes of key in every second batch included.
_RECORDS = {100: 1_000_000, 1024: 200_000}
_RECORD_BYTES = {100: 116, 1024: 1045}
_AT_ONCE, _WAIT_SECONDS = 10_000, 30
_LARGE_BATCH = 256 * 1024
_LIBRDKAFKA: dict[str, Any] = {
    "group.id": "bench",  # which it wants even without a group
    "enable.auto.commit": False,
    "check.crcs": True,
    "queued.max.messages.kbytes": 128 * 1024,
    "queued.min.messages": 10_000_000,
    "fetch.queue.backoff.ms": 0,
}


class Topic(NamedTuple):
    """A topic with the same segment in each partition."""

    segment: Segment
    partitions: int

    @property
    def name(self) -> str:
        return f"scan-{self.segment.name}"

    @property
    def records(self) -> int:
        return stored(self.segment).records * self.partitions

    @property
    def folders(self) -> list[Path]:
        return [*topic_of(self.segment, 1, ROOT / "logs").folders] * self.partitions


def topics(partitions: int) -> list[Topic]:
    """Return the topics of all rows."""
    return [
        Topic(
            Segment(codec, size, batch_bytes, size=_RECORDS[size] * _RECORD_BYTES[size] // partitions),
            partitions,
        )
        for size in _RECORDS
        for codec in (kf.Codec.NONE, kf.Codec.LZ4, kf.Codec.ZSTD)
        for batch_bytes in (16 * 1024, _LARGE_BATCH)
    ]


def scan(servers: str, topic: Topic) -> int:
    """Scan a topic. Return the number of rows."""
    return int(kf.scan(f"kafka://{servers}/{topic.name}").to_arrow().num_rows)


def consume(servers: str, topic: Topic) -> int:
    """Consume a topic into tuples with the same columns. Return their number."""
    consumer = Consumer({"bootstrap.servers": servers, **_LIBRDKAFKA})
    partitions = [TopicPartition(topic.name, number, 0) for number in range(topic.partitions)]
    left = sum(consumer.get_watermark_offsets(one)[1] for one in partitions)
    consumer.assign(partitions)
    rows: list[tuple[Any, ...]] = []
    while left > 0:
        messages = consumer.consume(min(left, _AT_ONCE), _WAIT_SECONDS)
        if not messages:
            raise TimeoutError(f"no record within {_WAIT_SECONDS} seconds, {left} are left")
        left -= len(messages)
        rows += [
            (one.key(), one.value(), one.topic(), one.partition(), one.offset(), *one.timestamp())
            for one in messages
        ]
    consumer.close()
    return len(rows)


def measure(servers: str, topic: Topic, rounds: int) -> list[str]:
    """Return the cells of a row."""
    ways: tuple[Callable[[str, Topic], int], ...] = (scan, consume)
    seconds: list[list[float]] = [[], []]
    for number in range(rounds + 1):
        for place, read in enumerate(ways):
            started = time.perf_counter()
            found = read(servers, topic)
            took = time.perf_counter() - started
            if found != topic.records:
                raise SystemExit(f"{read.__name__} {topic.name}: expected {topic.records}, found {found}")
            if number:  # the first round warms up
                seconds[place].append(took)
    medians = [statistics.median(times) for times in seconds]
    ratios = [other / ours for ours, other in zip(*seconds, strict=True)]
    segment, ratio = topic.segment, statistics.median(ratios)
    size = stored(segment).raw_bytes * topic.partitions
    return [
        f"{segment.value_size} B, {segment.codec.name.lower()}, batches of {segment.batch_bytes // 1024} KiB",
        f"{topic.records / 1e6:.2f}",
        *(f"{topic.records / one / 1e6:.2f}" for one in medians),
        f"{size / medians[0] / 1e6:.0f}",
        f"{ratio:.1f}",
        f"{min(ratios):.1f} to {max(ratios):.1f}",
        "hit" if ratio >= LEAST else "MISSED",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=4)
    arguments = parser.parse_args()
    rows = topics(arguments.partitions)
    table = [["values", "M rows", "M rows/s ours", "librdkafka", "MB/s ours", "ratio", "of rounds", ">= 10"]]
    with broker_of({one.name: one.folders for one in rows}, ROOT, kafka=KAFKA_4) as broker:
        table += [measure(broker.bootstrap, one, arguments.rounds) for one in rows]
    print(aligned(table))


if __name__ == "__main__":
    main()
