"""Reports of jobs as DataFrames: the fields that `--json` prints, under the same names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAMAGE = (
    "array<struct<kind: string, path: string, position: bigint, end_position: bigint, base_offset: bigint, "
    "last_offset: bigint, expected_offset: bigint, next_offset: bigint, message: string>>"
)


def report_frame(spark: SparkSession, reports: Iterable[Any], columns: dict[str, str]) -> DataFrame:
    """A row a report, a dataclass; `columns` has their types by name."""
    rows = [tuple(fields[name] for name in columns) for fields in map(asdict, reports)]
    return spark.createDataFrame(rows, ", ".join(f"{name} {kind}" for name, kind in columns.items()))
