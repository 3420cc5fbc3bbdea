"""Writes whose first attempt at a task has an accident. Arguments: a folder for marks, the target, options, kinds.

- `raise`: the attempt fails.
- `kill`: its executor is killed.

For each kind a log directory is written below the target. Prints how many accidents there were, how many rows are read
from it, and how many of these are distinct.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from kafkafmt.spark import register
from kafkafmt.spark.sink.staging import Owner

ROWS = 40_000


def with_an_accident(kind: str, marker: Path) -> object:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            yield batch
            if context.partitionId() == 1 and number == 2 and not marker.exists():
                marker.touch()
                if kind == "raise":
                    raise RuntimeError("an accident")
                executor = Owner.here()
                assert executor is not None
                os.kill(executor.process, signal.SIGKILL)

    return rows


def main(folder: Path, target: str, options: dict[str, str], kinds: list[str]) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark, ship=False)
    for kind in kinds:
        frame = spark.range(0, ROWS, 1, 4).selectExpr(
            "encode(cast(id AS string), 'utf-8') AS value", "'t' AS topic", "cast(id % 3 AS int) AS partition"
        )
        frame = frame.mapInArrow(with_an_accident(kind, folder / f"{kind}.marker"), frame.schema)
        path = f"{target}/{kind}"
        frame.write.format("kafkafmt").options(**options).mode("append").save(path)
        found = spark.read.format("kafkafmt").options(**options).load(path)
        attempts = int((folder / f"{kind}.marker").exists())
        print(kind, attempts, found.count(), found.select("value").distinct().count(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:])
