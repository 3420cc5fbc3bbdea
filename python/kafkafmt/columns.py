"""Records as columns, without an object a record: numpy arrays, or an Arrow table as Spark's Kafka source has it.

Both are built by the kernel's `ColumnBuilder`, chunk by chunk; a column that is not asked for is never built.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from _kafkafmt.columns import ColumnBuilder
from kafkafmt.decoding import groups, without_control
from kafkafmt.errors import InvalidRecordError, KafkaFormatError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from kafkafmt.records import Records
    from kafkafmt.types import TopicPartition

# As Spark's Kafka source names and orders them.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_NUMPY_COLUMNS = tuple(name for name in COLUMNS if name not in ("topic", "partition"))
# What one chunk is made of, decompressed. One that is dropped before the next but one: enough that Python's part of it
# is small, and few enough that its columns stay in the cache.
CHUNK_BYTES = 2 * 1024 * 1024
# One of a table, or of views, which take little: large enough for the next stage to be busy, small enough to be held
# in number.
ARROW_CHUNK_BYTES = 8 * 1024 * 1024
_RUN_BYTES = 4 * 1024 * 1024
# More of it grows as it is filled.
_MOST_RESERVED_BYTES = 1024 * 1024 * 1024
_MICROSECONDS = 1000
_MOST_MILLISECONDS = np.iinfo(np.int64).max // _MICROSECONDS


@dataclass(frozen=True)
class BinaryColumn:
    """Byte strings end to end: string i is data[offsets[i]:offsets[i + 1]].

    offsets: int64 of count + 1; data: uint8; valid: a boolean a string, False for null, or None without nulls.
    """

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]
    valid: NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> bytes | None:
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        if self.valid is not None and not self.valid[i]:
            return None
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes()


@dataclass(frozen=True)
class HeadersColumn:
    """Headers end to end: those of record i are keys[j] and values[j] for j from offsets[i] to offsets[i + 1]."""

    offsets: NDArray[np.int64]
    keys: BinaryColumn
    values: BinaryColumn

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> list[tuple[str, bytes | None]]:
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        i %= len(self)
        return [
            ((self.keys[j] or b"").decode("utf-8", "surrogateescape"), self.values[j])
            for j in range(self.offsets[i], self.offsets[i + 1])
        ]


Column: TypeAlias = "NDArray[Any] | BinaryColumn | HeadersColumn"


def _checked(columns: Sequence[str] | None, known: Sequence[str]) -> Sequence[str]:
    if columns is None:
        return known
    if isinstance(columns, str):
        raise TypeError(f"columns: expected a sequence of names, found the string {columns!r}")
    wrong = [name for name in columns if name not in COLUMNS or list(columns).count(name) > 1]
    if wrong:
        raise ValueError(f"columns: expected distinct ones of {', '.join(COLUMNS)}, found {', '.join(wrong)}")
    return columns


def _chunks(
    records: Records,
    columns: Collection[str],
    *,
    verify: bool,
    control: bool,
    views: bool,
    wide: bool,
    chunk_bytes: int | None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """How many records, and their columns, of about `chunk_bytes` of decompressed records at a time.

    None: all of them in one chunk; no records, no chunk. Before an error, what came before it.
    """
    most = sys.maxsize if chunk_bytes is None else chunk_bytes
    if most <= 0:
        raise ValueError(f"chunk_bytes: expected 1 or more, found {chunk_bytes}")
    builder = ColumnBuilder(
        columns,
        views=views,
        wide=wide,
        source_bytes=records.size_in_bytes,
        chunk_bytes=min(most, _MOST_RESERVED_BYTES),
    )
    return _filled(builder, records, most, verify=verify, control=control, reuse_memory=not views)


def _filled(
    builder: ColumnBuilder, records: Records, most: int, *, verify: bool, control: bool, reuse_memory: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """What `_chunks` promises, of about `most` bytes each."""
    damage = None
    try:
        for run in records.runs(run_bytes=min(most, _RUN_BYTES), reuse_memory=reuse_memory):
            if not control:
                run, damage = without_control(run, verify=verify)
            for first, stop, payloads in groups(run, verify=verify, limit=records.max_decompressed_bytes):
                before = builder.size_in_bytes
                builder.add(run, first, stop, payloads, verify=verify)
                if 2 * builder.size_in_bytes - before > most:  # as much again would be too much
                    yield builder.count, builder.take()
            if damage is not None:
                try:
                    raise damage
                finally:
                    del damage  # no cycle of error, traceback and frame
    except KafkaFormatError as error:
        if builder.count:
            yield builder.count, builder.take()
        raise records.described(error) from None
    if builder.count:
        yield builder.count, builder.take()


def to_numpy(
    records: Records, columns: Sequence[str] | None, *, verify: bool, control: bool
) -> dict[str, Column]:
    """One entry a column. Records of control batches are left out without `control`, as in `Records.records`.

    offset and timestamp (milliseconds, -1 for none) are int64, timestampType int32, key and value
    `BinaryColumn`, headers `HeadersColumn`. topic (an object array of str) and partition (int32) only where
    they are asked for: ValueError where the records do not know them.
    """
    columns = _checked_for_numpy(records, columns)
    chunks = list(
        _chunks(records, columns, verify=verify, control=control, views=False, wide=True, chunk_bytes=None)
    )
    count, arrays = chunks[0] if chunks else (0, ColumnBuilder(columns, wide=True).take())
    return _numpy_columns(arrays, columns, count, records.topic_partition)


def numpy_batches(
    records: Records,
    columns: Sequence[str] | None = None,
    *,
    verify: bool = True,
    control: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[dict[str, Column]]:
    """What `to_numpy` returns, chunk by chunk, of about `chunk_bytes` of decompressed records each.

    Faster than all of it at once where a chunk, all of its arrays, is dropped before the next but one is
    asked for: its memory is used again then, and stays in the cache. What is kept stays as it is. Before
    the error of a damaged batch comes what stands before it. Up to 32 MiB of such memory stay with the
    process for the next reader.

    Raises ValueError and TypeError for wrong arguments at once.
    """
    columns = _checked_for_numpy(records, columns)
    chunks = _chunks(
        records, columns, verify=verify, control=control, views=False, wide=True, chunk_bytes=chunk_bytes
    )
    return (_numpy_columns(arrays, columns, count, records.topic_partition) for count, arrays in chunks)


def _checked_for_numpy(records: Records, columns: Sequence[str] | None) -> Sequence[str]:
    columns = _checked(columns, _NUMPY_COLUMNS)
    if records.topic_partition is None and ("topic" in columns or "partition" in columns):
        raise ValueError("topic and partition are not known: give the records a topic_partition")
    return columns


def _numpy_columns(
    arrays: dict[str, Any], columns: Sequence[str], count: int, source: TopicPartition | None
) -> dict[str, Column]:
    return {name: _numpy_column(name, arrays.get(name), count, source) for name in columns}


def _numpy_column(name: str, arrays: Any, count: int, source: TopicPartition | None) -> Column:
    if name in ("key", "value"):
        return BinaryColumn(*arrays)
    if name == "headers":
        offsets, keys, values = arrays
        return HeadersColumn(offsets, BinaryColumn(*keys), BinaryColumn(*values))
    if name == "topic" and source is not None:
        return np.full(count, source.topic, object)
    if name == "partition" and source is not None:
        return np.full(count, source.partition, np.int32)
    column: NDArray[Any] = arrays
    return column


def arrow_schema(columns: Sequence[str] | None = None, *, views: bool = False) -> pa.Schema:
    """The schema of `to_arrow`: the columns of Spark's Kafka source, with its types."""
    import pyarrow as pa

    binary = pa.binary_view() if views else pa.binary()
    types = {
        "key": binary,
        "value": binary,
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }
    return pa.schema([(name, types[name]) for name in _checked(columns, COLUMNS)])


def to_arrow(
    records: Records, columns: Sequence[str] | None, *, verify: bool, control: bool, views: bool
) -> pa.Table:
    """A table with a chunk for every few megabytes of records.

    Records of control batches are left out without `control`, as in `Records.records`.

    topic and partition are null where the records do not know them; headers are null where a record has none,
    as in Spark. With `views` keys and values are Arrow binary views that point into the records' own memory,
    or into that of their decompressed payloads, and keep it alive.
    """
    import pyarrow as pa

    schema = arrow_schema(columns, views=views)
    batches = arrow_batches(
        records, columns, verify=verify, control=control, views=views, chunk_bytes=ARROW_CHUNK_BYTES
    )
    return pa.Table.from_batches(batches, schema)


def arrow_batches(
    records: Records,
    columns: Sequence[str] | None = None,
    *,
    verify: bool = True,
    control: bool = False,
    views: bool = False,
    chunk_bytes: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """What `to_arrow` returns, batch by batch, of about `chunk_bytes` of decompressed records each.

    By default 2 MiB, with `views` 8 MiB. Memory of a batch that is dropped is used again, and up to 32 MiB
    of it stay with the process, as in `numpy_batches`; before the error of a damaged batch comes what
    stands before it.

    Raises ValueError and TypeError for wrong arguments at once.
    """
    if chunk_bytes is None:
        chunk_bytes = ARROW_CHUNK_BYTES if views else CHUNK_BYTES
    schema = arrow_schema(columns, views=views)
    chunks = _chunks(
        records,
        schema.names,
        verify=verify,
        control=control,
        views=views,
        wide=False,
        chunk_bytes=chunk_bytes,
    )
    return (record_batch(arrays, count, schema, records.topic_partition) for count, arrays in chunks)


def record_batch(
    arrays: dict[str, Any], count: int, schema: pa.Schema, source: TopicPartition | None
) -> pa.RecordBatch:
    """What a `ColumnBuilder` built, neither wide nor anything but what the schema names, as Arrow."""
    import pyarrow as pa

    return pa.record_batch([_arrow_column(arrays, count, field, source) for field in schema], schema=schema)


def _arrow_column(
    arrays: dict[str, Any], count: int, field: pa.Field, source: TopicPartition | None
) -> pa.Array:
    import pyarrow as pa

    from kafkafmt import arrow_arrays as arrow

    name, kind = field.name, field.type
    if name == "topic":
        return arrow.repeated_text(None if source is None else source.topic, count)
    if name == "partition":
        return arrow.repeated_int(None if source is None else source.partition, count)
    if name == "timestamp":
        return arrow.number_array(kind, _microseconds(arrays[name]))
    if name == "headers":
        offsets, keys, values = arrays[name]
        return _arrow_headers(offsets, keys, values, kind)
    if name not in ("key", "value"):
        return arrow.number_array(kind, arrays[name])
    if kind != pa.binary():
        views, valid = arrays[name]
        return arrow.view_array(views, valid, arrays["buffers"])
    return arrow.string_array(kind, *arrays[name])


def _microseconds(timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """From milliseconds, in place."""
    if (
        len(timestamps)
        and not -_MOST_MILLISECONDS <= timestamps.min() <= timestamps.max() <= _MOST_MILLISECONDS
    ):
        beyond = (timestamps > _MOST_MILLISECONDS) | (timestamps < -_MOST_MILLISECONDS)
        raise InvalidRecordError(
            f"timestamp for Arrow's microseconds: expected {_MOST_MILLISECONDS} ms at the most, "
            f"found {timestamps[beyond][0]} ms; the other columns can be read"
        )
    return np.multiply(timestamps, _MICROSECONDS, out=timestamps)


def _arrow_headers(offsets: NDArray[np.int32], keys: Any, values: Any, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    from kafkafmt.arrow_arrays import list_array, string_array

    if offsets[-1] == 0:
        return pa.nulls(len(offsets) - 1, kind)
    names = string_array(pa.binary(), *keys)
    try:
        names = names.cast(pa.string())
    except pa.ArrowInvalid:  # a key that is not UTF-8: as Java decodes it
        names = pa.array([key.decode("utf-8", "replace") for key in names.to_pylist()], pa.string())
    pairs = pa.StructArray.from_arrays(
        [names, string_array(pa.binary(), *values)], fields=list(kind.value_type)
    )
    return list_array(kind, offsets, pairs)
