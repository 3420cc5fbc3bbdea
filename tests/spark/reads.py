"""Reads with the data source, planned and read in this process as Spark would, without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafkafmt.log.splitting import Split
from kafkafmt.spark.data_source import KafkafmtDataSource
from kafkafmt.spark.source.options import ReadOptions
from kafkafmt.spark.source.reading import plan

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_NAMES = ArrayType(StringType())
_KINDS = (
    BinaryType(),
    BooleanType(),
    IntegerType(),
    LongType(),
    StringType(),
    TimestampType(),
    DoubleType(),
    _HEADERS,
    _NAMES,
    ArrayType(IntegerType()),
    MapType(StringType(), StringType()),
)
TYPES: dict[str, DataType] = {kind.simpleString(): kind for kind in _KINDS}


def struct(ddl: str) -> StructType:
    """The schema that DDL stands for; Spark's own parser is in the JVM."""
    columns = [column.rsplit("` ", 1) for column in ddl.split(", ")]
    return StructType([StructField(name.strip("`"), TYPES[kind]) for name, kind in columns])


def options_of(path: Path | str, **options: object) -> dict[str, str]:
    return {"path": str(path), **{name: str(value) for name, value in options.items()}}


def batches(path: Path | str, schema: StructType | None = None, **options: object) -> list[pa.RecordBatch]:
    """The Arrow batches of all tasks, in order."""
    source = KafkafmtDataSource(options_of(path, **options))
    reader = source.reader(schema or struct(source.schema()))
    return [found for task in reader.partitions() for found in reader.read(task)]


def rows(path: Path | str, schema: StructType | None = None, **options: object) -> list[dict[str, Any]]:
    return [row for batch in batches(path, schema, **options) for row in batch.to_pylist()]


def offsets(path: Path | str, **options: object) -> list[int]:
    return [row["offset"] for row in rows(path, columns="offset", **options)]


def splits(path: Path | str, **options: object) -> list[Split]:
    return [split for task in plan(ReadOptions.parse(options_of(path, **options))) for split in task.splits]
