"""Tables of Spark's catalog: `CREATE TABLE orders USING kafkafmt OPTIONS (path '/backup', topics 'orders')`.

Spark (up to 4.3) passes the options of a table to a Python data source only once, when the table is created. Readers of
the table get its columns and none of its options. So the options are stored as JSON in the metadata of a column.

Rows keep the metadata of their columns, and so does a table created from rows (`saveAsTable`, `CREATE TABLE AS`). Such
a table must not read the data of the first one. Spark makes all of its columns nullable, but keeps NOT NULL for
inferred columns. Therefore the column with the options is NOT NULL, and options in a nullable column are refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kafkafmt.client.client_config import is_secret
from kafkafmt.storage.locations import CREDENTIAL_OPTIONS, has_credentials

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

_METADATA = "kafkafmt.options"
# The options of a table include the catalog's properties. This one is always present.
_PROVIDER = "provider"
_ELSEWHERE = "expected them in the environment, or a temporary view"
_OPTION = "option."
# The options that name the source of a read: with one of them a read is none of a table.
PLACES = frozenset({"path", "paths", "kafka.bootstrap.servers"})
# The options that Hive's metastore adds.
_OF_HIVE = frozenset({"serialization.format"})


def is_table(options: Mapping[str, str]) -> bool:
    """Return whether Spark passes these options to create a table."""
    return _PROVIDER in {name.lower() for name in options}


def table_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that a user gave for a table, without the catalog's properties.

    Options that are not those of a table are returned unchanged.
    """
    if not is_table(options):
        return dict(options)
    given = {
        name[len(_OPTION) :]: value
        for name, value in options.items()
        if name.lower().startswith(_OPTION) and name[len(_OPTION) :].lower() not in _OF_HIVE
    }
    # The path in the catalog, which LOCATION may also have set.
    return {**given, **{name: value for name, value in options.items() if name.lower() == "path"}}


def with_options(schema: StructType, options: Mapping[str, str], never_null: Collection[str]) -> StructType:
    """Return the columns of a new table, with its options in the metadata of the first column in `never_null`.

    Raises ValueError if there is no such column. Also raises it for credentials: every reader of the columns would see
    them.
    """
    from pyspark.sql.types import StructField, StructType

    given = table_options(options)
    for name, value in given.items():
        if name.lower() in CREDENTIAL_OPTIONS or is_secret(name) or has_credentials(value):
            raise ValueError(f"option {name}: a table of the catalog keeps no credentials; {_ELSEWHERE}")
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
    """Return whether the metadata of a column contains the options of a table."""
    return _METADATA in field.metadata


def options_of(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read: the options of its table, overridden by those given for the read.

    If a place is given, the metadata of the columns is ignored: rows of a table keep it in other DataFrames.

    Raises ValueError for a table that was created from the rows of another one.
    """
    given = table_options(options)
    names = {name.lower() for name in given}
    kept: StructField | None = next(filter(holds_options, schema), None)
    if kept is None or names & PLACES:
        return given
    if kept.nullable:
        raise ValueError(
            "no options: this table was made of rows of another one, and Spark does not tell the options of it; "
            "expected CREATE TABLE ... USING ... OPTIONS (...) without columns and without AS"
        )
    of_table: dict[str, str] = json.loads(kept.metadata[_METADATA])
    return {**{name: value for name, value in of_table.items() if name.lower() not in names}, **given}
