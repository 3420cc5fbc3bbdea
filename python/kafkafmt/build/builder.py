"""Build record batches, record by record or from columns."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypedDict

from _kafkafmt.records.build import RecordEncoder
from kafkafmt import codecs
from kafkafmt.columns.write import column_rows
from kafkafmt.types import Codec, CodecLike, TimestampType, as_codec, check_int, milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import Unpack

    from _kafkafmt.columns.column_rows import ColumnRows
    from _kafkafmt.streams.merge import MergedRecords
    from kafkafmt.columns.write import Binary, Headers, Offsets, Timestamps

DEFAULT_BATCH_SIZE = 16 * 1024
DEFAULT_CAPACITY = 4096
MAX_CAPACITY = 2**31 - 1


class RecordBatchBuilder(RecordEncoder):
    """Builds a record batch (v2), or a message set of format v0 or v1: a wrapper if compressed, else single messages.

    codec: a `Codec`, or its name. level: the codec's compression level, if it has levels.
    log_append_time: the timestamp of all records; required with timestamp_type LOG_APPEND_TIME, and only then.
    delete_horizon_ms: the delete horizon, which is stored in place of the base timestamp; v2 only.
    last_offset: the last offset of the batch, if that is after its last record, as compaction leaves it; v2 only. With
        it a batch may have no records.
    partition_leader_epoch, producer_id, producer_epoch, base_sequence, is_transactional, is_control: v2 only.
    batch_size: the limit of `has_room_for`, in bytes.
    estimated_ratio: the compression ratio for `estimated_size`.
    contingency_factor: multiplies the ratio, in case it is too low (KIP-126).
    capacity: the memory at the start, in bytes; `try_append` does not grow it.

    Times are milliseconds since the epoch, or aware datetimes.

    Raises ValueError for what Kafka's MemoryRecordsBuilder refuses:
    - a timestamp type that is not CREATE_TIME or LOG_APPEND_TIME, in v1 and v2;
    - a producer id without an epoch, or without a base sequence unless the batch is a control batch;
    - a transactional batch without a producer id.

    >>> builder = RecordBatchBuilder(codec="lz4")
    >>> builder.append(1_700_000_000_000, b"key", b"value", [("trace", b"1")])
    >>> len(builder.build()) > 61
    True
    >>> builder
    RecordBatchBuilder(magic=2, codec=LZ4, timestamp_type=CREATE_TIME, base_offset=0, records=1, size_in_bytes=23)
    """

    def __init__(
        self,
        magic: int = 2,
        codec: CodecLike = Codec.NONE,
        *,
        level: int | None = None,
        base_offset: int = 0,
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        log_append_time: int | datetime | None = None,
        delete_horizon_ms: int | datetime | None = None,
        last_offset: int | None = None,
        partition_leader_epoch: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
        is_control: bool = False,
        batch_size: int | None = None,
        estimated_ratio: float = 1.0,
        contingency_factor: float = 1.05,
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        check_int("magic", magic, 0, 2)
        check_int("base_offset", base_offset)
        check_int("timestamp_type", timestamp_type)
        check_int("partition_leader_epoch", partition_leader_epoch, -(2**31), 2**31 - 1)
        check_int("producer_id", producer_id)
        check_int("producer_epoch", producer_epoch, -(2**15), 2**15 - 1)
        check_int("base_sequence", base_sequence, -(2**31), 2**31 - 1)
        check_int("capacity", capacity, 0, MAX_CAPACITY)
        if batch_size is not None:
            check_int("batch_size", batch_size, 0)
        if last_offset is not None:
            check_int("last_offset", last_offset)
        codec = as_codec(codec)
        codecs.check_level(codec, level)
        log_append_time = _optional_milliseconds("log_append_time", log_append_time)
        delete_horizon_ms = _optional_milliseconds("delete_horizon_ms", delete_horizon_ms)
        is_log_append = timestamp_type == TimestampType.LOG_APPEND_TIME
        if is_log_append != (log_append_time is not None):
            raise ValueError(
                "log_append_time: expected a time with timestamp_type LOG_APPEND_TIME, and None otherwise"
            )
        if magic < 2 and (
            is_transactional
            or is_control
            or delete_horizon_ms is not None
            or {partition_leader_epoch, producer_id, producer_epoch, base_sequence} != {-1}
        ):
            raise ValueError(
                "leader epoch, producer state, control and delete horizon need message format v2, "
                f"not v{magic}"
            )
        if magic < 2 and codec == Codec.ZSTD:
            raise ValueError(f"zstd needs message format v2, not v{magic}")
        if magic == 0 and is_log_append:
            raise ValueError("message format v0 has no timestamps")
        if last_offset is not None and (magic < 2 or not 0 <= last_offset - base_offset < 2**31):
            raise ValueError(
                f"last_offset: expected {base_offset} to {base_offset + 2**31 - 1}, in format v2, "
                f"found {last_offset}"
            )
        super().__init__(
            magic,
            codec,
            base_offset,
            timestamp_type=timestamp_type,
            log_append_time=-1 if log_append_time is None else log_append_time,
            base_timestamp=delete_horizon_ms,
            last_offset=last_offset,
            partition_leader_epoch=partition_leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            is_transactional=is_transactional,
            is_control=is_control,
            batch_size=batch_size,
            estimated_ratio=estimated_ratio,
            contingency_factor=contingency_factor,
            capacity=capacity,
        )
        self._level = level
        self._is_control = is_control
        self._is_transactional = is_transactional
        self._timestamp_type = TimestampType(timestamp_type)
        self._may_be_empty = last_offset is not None

    def __repr__(self) -> str:
        return (
            f"RecordBatchBuilder(magic={self.magic}, codec={self.codec.name}, "
            f"timestamp_type={self._timestamp_type.name}, base_offset={self.base_offset}, records={len(self)}, "
            f"size_in_bytes={self.size_in_bytes})"
        )

    def append_columns(
        self,
        timestamps: Timestamps,
        keys: Binary,
        values: Binary,
        headers: Headers = None,
        offsets: Offsets = None,
    ) -> None:
        """Append a record for each entry of the columns, at the next offsets, or at `offsets`.

        timestamps: int64 milliseconds, -1 for none, as a numpy or Arrow array; or Arrow timestamps of any unit, which
            are rounded down to milliseconds.
        keys, values: `BinaryColumn`, or Arrow arrays of a binary or string type; None if all are null.
        headers: `HeadersColumn`, or an Arrow array of lists of structs of key and value, as in `to_arrow`; None for no
            headers; v2 only.
        offsets: int64, ascending.

        The columns that `to_numpy` and `to_arrow` return are accepted. Arrow arrays may be chunked. `batch_size` is
        ignored here; `build_batches` observes it.

        Raises TypeError for columns of other types, ValueError if lengths differ or a column's offsets are not within
        its data, and as `append` does. Then no record is appended.
        """
        self._append_columns(column_rows(timestamps, keys, values, headers, offsets))

    def append_end_transaction_marker(
        self, timestamp: int | datetime, *, commit: bool, coordinator_epoch: int = 0
    ) -> None:
        """Append the record of a control batch that ends a transaction (KIP-98, "Control Messages").

        Raises ValueError unless the batch is a control batch and transactional, and as `append` does.
        """
        if not (self._is_control and self._is_transactional):
            found = f"is_control={self._is_control} and is_transactional={self._is_transactional}"
            raise ValueError(
                f"a transaction marker: expected a batch with is_control=True and is_transactional=True, found {found}"
            )
        if commit not in (True, False):
            raise ValueError(f"commit: expected True or False, found {commit!r}")
        check_int("coordinator_epoch", coordinator_epoch, -(2**31), 2**31 - 1)
        self.append(timestamp, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, coordinator_epoch))

    def build(self) -> bytes:
        """Return the bytes of the batch; empty if there are no records and no `last_offset`.

        Raises RuntimeError while another thread appends or builds, and `append` raises it while this runs.
        """
        if not len(self) and not self._may_be_empty:
            return b""
        return self._build(None if self.codec == Codec.NONE else self._compress)

    def _compress(self, records: memoryview) -> bytes:
        return codecs.compress(self.codec, records, level=self._level, magic=self.magic)


def build_writable(builder: RecordBatchBuilder) -> bytearray:
    """Return the bytes of a v2 batch that has records, as `build` does, in memory that the caller may change."""
    return builder._build(None if builder.codec == Codec.NONE else builder._compress, True)


def empty_copy(
    builder: RecordBatchBuilder,
    *,
    batch_size: int | None,
    estimated_ratio: float,
    contingency_factor: float,
    capacity: int,
) -> RecordBatchBuilder:
    """Return a builder without records and with the other options of `builder`. It is faster than the constructor."""
    made = builder._empty(batch_size, estimated_ratio, contingency_factor, capacity)
    made.__dict__.update(builder.__dict__)
    return made


def _optional_milliseconds(name: str, value: int | datetime | None) -> int | None:
    if value is None:
        return None
    time = milliseconds(value, name)
    check_int(name, time)
    return time


class BatchOptions(TypedDict, total=False):
    """The options of `RecordBatchBuilder` that many batches can share."""

    magic: int
    codec: CodecLike
    level: int | None
    base_offset: int
    timestamp_type: TimestampType
    log_append_time: int | datetime | None
    delete_horizon_ms: int | datetime | None
    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    estimated_ratio: float
    contingency_factor: float


class BatchesBuilder:
    """Builds batches of at most `batch_size` bytes from columns that are added over several calls.

    A batch may contain records of several calls. `build_batches` documents the options, and where a batch ends.
    """

    def __init__(self, *, batch_size: int = DEFAULT_BATCH_SIZE, **options: Unpack[BatchOptions]) -> None:
        wrong = options.keys() - BatchOptions.__annotations__.keys()
        if wrong:
            raise TypeError(
                f"options: expected options that many batches can share, found {', '.join(sorted(wrong))}"
            )
        self._builder = RecordBatchBuilder(batch_size=batch_size, **options)

    @property
    def size_in_bytes(self) -> int:
        """The uncompressed bytes of the records in the batch that is not finished."""
        return self._builder.size_in_bytes

    def add(
        self,
        timestamps: Timestamps,
        keys: Binary,
        values: Binary,
        headers: Headers = None,
        offsets: Offsets = None,
    ) -> Iterator[bytes]:
        """Add the records of columns, and iterate the batches that they complete.

        The batches are built as they are requested: iterate to the end, or records are missing. Raises as
        `build_batches` does.
        """
        return self._ended(column_rows(timestamps, keys, values, headers, offsets))

    def add_rows(self, rows: ColumnRows, first: int, stop: int) -> Iterator[bytes]:
        """Add the records from `first` to `stop` of `ColumnRows`, as `add` does."""
        while (first := self._builder.fill(rows, first, stop)) < stop:
            yield self.finish()

    def fill_merged(self, merged: MergedRecords, first: int) -> int:
        """Add records of other batches from number `first` on, at consecutive offsets, until the batch is full.

        Returns the number of the first record that was not added. If records are left, call `finish`, and call this
        again from that number. Raises ValueError if record `first` cannot be in any batch.
        """
        return self._builder.fill_merged(merged, first)

    def finish(self) -> bytes:
        """Build the batch that is not finished, and return it; empty bytes if it has no records.

        The next batch continues its offsets and sequence numbers.
        """
        if not len(self._builder):
            return b""
        batch = self._builder.build()
        self._builder._begin_next()
        return batch

    def _ended(self, parts: list[ColumnRows]) -> Iterator[bytes]:
        for rows in parts:
            yield from self.add_rows(rows, 0, len(rows))


def build_batches(
    timestamps: Timestamps,
    keys: Binary,
    values: Binary,
    headers: Headers = None,
    offsets: Offsets = None,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
    **options: Unpack[BatchOptions],
) -> Iterator[bytes]:
    """Build batches of at most `batch_size` bytes from the records of columns.

    The columns are those of `RecordBatchBuilder.append_columns`. The options are those of `RecordBatchBuilder`, except
    `is_control` and `last_offset`. A batch ends before the first record that `has_room_for` refuses. With a codec that
    method estimates by `estimated_ratio`. A record that is larger than `batch_size` is alone in its batch.

    `base_offset` and `base_sequence` are those of the first batch; later batches continue them. With `offsets` each
    batch begins at the offset of its first record. No offset may be below `base_offset`.

    Raises TypeError and ValueError at once for columns of wrong types or lengths, and for single entries when their
    batch is built.

    >>> import numpy as np
    >>> from kafkafmt import BinaryColumn
    >>> values = BinaryColumn(np.arange(101) * 10, np.zeros(1000, np.uint8), None)
    >>> [len(batch) for batch in build_batches(np.zeros(100, np.int64), None, values, batch_size=1024)]
    [1013, 809]
    """
    builder = BatchesBuilder(batch_size=batch_size, **options)
    return _whole(builder, builder.add(timestamps, keys, values, headers, offsets))


def _whole(builder: BatchesBuilder, ended: Iterator[bytes]) -> Iterator[bytes]:
    yield from ended
    last = builder.finish()
    if last:
        yield last
