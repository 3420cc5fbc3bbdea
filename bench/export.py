"""Export to Parquet on a local Spark: ours, our data source with Spark's writer, and Spark's own Kafka source.

    python -m bench.export [--mib 1024] [--rounds 5] [--no-broker]

All write the same seven columns with the same compression. The values are JSON out of a pool of 4096, which Parquet's
dictionaries favour, and random bytes, each of them once. A round runs each contender once, one after the other. The
rate is that of the median round; a ratio is the median of the ratios within rounds. The logs are on the local disk, and
in the page cache. The broker has the same segments.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

import kafkafmt
from bench.broker import broker_of
from bench.segments import MIB
from bench.spark.logs import ROOT, Topic
from bench.spark.measure import local_spark
from kafkafmt.export.layout import WriteOptions
from kafkafmt.export.plan import ExportOptions
from kafkafmt.scanning.arguments import DEFAULT_COLUMNS
from kafkafmt.spark import export

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITTEN = ROOT / "exported"
COMPRESSION = "snappy"
SPARK_KAFKA = Path("build/jars/spark-kafka-4.2.0")
PARTITIONS = 4


def ours(spark: SparkSession, folders: Sequence[Path]) -> None:
    options = ExportOptions(write=WriteOptions(compression=COMPRESSION))
    (row,) = export(spark, kafkafmt.scan(folders), str(WRITTEN), options).collect()
    if row["error"] is not None:
        raise SystemExit(row["error"])


def data_source(spark: SparkSession, folders: Sequence[Path]) -> None:
    frame = spark.read.format("kafkafmt").load([str(folder) for folder in folders])
    frame.select(*DEFAULT_COLUMNS).write.parquet(str(WRITTEN), compression=COMPRESSION)


def kafka_source(spark: SparkSession, topic: str, servers: str) -> None:
    frame = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    frame.load().select(*DEFAULT_COLUMNS).write.parquet(str(WRITTEN), compression=COMPRESSION)


def rounds(
    contenders: Mapping[str, Callable[[], object]], count: int
) -> tuple[dict[str, list[float]], dict[str, tuple[int, int]]]:
    """Return the seconds of each contender in each round, and the rows and bytes that it wrote."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    written = {}
    for number in range(count + 1):
        for name, work in contenders.items():
            shutil.rmtree(WRITTEN, ignore_errors=True)
            start = time.perf_counter()
            work()
            took = time.perf_counter() - start
            if number:  # the first round warms up
                seconds[name].append(took)
            files = [path for path in WRITTEN.rglob("*.parquet") if "_kafkafmt" not in path.parts]
            rows = ds.dataset(files).count_rows()
            written[name] = rows, sum(path.stat().st_size for path in files)
    shutil.rmtree(WRITTEN, ignore_errors=True)
    if len({rows for rows, _ in written.values()}) != 1:
        raise SystemExit(f"contenders wrote different rows: {written}")
    return seconds, written


@contextmanager
def broker(topic: str, folders: Sequence[Path], *, wanted: bool) -> Iterator[str | None]:
    if not wanted:
        yield None
        return
    with broker_of({topic: folders}, ROOT) as running:
        yield running.bootstrap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=1024, help="size of each log in all partitions")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-broker", action="store_true", help="leave Spark's Kafka source out")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        spark = stack.enter_context(local_spark(2, None if arguments.no_broker else SPARK_KAFKA))
        for value_size, is_unique in ((100, False), (1024, False), (100, True), (1024, True)):
            topic = Topic(value_size, arguments.mib * MIB // PARTITIONS, is_unique=is_unique)
            folders = topic.stored(PARTITIONS)
            with broker(topic.name, folders, wanted=not arguments.no_broker) as servers:
                contenders: dict[str, Callable[[], Any]] = {
                    "kafkafmt.spark.export": lambda folders=folders: ours(spark, folders),
                    "format('kafkafmt')": lambda folders=folders: data_source(spark, folders),
                }
                if servers is not None:
                    contenders["format('kafka')"] = lambda name=topic.name, servers=servers: kafka_source(
                        spark, name, servers
                    )
                seconds, written = rounds(contenders, arguments.rounds)
            size = sum(path.stat().st_size for folder in folders for path in folder.glob("*.log"))
            label = f"{value_size:5} B  {'unique' if is_unique else 'pooled'}"
            for name, times in seconds.items():
                ratios = [
                    one / mine for one, mine in zip(times, seconds["kafkafmt.spark.export"], strict=True)
                ]
                print(
                    f"{label}  {name:24} {size / 1e6 / statistics.median(times):7.0f} MB/s"
                    f"  {statistics.median(times):6.2f} s  ours {statistics.median(ratios):5.2f}x"
                    f"  {written[name][1] / 1e6:6.0f} MB written"
                )


if __name__ == "__main__":
    main()
