"""The columns of tables: from the columns of a scan, and how those of a table change when a topic has others.

Types that tables do not know are replaced by wider ones that every format has. Columns are added and never removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from kafkafmt.columns.read import COLUMNS
from kafkafmt.decode.arrays import ColumnBudget
from kafkafmt.decode.evolving import evolved
from kafkafmt.export.errors import ExportError, SchemaConflictError

KAFKA_PREFIX = "kafka_"
VALUE = "value"
# Of files in mode upsert: whether the record has no value.
DELETED = "_kafkafmt_deleted"
# Why keys and values could not be decoded.
ERRORS = ("key_error", "value_error")
_MICROSECONDS_UTC = pa.timestamp("us", "UTC")
_MAX_DECIMAL128 = 38
_SAME = (
    pa.types.is_boolean,
    pa.types.is_int32,
    pa.types.is_int64,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
)
_REPLACED: Sequence[tuple[Callable[[pa.DataType], bool], pa.DataType]] = (
    (pa.types.is_int8, pa.int32()),
    (pa.types.is_int16, pa.int32()),
    (pa.types.is_uint8, pa.int32()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, pa.decimal128(20, 0)),
    (pa.types.is_duration, pa.int64()),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_date64, pa.date32()),
    (pa.types.is_null, pa.string()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
)
# From a type to those that hold all of its values.
_WIDER: dict[pa.DataType, Sequence[pa.DataType]] = {
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}


def is_flattened(schema: pa.Schema, *, flatten: bool) -> bool:
    """Return whether the fields of the values are columns: if they are records with fields, and it is asked for."""
    return flatten and VALUE in schema.names and pa.types.is_struct(schema.field(VALUE).type)


def flattened(schema: pa.Schema, topic: str, *, is_new: bool) -> pa.Schema:
    """Return the columns of a table whose values are records: their fields, and Kafka's own columns with a prefix.

    is_new: whether there is no table yet. Raises SchemaConflictError if two columns would have the same name.
    """
    own = [field.with_name(KAFKA_PREFIX + field.name) for field in schema if field.name != VALUE]
    fields = [field.with_nullable(True) for field in schema.field(VALUE).type]
    names: dict[str, str] = {}
    for name in (field.name for field in (*own, *fields)):
        other = names.get(name.lower())
        names[name.lower()] = name
        if other is not None:
            found = f"two columns {name!r}" if name == other else f"columns {other!r} and {name!r}"
            way = "give a schema without one of them (--schemas FILE, or reader_schema in Python)"
            if is_new:
                way += ", or keep each record in one column (--nested, or flatten=False in Python)"
            raise SchemaConflictError(
                f"topic {topic}: expected names that differ in more than case, found {found}: {way}"
            )
    return pa.schema([*own, *fields])


def scan_columns(table: pa.Schema | None, *, flatten: bool) -> pa.Schema:
    """Return the columns of a scan whose rows a table has: without flattening, if it was created with it.

    table: None if there is no table yet. It has no columns.
    """
    if table is None:
        return pa.schema([])
    own = {KAFKA_PREFIX + name: name for name in (*COLUMNS, *ERRORS) if name != VALUE}
    is_flat = flatten and (
        not own.keys().isdisjoint(table.names) or set(own.values()).isdisjoint(table.names)
    )
    columns, values = [], []
    for field in table:
        try:
            known = pa.field(field.name, table_type(field.type, has_time=True))
        except TypeError:  # another writer has made this column
            continue
        if is_flat and field.name not in own:
            values.append(known)
        else:
            columns.append(known.with_name(own[field.name]) if is_flat else known)
    return pa.schema([*columns, pa.field(VALUE, pa.struct(values))] if values else columns)


def ensure_same_names(table: pa.Schema, columns: pa.Schema, where: str, *, is_flat: bool) -> None:
    """Raise SchemaConflictError if the table has the columns of a scan by their other names."""
    own = [name for name in columns.names if name != VALUE]
    names = {False: own, True: [KAFKA_PREFIX + name for name in own]}
    if not set(names[is_flat]) & set(table.names) and (others := set(names[not is_flat]) & set(table.names)):
        was = "with --nested (flatten=False in Python)" if is_flat else "without --nested"
        raise SchemaConflictError(
            f"{where}: expected the column {names[is_flat][0]!r}, found {min(others)!r}: the table was created {was}: "
            "export to it in the same way, or to a new table"
        )


def flatten_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of a scan with the columns of `flattened`."""
    arrays, names = [], []
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if name != VALUE:
            arrays.append(array)
            names.append(name if name == DELETED else KAFKA_PREFIX + name)
    value = batch.column(VALUE)
    arrays += value.flatten()
    names += [field.name for field in value.type]
    return pa.RecordBatch.from_arrays(arrays, names)


def table_schema(schema: pa.Schema, topic: str, *, has_time: bool) -> pa.Schema:
    """Return the columns as tables have them. All can be null. has_time: whether the format has a time of day.

    Raises SchemaConflictError for a type that tables cannot have.
    """
    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, table_type(field.type, has_time=has_time)))
        except TypeError as error:
            raise SchemaConflictError(
                f"topic {topic}: column {field.name!r}: tables have no type {error}"
            ) from None
    return pa.schema(fields)


def table_type(kind: pa.DataType, *, has_time: bool) -> pa.DataType:
    """Return the type of tables for a type of Arrow. Raises TypeError, with the type that tables cannot have."""
    if any(is_same(kind) for is_same in _SAME):
        return kind
    for is_kind, replaced in _REPLACED:
        if is_kind(kind):
            return replaced
    if pa.types.is_timestamp(kind):
        return _MICROSECONDS_UTC if kind.tz is not None else pa.timestamp("us")
    if pa.types.is_time(kind):
        return pa.time64("us") if has_time else pa.int64()
    if pa.types.is_decimal(kind) and kind.precision <= _MAX_DECIMAL128:
        return pa.decimal128(kind.precision, kind.scale)
    return _nested_type(kind, has_time=has_time)


def _nested_type(kind: pa.DataType, *, has_time: bool) -> pa.DataType:
    def inner(one: pa.DataType) -> pa.DataType:
        return table_type(one, has_time=has_time)

    if pa.types.is_dictionary(kind):
        return inner(kind.value_type)
    if pa.types.is_struct(kind) and kind.num_fields:
        return pa.struct([pa.field(field.name, inner(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(inner(kind.key_type), inner(kind.item_type))
    is_list = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    if any(check(kind) for check in is_list):
        return pa.list_(pa.field("element", inner(kind.value_type)))
    if isinstance(kind, pa.BaseExtensionType):
        return inner(kind.storage_type)
    raise TypeError(f"{kind}" if not pa.types.is_struct(kind) else "struct without fields")


def merged_schema(table: pa.Schema | None, wanted: pa.Schema, where: str, *, widens: bool) -> pa.Schema:
    """Return the columns of a table after it has got those of `wanted`. Those that are new come last.

    The fields of a table keep their metadata. where: table and topic, for messages. widens: whether columns of the
    table can get a wider type. Raises SchemaConflictError for a type that the column of the table cannot hold.
    """
    if table is None:
        return wanted
    return pa.schema(_merged(list(table), list(wanted), "", where, widens=widens), metadata=table.metadata)


def _merged(
    table: list[pa.Field], wanted: list[pa.Field], prefix: str, where: str, *, widens: bool
) -> list[pa.Field]:
    new = {field.name: field for field in wanted}
    # Engines do not distinguish the case of names.
    known = {field.name.lower(): field.name for field in table}
    merged = []
    for field in table:
        other = new.pop(field.name, None)
        if other is not None and field.type != other.type:
            kind = _merged_type(field.type, other.type, prefix + field.name, where, widens=widens)
            field = field.with_type(kind)
        merged.append(field)
    for name, field in new.items():
        if name.lower() in known:
            raise SchemaConflictError(
                f"{where}: column {prefix + name!r}: the table has {known[name.lower()]!r}, and names of columns must "
                "differ in more than case"
            )
        merged.append(field)
    return merged


def _merged_type(
    table: pa.DataType, wanted: pa.DataType, name: str, where: str, *, widens: bool
) -> pa.DataType:
    if pa.types.is_struct(table) and pa.types.is_struct(wanted):
        return pa.struct(_merged(list(table), list(wanted), f"{name}.", where, widens=widens))
    if pa.types.is_list(table) and pa.types.is_list(wanted):
        element = table.value_field
        kind = _merged_type(element.type, wanted.value_type, f"{name}.element", where, widens=widens)
        return pa.list_(element.with_type(kind))
    if pa.types.is_map(table) and pa.types.is_map(wanted) and table.key_type == wanted.key_type:
        kind = _merged_type(table.item_type, wanted.item_type, f"{name}.value", where, widens=widens)
        return pa.map_(table.key_field, table.item_field.with_type(kind))
    if table == wanted or _holds(table, wanted):
        return table
    if widens and _holds(wanted, table):
        return wanted
    way = ", and this format cannot widen it" if _holds(wanted, table) else ""
    raise SchemaConflictError(
        f"{where}: column {name!r}: the table has {table}, the topic has {wanted}{way}: export to a new table, or give "
        "a schema with the type of the table (--schemas FILE, or reader_schema in Python)"
    )


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Return whether a type holds all values of another one."""
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision >= narrow.precision)
    return wide == narrow or wide in _WIDER.get(narrow, ())


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch with exactly the columns of a schema: those that the batch lacks are null.

    Nanoseconds are cut to microseconds. The rows are in halves if nulls and casts in nested columns would take more
    than 256 MiB: items of lists that lack fields take few bytes of a payload.

    Raises ExportError for a value that the type of the table cannot hold, and for a row that would take more.
    """
    middle = batch.num_rows // 2
    budget = ColumnBudget(0 if middle else batch.nbytes, "a row")
    try:
        conformed = _conformed(batch, schema, budget)
    except OverflowError as error:
        if not middle:
            raise ExportError(
                f"{_place(batch)}the columns of the table take too much memory: {error}"
            ) from error
    else:
        yield conformed
        return
    # Not in the handler: the traceback of the error keeps the columns that were complete.
    yield from conform(batch[:middle], schema)
    yield from conform(batch[middle:], schema)


def _place(row: pa.RecordBatch) -> str:
    """Return where the record of a row is, for an error; empty if the row does not tell."""
    for prefix in (KAFKA_PREFIX, ""):
        names = [f"{prefix}{name}" for name in ("topic", "partition", "offset")]
        if set(names) <= set(row.schema.names):
            topic, partition, offset = (row.column(name)[0].as_py() for name in names)
            return f"{topic}-{partition}, offset {offset}: "
    return ""


def _conformed(batch: pa.RecordBatch, schema: pa.Schema, budget: ColumnBudget) -> pa.RecordBatch:
    arrays: list[Any] = []
    positions = {name: number for number, name in enumerate(batch.schema.names)}
    for field in schema:
        position = positions.get(field.name)
        if position is None:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        array = batch.column(position)
        if array.type != field.type:
            try:
                array = _cast(array, field.type, budget)
            except pa.ArrowException as error:
                raise ExportError(
                    f"column {field.name!r}: cannot convert {array.type} to {field.type}: {error}"
                ) from error
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, kind: pa.DataType, budget: ColumnBudget) -> pa.Array:
    if isinstance(array.type, pa.BaseExtensionType):
        return _cast(array.storage, kind, budget)
    if pa.types.is_duration(array.type):
        return array.view(pa.int64())
    if pa.types.is_time(array.type) and pa.types.is_int64(kind):
        return array.cast(pa.time64("us"), safe=False).view(pa.int64())
    if pa.types.is_nested(array.type):
        if pa.types.is_list(kind) and not (
            pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
        ):
            array = array.cast(pa.list_(array.type.value_type))
        return evolved(array, kind, partial(_cast, budget=budget), budget)
    is_cut = pa.types.is_timestamp(array.type) and array.type.unit == "ns"
    is_cut |= pa.types.is_time(kind)
    if not is_cut:
        return evolved(array, kind, budget=budget)
    result = array.cast(kind, safe=False)
    budget.take(result.nbytes)
    return result
