"""Read records as columns: numpy arrays, or Arrow with the columns of Spark's Kafka source.

The kernel's `ColumnBuilder` builds the columns chunk by chunk, without a Python object per record. Columns that are
not selected are not materialised.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from _kafkafmt.columns.columns import ColumnBuilder
from kafkafmt._util.extras import needed_by
from kafkafmt.errors import InvalidRecordError, KafkaFormatError
from kafkafmt.records.decoding import decompressed_chunks
from kafkafmt.records.runs import slice_run, with_batch, without_control

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.types import TopicPartition

# The names and the order of Spark's Kafka source.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_NUMPY_COLUMNS = tuple(name for name in COLUMNS if name not in ("topic", "partition"))
# Decompressed bytes of records in a chunk. Enough that Python's share of the time is small, and few enough that the
# columns stay in the processor's cache if the reader drops chunks.
CHUNK_BYTES = 2 * 1024 * 1024
# The same for a table, and for views: large enough for the next stage, and small enough that many can be in memory.
ARROW_CHUNK_BYTES = 8 * 1024 * 1024
_RUN_BYTES = 4 * 1024 * 1024
# The most bytes that are reserved for a chunk beforehand; a larger chunk's memory grows as it is filled.
_MAX_RESERVED_BYTES = 1024 * 1024 * 1024
_MICROSECONDS = 1000
_MAX_MILLISECONDS = np.iinfo(np.int64).max // _MICROSECONDS


class TimestampRangeError(InvalidRecordError):
    """A timestamp does not fit into Arrow's microseconds. The record is sound: its other columns can be read."""


@dataclass(frozen=True, eq=False)
class BinaryColumn:
    """A column of byte strings: string i is data[offsets[i]:offsets[i + 1]].

    offsets: int64, one more than there are strings. data: uint8. valid: a boolean per string, False for null; None if
    there are no nulls. An item is bytes, or None for null.
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


@dataclass(frozen=True, eq=False)
class HeadersColumn:
    """A column of record headers: record i has keys[j] and values[j] for j in range(offsets[i], offsets[i + 1]).

    An item is the list of (key, value) of one record.
    """

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


class RunSource(Protocol):
    """A source of runs to read columns from: `Records`, or some batches of them. Each call of `runs` begins anew."""

    topic_partition: TopicPartition | None
    max_decompressed_bytes: int

    @property
    def size_in_bytes(self) -> int: ...

    def runs(self, *, run_bytes: int, reuse_memory: bool) -> Iterator[BatchRun]: ...

    def with_source(self, error: KafkaFormatError) -> KafkaFormatError: ...


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
    source: RunSource,
    columns: Collection[str],
    *,
    verify: bool,
    control: bool,
    views: bool,
    large_offsets: bool,
    chunk_bytes: int,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield chunks of about `chunk_bytes` of decompressed records: the number of records, and their columns by name.

    A chunk has at least one record. The records before a damaged batch are yielded before its error is raised. Raises
    ValueError at once if `chunk_bytes` is below 1.
    """
    if chunk_bytes <= 0:
        raise ValueError(f"chunk_bytes: expected 1 or more, found {chunk_bytes}")
    builder = ColumnBuilder(
        columns,
        views=views,
        large_offsets=large_offsets,
        source_bytes=source.size_in_bytes,
        chunk_bytes=min(chunk_bytes, _MAX_RESERVED_BYTES),
    )
    return _filled(builder, source, chunk_bytes, verify=verify, control=control, reuse_memory=not views)


def _filled(
    builder: ColumnBuilder, source: RunSource, most: int, *, verify: bool, control: bool, reuse_memory: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the chunks of `_chunks`, of about `most` bytes each."""
    try:
        for run in source.runs(run_bytes=min(most, _RUN_BYTES), reuse_memory=reuse_memory):
            if not control:
                run = without_control(run, verify=verify)
            for first, stop, payloads in decompressed_chunks(
                run, verify=verify, limit=source.max_decompressed_bytes
            ):
                before = builder.size_in_bytes
                builder.add(run, first, stop, payloads, verify=verify)
                if 2 * builder.size_in_bytes - before > most:  # another addition of this size would not fit
                    yield builder.count, builder.take()
    except KafkaFormatError as error:
        if builder.count:
            yield builder.count, builder.take()
        raise source.with_source(error) from None
    if builder.count:
        yield builder.count, builder.take()


def to_numpy(
    source: RunSource, columns: Sequence[str] | None, *, verify: bool, control: bool
) -> dict[str, Column]:
    """Return the selected columns by name; None selects all but topic and partition.

    offset and timestamp (milliseconds, -1 for none) are int64, and timestampType is int32. key and value are
    `BinaryColumn`, and headers is a `HeadersColumn`. topic is an object array of str, and partition is int32.

    verify: check the CRC of every batch. control: include the records of control batches.

    Raises ValueError for unknown or repeated names, and for topic or partition if the records have no
    `topic_partition`. Raises KafkaFormatError for a damaged batch.
    """
    columns = _checked_for_numpy(source, columns)
    found = list(numpy_batches(source, columns, verify=verify, control=control, chunk_bytes=sys.maxsize))
    if found:
        return found[0]
    return numpy_columns(
        ColumnBuilder(columns, large_offsets=True).take(), columns, 0, source.topic_partition
    )


def numpy_batches(
    source: RunSource,
    columns: Sequence[str] | None = None,
    *,
    verify: bool = True,
    control: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[dict[str, Column]]:
    """Iterate what `to_numpy` returns in chunks of about `chunk_bytes` of decompressed records.

    This is faster than `to_numpy` if each chunk, with all its arrays, is dropped before the chunk after the next one is
    requested. Then its memory is used again, and stays in the processor's cache. Arrays that are kept do not change.
    The process keeps up to 32 MiB of such memory for the next reader.

    The records before a damaged batch are yielded before its error is raised. Raises ValueError and TypeError for
    wrong arguments at once.
    """
    columns = _checked_for_numpy(source, columns)
    chunks = _chunks(
        source,
        columns,
        verify=verify,
        control=control,
        views=False,
        large_offsets=True,
        chunk_bytes=chunk_bytes,
    )
    return (numpy_columns(arrays, columns, count, source.topic_partition) for count, arrays in chunks)


def _checked_for_numpy(source: RunSource, columns: Sequence[str] | None) -> Sequence[str]:
    columns = _checked(columns, _NUMPY_COLUMNS)
    if source.topic_partition is None and ("topic" in columns or "partition" in columns):
        raise ValueError("columns topic and partition: expected records with a topic_partition, found None")
    return columns


def numpy_columns(
    arrays: dict[str, Any], columns: Sequence[str], count: int, source: TopicPartition | None
) -> dict[str, Column]:
    """Return the arrays of a `ColumnBuilder` with 64-bit offsets as columns by name.

    count: the number of records. source: the partition for the columns topic and partition.
    """
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
    """Return the schema of `to_arrow`: the columns of Spark's Kafka source with its types. columns: None for all."""
    with needed_by("an Arrow table or batch", "arrow"):
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
    source: RunSource, columns: Sequence[str] | None, *, verify: bool, control: bool, views: bool
) -> pa.Table:
    """Return the selected columns, by default all, as a table with a chunk per 8 MiB of decompressed records.

    topic and partition are null if the records have no `topic_partition`. headers are null for a record without
    headers, as in Spark. Bytes of a header's key that are not UTF-8 become U+FFFD; `Record.headers` keeps them.

    verify: check the CRC of every batch. control: include the records of control batches. views: make keys and values
    Arrow binary views. They refer to the memory of the records or of their decompressed payloads, and keep it alive.

    Raises ValueError for unknown or repeated names, and KafkaFormatError for a damaged batch. Raises InvalidRecordError
    for a timestamp that does not fit into 64 bits in microseconds.
    """
    schema = arrow_schema(columns, views=views)
    import pyarrow as pa

    batches = arrow_batches(
        source, columns, verify=verify, control=control, views=views, chunk_bytes=ARROW_CHUNK_BYTES
    )
    return pa.Table.from_batches(batches, schema)


def arrow_batches(
    source: RunSource,
    columns: Sequence[str] | None = None,
    *,
    verify: bool = True,
    control: bool = False,
    views: bool = False,
    chunk_bytes: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Iterate what `to_arrow` returns in record batches of about `chunk_bytes` of decompressed records.

    `chunk_bytes` is 2 MiB by default, and 8 MiB with `views`. Memory of a batch that is no longer referenced is used
    again, as in `numpy_batches`.

    The records before a damaged batch are yielded before its error is raised. Raises ValueError and TypeError for
    wrong arguments at once.
    """
    if chunk_bytes is None:
        chunk_bytes = ARROW_CHUNK_BYTES if views else CHUNK_BYTES
    schema = arrow_schema(columns, views=views)
    chunks = _chunks(
        source,
        schema.names,
        verify=verify,
        control=control,
        views=views,
        large_offsets=False,
        chunk_bytes=chunk_bytes,
    )
    return _record_batches(chunks, schema, source, control=control)


def _record_batches(
    chunks: Iterator[tuple[int, dict[str, Any]]], schema: pa.Schema, source: RunSource, *, control: bool
) -> Iterator[pa.RecordBatch]:
    """Yield chunks as record batches. Before the error of a timestamp, yield the records before it."""
    for count, arrays in chunks:
        try:
            rows = record_batch(arrays, count, schema, source.topic_partition)
        except TimestampRangeError as error:
            beyond = beyond_arrow(arrays["timestamp"])
            if beyond[0]:
                arrays["timestamp"][beyond] = 0
                yield record_batch(arrays, count, schema, source.topic_partition)[: int(beyond[0])]
            raise source.with_source(_with_batch_of_timestamp(error, source, control=control)) from None
        yield rows


def record_batch(
    arrays: dict[str, Any], count: int, schema: pa.Schema, source: TopicPartition | None
) -> pa.RecordBatch:
    """Return the arrays of a `ColumnBuilder` as an Arrow record batch.

    arrays: the builder's arrays of the columns of `schema`, with 32-bit offsets. count: the number of records. source:
    the partition for the columns topic and partition, or None for nulls.
    """
    import pyarrow as pa

    return pa.record_batch([_arrow_column(arrays, count, field, source) for field in schema], schema=schema)


def _arrow_column(
    arrays: dict[str, Any], count: int, field: pa.Field, source: TopicPartition | None
) -> pa.Array:
    import pyarrow as pa

    from kafkafmt.columns import arrow

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
    """Convert milliseconds to microseconds, in place. Raises TimestampRangeError if one does not fit into 64 bits."""
    if len(beyond := beyond_arrow(timestamps)):
        raise range_error(timestamps[beyond[0]])
    return np.multiply(timestamps, _MICROSECONDS, out=timestamps)


def range_error(timestamp: int) -> TimestampRangeError:
    """Return the error of a timestamp in milliseconds that does not fit into 64 bits in microseconds."""
    return TimestampRangeError(
        f"timestamp for Arrow's microseconds: expected {-_MAX_MILLISECONDS} to {_MAX_MILLISECONDS} ms, "
        f"found {timestamp} ms; the other columns can be read"
    )


def beyond_arrow(timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows of timestamps that do not fit into 64 bits in microseconds."""
    if not len(timestamps) or -_MAX_MILLISECONDS <= timestamps.min() <= timestamps.max() <= _MAX_MILLISECONDS:
        return np.zeros(0, np.int64)
    return np.flatnonzero((timestamps > _MAX_MILLISECONDS) | (timestamps < -_MAX_MILLISECONDS))


def _with_batch_of_timestamp(
    error: KafkaFormatError, source: RunSource, *, control: bool
) -> KafkaFormatError:
    """Return an error with the position and the offsets of the first batch that has such a timestamp.

    The source is read once more, as chunks of columns do not know their batches.
    """
    builder = ColumnBuilder(["timestamp"], large_offsets=True)
    for run in source.runs(run_bytes=_RUN_BYTES, reuse_memory=False):
        for number in np.flatnonzero(control | ~run.index["is_control"]).tolist():
            batch = slice_run(run, number, number + 1)
            for first, stop, payloads in decompressed_chunks(
                batch, verify=False, limit=source.max_decompressed_bytes
            ):
                builder.add(batch, first, stop, payloads, verify=False)
            if len(beyond_arrow(builder.take()["timestamp"])):
                return with_batch(error, run, number)
    return error


def _arrow_headers(offsets: NDArray[np.int32], keys: Any, values: Any, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    from kafkafmt.columns.arrow import list_array, string_array, text_array

    if offsets[-1] == 0:
        return pa.nulls(len(offsets) - 1, kind)
    names = string_array(pa.binary(), *keys)
    try:
        names = names.cast(pa.string())
    except pa.ArrowInvalid:  # a key is not UTF-8: decode it as Java does
        names = text_array([key.decode("utf-8", "replace") for key in names.to_pylist()])
    pairs = pa.StructArray.from_arrays(
        [names, string_array(pa.binary(), *values)], fields=list(kind.value_type)
    )
    return list_array(kind, offsets, pairs)
