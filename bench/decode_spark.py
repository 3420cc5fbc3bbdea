"""Decode a topic of Avro on a local Spark: ours, and Spark's Kafka source with its `from_avro`.

    python -m bench.decode_spark [--records 2000000] [--rounds 3]

Payloads have Confluent's framing. Both read the same topic of a running broker, decode all fields, and sum some of
them. A round runs each contender once, one after the other; the figures are those of the median round. The ratio is the
median of the ratios within rounds. The last contender decodes a DataFrame of payloads, which Spark has read, by
`mapInArrow`: its bytes cross from the JVM into Python and back.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from tests.broker.jars import SPARK_AVRO, SPARK_KAFKA

import kafkafmt
from bench.broker import broker_of
from bench.decode import AVRO_FLAT, AVRO_NESTED, avro_values
from bench.spark.logs import ROOT
from bench.spark.measure import local_spark
from bench.table import aligned
from kafkafmt import BinaryColumn, build_batches
from kafkafmt.decode import Decoding, Schema
from kafkafmt.log import PartitionLogWriter
from kafkafmt.spark import read_scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
_POOL = 50_000
_SUMS = {
    "avro-flat": ("sum(v.id)", "sum(v.amount)", "sum(length(v.user))", "max(v.placed)", "count(v.note)"),
    "avro-nested": ("sum(v.id)", "sum(length(v.place.city))", "sum(size(v.lines))", "sum(size(v.tags))"),
}


def write_topic(name: str, values: list[bytes], records: int) -> list[Path]:
    """Write the partitions of a topic, and return their folders."""
    count = records // PARTITIONS
    chosen = (values * (count // len(values) + 1))[:count]
    offsets = np.concatenate([[0], np.cumsum([len(value) for value in chosen])])
    column = BinaryColumn(offsets, np.frombuffer(b"".join(chosen), np.uint8), None)
    folders = [ROOT / "avro" / f"{name}-{partition}" for partition in range(PARTITIONS)]
    shutil.rmtree(ROOT / "avro", ignore_errors=True)
    for folder in folders:
        with PartitionLogWriter(folder) as writer:
            for batch in build_batches(1_700_000_000_000 + np.arange(count), None, column):
                writer.append(batch)
    return folders


def contenders(
    spark: SparkSession, name: str, servers: str, document: Any
) -> dict[str, Callable[[], DataFrame]]:
    """Return frames with a column `v` of decoded values."""
    from pyspark.sql.avro.functions import from_avro

    schema = Schema("AVRO", json.dumps(document))
    decoding = Decoding(value="avro", schemas={1: schema}, reader_schema=schema, on_error="raise")

    def payloads() -> DataFrame:
        frame = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
        return frame.option("subscribe", name).load().selectExpr("substring(value, 6) as value")

    def ours() -> DataFrame:
        scan = kafkafmt.scan(f"kafka://{servers}/{name}", columns=["value"], decode=decoding)
        return read_scan(spark, scan).withColumnRenamed("value", "v")

    plain = Decoding(value="avro", schemas=schema, framing="none", reader_schema=schema)
    decoder = plain.decoder(["value"])
    kind = ours().schema
    stored = _stored_type(kind)

    def decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from kafkafmt.decode.evolving import evolved

        for batch in batches:
            array = evolved(decoder.decode(batch).column(0), stored)
            yield pa.RecordBatch.from_arrays([array], names=["v"])

    return {
        "format('kafka'), from_avro": lambda: payloads().select(
            from_avro("value", schema.content).alias("v")
        ),  # type: ignore[arg-type]
        "read_scan(decode=)": ours,
        "format('kafka'), mapInArrow": lambda: payloads().mapInArrow(decoded, kind),
    }


def _stored_type(kind: Any) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(kind, timezone="UTC").field(0).type


def measure(
    frames: dict[str, Callable[[], DataFrame]], sums: tuple[str, ...], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds of each contender in each round. The first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in frames}
    for number in range(rounds + 1):
        found = {}
        for name, make in frames.items():
            started = time.perf_counter()
            found[name] = make().selectExpr("count(v)", *sums).collect()
            if number:
                seconds[name].append(time.perf_counter() - started)
        results = list(found.values())
        for result in results:
            if any(abs(a - b) > 1e-6 * abs(a) if isinstance(a, float) else a != b
                   for a, b in zip(result[0], results[0][0], strict=True)):  # fmt: skip
                raise SystemExit(f"the results differ: {found}")
    return seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    jars = ROOT / "jars"
    shutil.rmtree(jars, ignore_errors=True)
    jars.mkdir(parents=True)
    for jar in [*SPARK_KAFKA.fetch().glob("*.jar"), *SPARK_AVRO.fetch().glob("*.jar")]:
        (jars / jar.name).symlink_to(jar.resolve())
    table = [["topic", "contender", "records/s", "s", "ours is faster by"]]
    with local_spark(2, jars) as spark:
        for name, document in (("avro-flat", AVRO_FLAT), ("avro-nested", AVRO_NESTED)):
            folders = write_topic(name, avro_values(_POOL, document is AVRO_NESTED), arguments.records)
            with broker_of({name: folders}, ROOT) as running:
                frames = contenders(spark, name, running.bootstrap, document)
                seconds = measure(frames, _SUMS[name], arguments.rounds)
            for contender, times in seconds.items():
                median = statistics.median(times)
                ratio = statistics.median(
                    one / mine for one, mine in zip(times, seconds["read_scan(decode=)"], strict=True)
                )
                rate = f"{arguments.records / median:,.0f}"
                table.append([name, contender, rate, f"{median:.2f}", f"{ratio:.2f}"])
    print(aligned(table, left=(0, 1)))


if __name__ == "__main__":
    main()
