"""The columns of all units of the source, in types of Spark and Arrow, and the columns of a read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from kafkafmt._util.names import known_name
from kafkafmt.columns.read import COLUMNS, arrow_schema
from kafkafmt.scanning.batch_rows import BATCH_TYPES, DAMAGE_COLUMN
from kafkafmt.scanning.options import ReadColumns
from kafkafmt.spark.source.options import STATE_UNITS
from kafkafmt.spark.source.state_units import state_types
from kafkafmt.spark.tables import holds_options, with_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kafkafmt.spark.source.options import ReadOptions

SPARK_TYPES = {
    pa.binary(): "binary",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.float64(): "double",
    pa.list_(pa.int32()): "array<int>",
    pa.list_(pa.string()): "array<string>",
    pa.map_(pa.string(), pa.string()): "map<string,string>",
    arrow_schema(["headers"]).field("headers").type: "array<struct<key:string,value:binary>>",
}

# The columns that have a value in every row, by unit.
_NEVER_NULL = {
    "records": ("offset", "timestamp", "timestampType"),
    "batches": ("file", "position", "size"),
    "offsets": ("groupId",),
    "metadata": ("kind", "name"),
    "transactions": ("producerId",),
}


@dataclass(frozen=True)
class OutputColumns(ReadColumns):
    """The columns of a read, and the Arrow schema that Spark expects for them.

    Spark compares the schema strictly. So it has the names and the nullability of the DataFrame's columns.
    """

    @classmethod
    def of(cls, options: ReadOptions, schema: StructType) -> OutputColumns:
        """Return the columns of a DataFrame's schema. Raises ValueError for unknown, wrong and non-nullable columns."""
        return cls.among(_known(options), options.columns, schema)

    @classmethod
    def among(
        cls, known: Mapping[str, pa.DataType], asked: Sequence[str] | None, schema: StructType
    ) -> OutputColumns:
        """Return the columns as `of`. known: all columns by name. asked: those of the option `columns`, or None."""
        if not schema.fields:
            raise ValueError(
                "schema: expected at least one column, as Spark receives no rows without columns"
            )
        columns, fields = [], []
        for given in schema.fields:
            name = known_name("column", given.name, known)
            kind, found = known[name], given.dataType.simpleString()
            if found != SPARK_TYPES[kind]:
                raise ValueError(f"schema: column {given.name}: expected {SPARK_TYPES[kind]}, found {found}")
            if not given.nullable and not holds_options(given):
                raise ValueError(
                    f"schema: column {given.name}: expected it nullable, as Spark's Kafka source has it"
                )
            columns.append(name)
            fields.append(pa.field(given.name, kind, nullable=given.nullable))
        if asked is not None and [known_name("column", name, known) for name in asked] != columns:
            raise ValueError(
                f"columns: the schema has others, {', '.join(columns)}: give columns or schema, not both"
            )
        return cls(tuple(columns), pa.schema(fields))


def spark_schema(options: ReadOptions) -> str:
    """Return the columns of a read without a given schema, as DDL.

    Raises ValueError for an unknown column.
    """
    return ddl(_known(options), _names(options))


def table_schema(options: ReadOptions, given: Mapping[str, str]) -> StructType:
    """Return the columns of a new table of the catalog, whose metadata contains the options `given`.

    Raises ValueError for an unknown column, and the errors of `with_options`.
    """
    schema = struct_type(_known(options), _names(options))
    return with_options(schema, given, _NEVER_NULL[options.unit])


def struct_type(known: Mapping[str, pa.DataType], names: Iterable[str]) -> StructType:
    """Return columns as Spark's type, in the case of `known`. Raises ValueError for an unknown column."""
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = [known_name("column", name, known) for name in names]
    return from_arrow_schema(pa.schema([(name, known[name]) for name in columns]))


def _names(options: ReadOptions) -> Sequence[str]:
    """Return the columns of a read without a given schema, in the case in which the user wrote them."""
    known = _known(options)
    if options.columns is not None:
        return options.columns
    if options.unit == "records":
        return [name for name in known if name != "headers" or options.include_headers]
    if options.unit in STATE_UNITS:
        return list(known)
    return [name for name in known if name != DAMAGE_COLUMN or options.on_corrupt == "keep"]


def ddl(known: Mapping[str, pa.DataType], names: Iterable[str]) -> str:
    """Return columns as DDL, in the given case. Raises ValueError for an unknown column."""
    columns = [known_name("column", name, known) for name in names]
    return ", ".join(f"`{name}` {SPARK_TYPES[known[name]]}" for name in columns)


def _known(options: ReadOptions) -> dict[str, pa.DataType]:
    if options.unit in STATE_UNITS:
        return state_types(options.unit)
    if options.unit == "batches":
        return BATCH_TYPES
    return {field.name: field.type for field in arrow_schema(COLUMNS)}
