"""`make bench-spark`: the throughput of `spark.read.format("kafkafmt")` on this machine, each figure beside another.

First against a ceiling, a source that hands out one prepared batch of the same bytes again and again, as many rows in
as many tasks; against Spark's own Kafka source, from a broker on this machine that has the same segments; and against
segment files read whole and decoded by kafka-python in a UDF. Then where the processors' time goes, how the time
grows with the log, and how it shrinks with a second core. Rates are those of the best run, in bytes of keys and values.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from pyspark.sql import SparkSession
from tests.broker.broker import Broker
from tests.broker.jars import SPARK_KAFKA

from bench.broker import broker_of
from bench.compare import show_progress
from bench.results import Figure, Table, add_arguments, notes_of_load, report
from bench.spark.logs import GIB, KEY_SIZE, MIB, PARTITION_BYTES, ROOT, Topic
from bench.spark.measure import WORKS, Contender, Measured, local_spark, on_one_processor, take_turns
from bench.spark.sources import decoded_by_udf, rows_of_tasks

CEILING, OURS, KAFKA, UDF = "ceiling", "ours", "Spark's Kafka source", "decoder in a UDF"
# How many times as fast as each ours is to be.
TARGETS = {CEILING: 0.75, KAFKA: 3.0, UDF: 30.0}
CORES = 2
VALUE_SIZES = (1024, 100)
ROUNDS, ROUNDS_OF_OTHERS = 3, 1
GROWING = ("count()", "sum(length(value))")
PARTITIONS_A_GIB = GIB // PARTITION_BYTES


@dataclass(frozen=True)
class Row:
    """What a work took each contender, on values of one size."""

    work: str
    value_size: int
    cores: int
    gibibytes: int
    runs: dict[str, Measured]

    @property
    def label(self) -> str:
        size = f"{self.value_size} B" if self.value_size < 1024 else f"{self.value_size // 1024} KiB"
        return f"{self.work}, {size}"

    def megabytes(self, contender: str) -> float:
        return self.runs[contender].records * (KEY_SIZE + self.value_size) / 1e6

    def rate(self, contender: str) -> float:
        return self.megabytes(contender) / self.runs[contender].seconds

    def ratio(self, contender: str) -> float:
        return self.rate(OURS) / self.rate(contender)


class Bench:
    """One Spark session, and the works that were asked for."""

    def __init__(self, spark: SparkSession, cores: int, wanted: str) -> None:
        self.spark, self.cores, self._wanted = spark, cores, wanted

    def row(self, work: str, topic: Topic, gibibytes: int, contenders: dict[str, Contender]) -> Iterator[Row]:
        """None where it was not asked for."""
        row = Row(work, topic.value_size, self.cores, gibibytes, {})
        if self._wanted in row.label:
            show_progress(f"{row.label}, {gibibytes} GiB on {self.cores} cores: {', '.join(contenders)}")
            row.runs.update(take_turns(WORKS[work], contenders))
            _check(row)
            yield row

    def ours(self, paths: list[str], rows: list[int]) -> Contender:
        return Contender(lambda: self.spark.read.format("kafkafmt").load(paths), sum(rows), ROUNDS)

    def ceiling(self, paths: list[str], rows: list[int]) -> Contender:
        reader = self.spark.read.format("ceiling").option("rows", json.dumps(rows))
        return Contender(lambda: reader.load(paths), sum(rows), ROUNDS)

    def kafka(self, broker: Broker, topic: Topic, records: int) -> Contender:
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
        reader = reader.option("subscribe", topic.name)
        return Contender(reader.load, records, ROUNDS_OF_OTHERS)

    def udf(self, value_size: int) -> Contender:
        """Of files that are small enough to be a value each, and to be waited for."""
        topic = Topic(value_size, partition_bytes=32 * MIB, segment_bytes=4 * MIB)
        paths = _paths(topic, CORES)
        return Contender(
            lambda: decoded_by_udf(self.spark, paths), sum(rows_of_tasks(paths)), ROUNDS_OF_OTHERS
        )


def _paths(topic: Topic, partitions: int) -> list[str]:
    return list(map(str, topic.stored(partitions)))


def _check(row: Row) -> None:
    """All went through the same records; what ours and Spark's source came to is the same."""
    for name, run in row.runs.items():
        if row.work == "count()" and run.result != run.records:
            raise AssertionError(f"{row.label}: {name} counted {run.result} of {run.records}")
    if KAFKA in row.runs and row.runs[KAFKA].result != row.runs[OURS].result:
        raise AssertionError(f"{row.label}: {KAFKA} {row.runs[KAFKA].result}, ours {row.runs[OURS].result}")


def against_others(wanted: str, gibibytes: int) -> Iterator[Row]:
    topics = [Topic(size) for size in VALUE_SIZES]
    partitions = gibibytes * PARTITIONS_A_GIB
    paths = {topic: _paths(topic, partitions) for topic in topics}
    with (
        broker_of({topic.name: topic.stored(partitions) for topic in topics}, ROOT) as broker,
        local_spark(CORES, SPARK_KAFKA.fetch()) as spark,
    ):
        bench = Bench(spark, CORES, wanted)
        for topic in topics:
            rows = rows_of_tasks(paths[topic])
            contenders = {
                CEILING: bench.ceiling(paths[topic], rows),
                OURS: bench.ours(paths[topic], rows),
                KAFKA: bench.kafka(broker, topic, sum(rows)),
                UDF: bench.udf(topic.value_size),
            }
            for work in WORKS:
                yield from bench.row(work, topic, gibibytes, contenders)


def on_one_core(wanted: str, gibibytes: int) -> Iterator[Row]:
    with local_spark(1) as spark, on_one_processor():
        bench = Bench(spark, 1, wanted)
        for topic in map(Topic, VALUE_SIZES):
            paths = _paths(topic, gibibytes * PARTITIONS_A_GIB)
            contenders = {OURS: bench.ours(paths, rows_of_tasks(paths))}
            for work in WORKS:
                yield from bench.row(work, topic, gibibytes, contenders)


def growing(wanted: str, sizes: list[int]) -> Iterator[Row]:
    topic = Topic(VALUE_SIZES[0])
    kept = topic.count()
    try:
        with local_spark(CORES) as spark:
            bench = Bench(spark, CORES, wanted)
            for gibibytes in sizes:
                paths = _paths(topic, gibibytes * PARTITIONS_A_GIB)
                contenders = {OURS: bench.ours(paths, rows_of_tasks(paths))}
                for work in GROWING:
                    yield from bench.row(work, topic, gibibytes, contenders)
    finally:
        topic.remove_beyond(kept)


def compared_table(rows: list[Row]) -> Table:
    lines: list[tuple[str, ...]] = [("work", CEILING, OURS, KAFKA, UDF, "target", "verdict")]
    for row in rows:
        others = [_rate(row, name, f" ({row.ratio(name):.3g}x)") for name in TARGETS]
        hits = ["hit" if row.ratio(name) >= least else "MISSED" for name, least in TARGETS.items()]
        targets = ", ".join(f">= {least:g}x" for least in TARGETS.values())
        ceiling, *rest = others
        lines.append((row.label, ceiling, _rate(row, OURS), *rest, targets, ", ".join(hits)))
    return Table(
        "compared", "MB/s of keys and values, and how many times as fast ours is", lines, left=(0, 5, 6)
    )


def _rate(row: Row, name: str, compared: str = "") -> Figure:
    rate = row.rate(name)
    return Figure(rate, f"{rate:.0f}{compared}", "MB/s")


def processors_table(rows: list[Row]) -> Table:
    headings = ("work", *(f"{name}: {of}" for name in (CEILING, OURS) for of in ("Python", "Java")))
    lines: list[tuple[str, ...]] = [headings]
    for row in rows:
        runs = [(row.runs[name], row.megabytes(name) / 1e3) for name in (CEILING, OURS)]
        lines.append(
            (
                row.label,
                *(
                    Figure(taken / size, f"{taken / size:.2f}", "s/GB")
                    for run, size in runs
                    for taken in (run.python_seconds, run.java_seconds)
                ),
            )
        )
    return Table("processors", "Seconds of the processors for a GB", lines)


def cores_table(one: list[Row], two: list[Row]) -> Table:
    lines: list[tuple[str, ...]] = [("ours, MB/s", "1 core", f"{CORES} cores", "ratio")]
    for fewer, more in zip(one, two, strict=True):
        rates = fewer.rate(OURS), more.rate(OURS)
        lines.append(
            (
                fewer.label,
                *(Figure(rate, f"{rate:.0f}", "MB/s") for rate in rates),
                f"{rates[1] / rates[0]:.2f}x",
            )
        )
    return Table("cores", "One core and two", lines)


def growth_table(rows: list[Row]) -> Table:
    lines: list[tuple[str, ...]] = [("ours, by size", "GiB", "seconds", "seconds a GiB", "of the smallest")]
    for row in sorted(rows, key=lambda row: (GROWING.index(row.work), row.gibibytes)):
        smallest = next(other for other in rows if other.work == row.work)
        pace, first = (one.runs[OURS].seconds / one.gibibytes for one in (row, smallest))
        figures = f"{row.gibibytes}", f"{row.runs[OURS].seconds:.2f}", f"{pace:.3f}", f"{pace / first:.2f}x"
        lines.append((row.label, *figures))
    return Table("growth", "Time by the size of the log", lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--size", type=int, default=1, metavar="GIB", help="of each log that is compared")
    parser.add_argument("--sizes", default="1,2,4", metavar="GIB,GIB", help="by which time is to grow")
    add_arguments(parser)
    arguments = parser.parse_args()
    started = time.monotonic()
    compared = list(against_others(arguments.k, arguments.size))
    one_core = list(on_one_core(arguments.k, arguments.size))
    grown = list(growing(arguments.k, [int(size) for size in arguments.sizes.split(",")]))
    show_progress("")
    report(
        "spark",
        [
            compared_table(compared),
            processors_table(compared),
            cores_table(one_core, compared),
            growth_table(grown),
        ],
        command="make bench-spark",
        path=arguments.json,
        is_whole=not arguments.k,
        measured={"rows": [asdict(row) for row in (*compared, *one_core, *grown)]},
    )
    print(f"{time.monotonic() - started:.0f} seconds")
    print(*notes_of_load(CORES + 1.5), sep="\n")


if __name__ == "__main__":
    main()
