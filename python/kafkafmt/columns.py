"""Records as columns, without an object a record: numpy arrays, or an Arrow table as Spark's Kafka source has it.

Both are built by the kernel's `ColumnBuilder`, chunk by chunk; a column that is not asked for is never built.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from _kafkafmt.columns import ColumnBuilder
from kafkafmt.decoding import Payloads, groups
from kafkafmt.errors import InvalidRecordError, KafkaFormatError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from _kafkafmt.scan import BatchRun
    from kafkafmt.records import Records
    from kafkafmt.types import TopicPartition

# As Spark's Kafka source names and orders them.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
_NUMPY_COLUMNS = tuple(name for name in COLUMNS if name not in ("topic", "partition"))
# What one chunk is made of, decompressed. Arrow's are large enough for the next stage to be busy and small
# enough to be held in number; numpy's stay below the 2 GiB that 32-bit offsets reach.
ARROW_CHUNK_BYTES = 8 * 1024 * 1024
_NUMPY_CHUNK_BYTES = 1024 * 1024 * 1024
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

    @classmethod
    def _joined(cls, parts: list[BinaryColumn]) -> BinaryColumn:
        if len(parts) == 1:
            return parts[0]
        valid = None
        if any(part.valid is not None for part in parts):
            valid = np.concatenate([np.ones(len(p), np.bool_) if p.valid is None else p.valid for p in parts])
        data = np.concatenate([np.empty(0, np.uint8), *(part.data for part in parts)])
        return cls(_joined_offsets([part.offsets for part in parts]), data, valid)


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

    @classmethod
    def _joined(cls, parts: list[HeadersColumn]) -> HeadersColumn:
        return cls(
            _joined_offsets([part.offsets for part in parts]),
            BinaryColumn._joined([part.keys for part in parts]),
            BinaryColumn._joined([part.values for part in parts]),
        )


Column: TypeAlias = "NDArray[Any] | BinaryColumn | HeadersColumn"


def _joined_offsets(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    lengths = [np.diff(part) for part in parts]
    offsets = np.zeros(sum(map(len, lengths)) + 1, np.int64)
    if lengths:
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return offsets


def _checked(columns: Sequence[str] | None, known: Sequence[str]) -> Sequence[str]:
    if columns is None:
        return known
    if isinstance(columns, str):
        raise TypeError(f"columns: expected a sequence of names, found the string {columns!r}")
    wrong = [name for name in columns if name not in COLUMNS or list(columns).count(name) > 1]
    if wrong:
        raise ValueError(f"columns: expected distinct ones of {', '.join(COLUMNS)}, found {', '.join(wrong)}")
    return columns


def _built(
    records: Records, columns: Collection[str], *, verify: bool, views: bool, chunk_bytes: int
) -> Iterator[ColumnBuilder]:
    """Columns of about `chunk_bytes` of decompressed records at a time; before an error, what came before it."""
    builder = ColumnBuilder(columns, views=views)
    limit = records.max_decompressed_bytes
    try:
        for run in records.runs():
            for first, stop, payloads in groups(run, verify=verify, limit=limit):
                expected = (
                    1.0 if builder.count else _expected(records, run, first, stop, payloads, chunk_bytes)
                )
                builder.add(run, first, stop, payloads, verify=verify, expected=expected)
                if builder.size_in_bytes >= chunk_bytes:
                    yield builder
                    builder = ColumnBuilder(columns, views=views)
    except KafkaFormatError as error:
        if builder.count:
            yield builder
        raise records.described(error) from None
    if builder.count:
        yield builder


def _expected(
    records: Records,
    run: BatchRun,
    first: int,
    stop: int,
    payloads: Payloads,
    chunk_bytes: int,
) -> float:
    """How many times as much as this group the chunk will hold, a little spare added."""
    source = int(run.index["size"][first:stop].sum())
    decompressed = source if payloads is None else sum(len(p) for p in payloads if p is not None)
    groups_left = records.size_in_bytes / max(source, 1)
    return 1.05 * min(groups_left, (chunk_bytes + decompressed) / max(decompressed, 1))


def to_numpy(records: Records, columns: Sequence[str] | None, *, verify: bool) -> dict[str, Column]:
    """One entry a column.

    offset and timestamp (milliseconds, -1 for none) are int64, timestampType int32, key and value
    `BinaryColumn`, headers `HeadersColumn`. topic (an object array of str) and partition (int32) only where
    they are asked for: ValueError where the records do not know them.
    """
    columns = _checked(columns, _NUMPY_COLUMNS)
    source = records.topic_partition
    if source is None and ("topic" in columns or "partition" in columns):
        raise ValueError("topic and partition are not known: give the records a topic_partition")
    parts: dict[str, list[Any]] = {name: [] for name in columns}
    count = 0
    for built in _built(records, columns, verify=verify, views=False, chunk_bytes=_NUMPY_CHUNK_BYTES):
        count += built.count
        for name, arrays in built.take().items():
            if name in parts:
                parts[name].append(_numpy_column(name, arrays))
    return {name: _joined_column(name, parts[name], count, source) for name in columns}


def _numpy_column(name: str, arrays: Any) -> Any:
    if name == "headers":
        offsets, keys, values = arrays
        return HeadersColumn(offsets.astype(np.int64), _binary_column(keys), _binary_column(values))
    return _binary_column(arrays) if name in ("key", "value") else arrays


def _binary_column(
    arrays: tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.bool_] | None],
) -> BinaryColumn:
    offsets, data, valid = arrays
    return BinaryColumn(offsets.astype(np.int64), data, valid)


def _joined_column(name: str, parts: list[Any], count: int, source: TopicPartition | None) -> Any:
    if name == "topic" and source is not None:
        return np.full(count, source.topic, object)
    if name == "partition" and source is not None:
        return np.full(count, source.partition, np.int32)
    if name == "headers":
        return HeadersColumn._joined(parts)
    if name in ("key", "value"):
        return BinaryColumn._joined(parts)
    return np.concatenate([np.empty(0, np.int32 if name == "timestampType" else np.int64), *parts])


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


def to_arrow(records: Records, columns: Sequence[str] | None, *, verify: bool, views: bool) -> pa.Table:
    """A table with a chunk for every few megabytes of records.

    topic and partition are null where the records do not know them; headers are null where a record has none,
    as in Spark. With `views` keys and values are Arrow binary views that point into the records' own memory,
    or into that of their decompressed payloads, and keep it alive.
    """
    import pyarrow as pa

    schema = arrow_schema(columns, views=views)
    batches = arrow_batches(records, columns, verify=verify, views=views)
    return pa.Table.from_batches(batches, schema)


def arrow_batches(
    records: Records,
    columns: Sequence[str] | None = None,
    *,
    verify: bool = True,
    views: bool = False,
    chunk_bytes: int = ARROW_CHUNK_BYTES,
) -> Iterator[pa.RecordBatch]:
    """What `to_arrow` returns, batch by batch, of about `chunk_bytes` each, so that no more need be held."""
    import pyarrow as pa

    schema = arrow_schema(columns, views=views)
    for built in _built(records, schema.names, verify=verify, views=views, chunk_bytes=chunk_bytes):
        arrays = built.take()
        columns_of = [_arrow_column(arrays, built.count, field, records.topic_partition) for field in schema]
        yield pa.record_batch(columns_of, schema=schema)


def _arrow_column(
    arrays: dict[str, Any], count: int, field: pa.Field, source: TopicPartition | None
) -> pa.Array:
    import pyarrow as pa

    name, kind = field.name, field.type
    if name in ("topic", "partition"):
        if source is None:
            return pa.nulls(count, kind)
        return pa.repeat(pa.scalar(source.topic if name == "topic" else source.partition, kind), count)
    if name == "timestamp":
        return pa.array(_microseconds(arrays[name])).cast(kind)
    if name == "headers":
        offsets, keys, values = arrays[name]
        return _arrow_headers(offsets, keys, values, kind)
    if name not in ("key", "value"):
        return pa.array(arrays[name])
    if kind == pa.binary():
        return _arrow_binary(kind, *arrays[name])
    views, valid = arrays[name]
    buffers = map(pa.py_buffer, [views, *arrays["buffers"]])
    return pa.Array.from_buffers(kind, count, [_bitmap(valid), *buffers])


def _microseconds(timestamps: NDArray[np.int64]) -> NDArray[np.int64]:
    beyond = (timestamps > _MOST_MILLISECONDS) | (timestamps < -_MOST_MILLISECONDS)
    if beyond.any():
        raise InvalidRecordError(
            f"timestamp for Arrow's microseconds: expected {_MOST_MILLISECONDS} ms at the most, "
            f"found {timestamps[beyond][0]} ms"
        )
    return timestamps * _MICROSECONDS


def _arrow_binary(
    kind: pa.DataType, offsets: NDArray[np.int32], data: NDArray[np.uint8], valid: NDArray[np.bool_] | None
) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(
        kind, len(offsets) - 1, [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _arrow_headers(offsets: NDArray[np.int32], keys: Any, values: Any, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    names = _arrow_binary(pa.binary(), *keys)
    try:
        names = names.cast(pa.string())
    except pa.ArrowInvalid:  # a key that is not UTF-8: as Java decodes it
        names = pa.array([key.decode("utf-8", "replace") for key in names.to_pylist()], pa.string())
    pairs = pa.StructArray.from_arrays(
        [names, _arrow_binary(pa.binary(), *values)], fields=list(kind.value_type)
    )
    present = np.diff(offsets) > 0
    bitmap = None if present.all() else _bitmap(present)
    return pa.Array.from_buffers(kind, len(present), [bitmap, pa.py_buffer(offsets)], children=[pairs])


def _bitmap(valid: NDArray[np.bool_] | None) -> pa.Buffer | None:
    import pyarrow as pa

    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
