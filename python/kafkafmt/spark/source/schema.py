"""The columns of the source's two units, in Spark's types and in Arrow's, and which of them a read is to build."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from kafkafmt.columns import COLUMNS, arrow_schema
from kafkafmt.spark.source.batch_rows import BATCH_TYPES, DAMAGE_COLUMN
from kafkafmt.spark.tables import holds_options, with_options
from kafkafmt.spark.values import known_name

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
    arrow_schema(["headers"]).field("headers").type: "array<struct<key:string,value:binary>>",
}

# Those that have a value in every row, by unit.
_NEVER_NULL = {"records": ("offset", "timestamp", "timestampType"), "batches": ("file", "position", "size")}


@dataclass(frozen=True)
class OutputColumns:
    """What a read hands out: `columns` of the unit, and the Arrow schema that Spark expects of them.

    Spark compares that schema strictly, so it has the names and the nullability of the DataFrame's.
    """

    columns: tuple[str, ...]
    schema: pa.Schema

    @classmethod
    def of(cls, options: ReadOptions, schema: StructType) -> OutputColumns:
        """Raises ValueError for a column that is not known, of another type, or that cannot be without nulls."""
        return cls.among(_known(options), options.columns, schema)

    @classmethod
    def among(
        cls, known: Mapping[str, pa.DataType], asked: Sequence[str] | None, schema: StructType
    ) -> OutputColumns:
        """As `of`. known: the columns that there are; asked: those of the option `columns`."""
        if not schema.fields:
            raise ValueError(
                "schema: expected a column at the least, as rows without any cannot be handed over"
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
            raise ValueError(f"columns: the schema has others, {', '.join(columns)}; give one of the two")
        return cls(tuple(columns), pa.schema(fields))


def spark_schema(options: ReadOptions) -> str:
    """What is read where the user gives no schema, as DDL.

    Raises ValueError for a column that is not known.
    """
    return ddl(_known(options), _names(options))


def table_schema(options: ReadOptions, given: Mapping[str, str]) -> StructType:
    """The columns of a table of the catalog that is made with the options `given`, which they keep.

    Raises ValueError for a column that is not known, and as `with_options` does.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    known = _known(options)
    names = [known_name("column", name, known) for name in _names(options)]
    schema = from_arrow_schema(pa.schema([(name, known[name]) for name in names]))
    return with_options(schema, given, _NEVER_NULL[options.unit])


def _names(options: ReadOptions) -> Sequence[str]:
    """The columns that are read where the user gives no schema, as he calls them."""
    known = _known(options)
    if options.columns is not None:
        return options.columns
    if options.unit == "records":
        return [name for name in known if name != "headers" or options.include_headers]
    return [name for name in known if name != DAMAGE_COLUMN or options.on_corrupt == "keep"]


def ddl(known: Mapping[str, pa.DataType], names: Iterable[str]) -> str:
    """The columns of these names, in any case. Raises ValueError for one that is not known."""
    columns = [known_name("column", name, known) for name in names]
    return ", ".join(f"`{name}` {SPARK_TYPES[known[name]]}" for name in columns)


def _known(options: ReadOptions) -> dict[str, pa.DataType]:
    if options.unit == "batches":
        return BATCH_TYPES
    return {field.name: field.type for field in arrow_schema(COLUMNS)}
