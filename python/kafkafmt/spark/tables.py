"""Tables of Spark's catalog: `CREATE TABLE orders USING kafkafmt OPTIONS (path '/backup', topics 'orders')`.

Spark (4.3 and before) tells a Python data source the options of a table once, when the table is made and its columns
are inferred. Readers of the table get its columns, and none of its options. So the options go with the columns: as
JSON, in the metadata of one of them.

Rows keep the metadata of their columns, and so does a table that is made of rows (`saveAsTable`, `CREATE TABLE AS`).
Such a table must not read what the other one does. Spark makes all of its columns nullable, and keeps NOT NULL for
inferred ones. Therefore the column that holds the options is NOT NULL, and options in a nullable one are refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kafkafmt.spark.locations import CREDENTIAL_OPTIONS, has_credentials

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

_METADATA = "kafkafmt.options"
# A catalog's properties of a table stand among its options; this one is always there.
_PROVIDER = "provider"
_OPTION = "option."
_PATHS = frozenset({"path", "paths"})
# What Hive's metastore adds to the options that a user gave.
_OF_HIVE = frozenset({"serialization.format"})


def is_table(options: Mapping[str, str]) -> bool:
    """Whether options are those that Spark gives for a table that is being made."""
    return _PROVIDER in {name.lower() for name in options}


def table_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that a user gave for a table, without the catalog's properties; others as they are."""
    if not is_table(options):
        return dict(options)
    given = {
        name[len(_OPTION) :]: value
        for name, value in options.items()
        if name.lower().startswith(_OPTION) and name[len(_OPTION) :].lower() not in _OF_HIVE
    }
    # The path as the catalog has it, which LOCATION names as well.
    return {**given, **{name: value for name, value in options.items() if name.lower() == "path"}}


def with_options(schema: StructType, options: Mapping[str, str], never_null: Collection[str]) -> StructType:
    """The columns of a table that is being made, with its options in the first of those that are never null.

    Raises ValueError if there is no such column, and for credentials: whoever sees the columns would see them.
    """
    from pyspark.sql.types import StructField, StructType

    given = table_options(options)
    for name, value in given.items():
        if name.lower() in CREDENTIAL_OPTIONS or has_credentials(value):
            raise ValueError(
                f"option {name}: a table of the catalog keeps no credentials; expected them in the environment"
            )
    kept = next((field.name for field in schema if field.name in never_null), None)
    if kept is None:
        raise ValueError(
            f"columns: a table of the catalog needs one of {', '.join(never_null)}, found {', '.join(schema.names)}"
        )
    metadata = {_METADATA: json.dumps(given, sort_keys=True)}
    fields = [
        StructField(kept, field.dataType, nullable=False, metadata=metadata) if field.name == kept else field
        for field in schema
    ]
    return StructType(fields)


def holds_options(field: StructField) -> bool:
    """Whether a column has the options of a table in its metadata."""
    return _METADATA in field.metadata


def options_of(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a read: those of a table, under those that were given for the read.

    If the read has a path, the metadata of the columns is not looked at: rows of a table keep it wherever they go.

    Raises ValueError for a table that was made of the rows of another.
    """
    given = table_options(options)
    names = {name.lower() for name in given}
    kept: StructField | None = next(filter(holds_options, schema), None)
    if kept is None or names & _PATHS:
        return given
    if kept.nullable:
        raise ValueError(
            "no options: this table was made of rows of another one, and Spark does not tell the options of it; "
            "expected CREATE TABLE ... USING kafkafmt OPTIONS (path ...) without columns and without AS"
        )
    of_table: dict[str, str] = json.loads(kept.metadata[_METADATA])
    return {**{name: value for name, value in of_table.items() if name.lower() not in names}, **given}
