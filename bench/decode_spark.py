"""Decode a topic of Avro on a local Spark: ours, and Spark's Kafka source with its `from_avro`.

    python -m bench.decode_spark [--records 2000000] [--rounds 3]

Payloads have Confluent's framing. All contenders read the same topic of a running broker, decode all fields, and sum
some of them. They take turns: a round runs each once, and the first round only warms up. The figures are those of the
best run of each, so that other work on the machine does not decide. Processor seconds are of the processes of Spark and
of the broker in that run. The last contender decodes a DataFrame of payloads, which Spark has read, by `mapInArrow`:
its bytes cross from the JVM into Python and back.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
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
from bench.spark.measure import Contender, Measured, local_spark, take_turns
from bench.table import aligned
from kafkafmt import BinaryColumn, build_batches
from kafkafmt.decode import Decoding, Schema
from kafkafmt.log import PartitionLogWriter
from kafkafmt.spark import read_scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
OURS = "read_scan(decode=)"
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
        OURS: ours,
        "format('kafka'), mapInArrow": lambda: payloads().mapInArrow(decoded, kind),
    }


def _stored_type(kind: Any) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(kind, timezone="UTC").field(0).type


def measure(
    frames: dict[str, Callable[[], DataFrame]], sums: tuple[str, ...], records: int, rounds: int
) -> dict[str, Measured]:
    """Return the best run of each contender. Exits if their sums differ."""
    runs = take_turns(
        lambda frame: frame.selectExpr("count(v)", *sums).collect()[0],
        {name: Contender(make, records, rounds) for name, make in frames.items()},
    )
    first, *others = (run.result for run in runs.values())
    if not all(_is_equal(a, b) for other in others for a, b in zip(first, other, strict=True)):
        raise SystemExit(f"the results differ: {[run.result for run in runs.values()]}")
    return runs


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two sums are equal. Floating-point numbers are added in another order."""
    return math.isclose(one, other, rel_tol=1e-6) if isinstance(one, float) else bool(one == other)


def _row(topic: str, contender: str, run: Measured, ours: Measured) -> list[str]:
    numbers = (
        run.seconds,
        run.seconds / ours.seconds,
        _processor_seconds(run),
        run.python_seconds,
        run.java_seconds,
        _processor_seconds(run) / _processor_seconds(ours),
    )
    return [topic, contender, f"{run.records / run.seconds:,.0f}", *(f"{number:.2f}" for number in numbers)]


def _processor_seconds(run: Measured) -> float:
    return run.python_seconds + run.java_seconds


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
    table = [
        ["topic", "contender", "records/s", "s", "times ours", "processor s", "Python", "Java", "times ours"],
    ]
    with local_spark(2, jars) as spark:
        for name, document in (("avro-flat", AVRO_FLAT), ("avro-nested", AVRO_NESTED)):
            folders = write_topic(name, avro_values(_POOL, document is AVRO_NESTED), arguments.records)
            with broker_of({name: folders}, ROOT) as running:
                frames = contenders(spark, name, running.bootstrap, document)
                runs = measure(frames, _SUMS[name], arguments.records, arguments.rounds)
            table += [_row(name, contender, run, runs[OURS]) for contender, run in runs.items()]
    print(aligned(table, left=(0, 1)))


if __name__ == "__main__":
    main()
