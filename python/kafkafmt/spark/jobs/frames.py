"""Convert reports of jobs to DataFrames. The columns are the fields that `--json` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAMAGE = (
    "array<struct<kind: string, path: string, position: bigint, end_position: bigint, base_offset: bigint, "
    "last_offset: bigint, expected_offset: bigint, next_offset: bigint, message: string>>"
)


# Spark's type for the annotation of a field. None becomes null.
_TYPES = {"str": "string", "int": "bigint", "float": "double", "list[str]": "array<string>"}


def report_frame(
    spark: SparkSession, reports: Iterable[Any], kind: type[Any], types: Mapping[str, str]
) -> DataFrame:
    """Return a row for each report, of the dataclass `kind`.

    types: Spark's types of the fields whose annotation does not determine it.
    """
    columns = {
        field.name: types.get(field.name) or _TYPES[str(field.type).removesuffix(" | None")]
        for field in fields(kind)
    }
    rows = [tuple(found[name] for name in columns) for found in map(asdict, reports)]
    return spark.createDataFrame(rows, ", ".join(f"{name} {found}" for name, found in columns.items()))
