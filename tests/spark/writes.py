"""Writes with the data source, planned, staged and committed in this process as Spark would, without a JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from kafkafmt.spark.sink.job import SinkJob, TaskResult
from kafkafmt.spark.sink.options import WriteOptions
from spark.reads import TYPES, options_of

HEADERS = "array<struct<key:string,value:binary>>"
KINDS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": HEADERS,
    "batch": "binary",
}
ARROW = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    HEADERS: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}

Rows = Sequence[dict[str, Any]]


def schema_of(*names: str, **kinds: str) -> StructType:
    """The named columns, in the types that the source has them in unless told."""
    return StructType([StructField(name, TYPES[kinds.get(name, KINDS.get(name, "int"))]) for name in names])


def job(folder: Path, *names: str, overwrite: bool = False, **options: object) -> SinkJob:
    parsed = WriteOptions.parse(options_of(folder, **options))
    return SinkJob.plan(parsed, schema_of(*names), overwrite=overwrite)


def arrow(rows: Rows, batch_rows: int = 7) -> Iterator[pa.RecordBatch]:
    """The rows as Spark hands them on, some at a time."""
    schema = pa.schema([(name, ARROW[KINDS[name]]) for name in rows[0]]) if rows else pa.schema([])
    for first in range(0, len(rows), batch_rows):
        yield pa.RecordBatch.from_pylist(list(rows[first : first + batch_rows]), schema)


def staged(job: SinkJob, *tasks: Rows) -> list[TaskResult]:
    """What the tasks of a job stage, each its rows; task numbers are told as Spark would."""
    results = [job.write(arrow(rows)) for rows in tasks]
    return [TaskResult(number, one.staging, one.query, one.segments) for number, one in enumerate(results)]


def write(folder: Path, *tasks: Rows, overwrite: bool = False, **options: object) -> None:
    """A whole write: planned, each task's rows staged, committed; aborted where that fails, as Spark does."""
    names = next((list(rows[0]) for rows in tasks if rows), ["value", "topic", "partition"])
    one = job(folder, *names, overwrite=overwrite, **options)
    try:
        one.commit(staged(one, *tasks))
    except Exception:
        one.abort([])
        raise


def content(folder: Path) -> list[str]:
    """What is there but for the locks."""
    return sorted(path.name for path in folder.iterdir() if path.name not in (".kafkafmt-lock", ".lock"))
