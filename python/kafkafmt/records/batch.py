"""One record batch: its header fields, its records, and the batch without its first records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from _kafkafmt.batches.batch_header import BatchHeader
from _kafkafmt.batches.scan import scan
from _kafkafmt.records.decode import LocatedRecords
from _kafkafmt.records.encode import encode_records, seal_batch
from _kafkafmt.wire.layout import RECORD_BATCH_OVERHEAD
from kafkafmt import codecs
from kafkafmt.errors import (
    CorruptRecordError,
    InvalidRecordError,
    UnsupportedCompressionTypeError,
    UnsupportedVersionError,
)
from kafkafmt.records.decoding import ascending_offsets, locate
from kafkafmt.records.runs import with_batch
from kafkafmt.types import Codec, TimestampType, check_int

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from _kafkafmt.batches.scan import BatchRun
    from _kafkafmt.records.decode import Record


class RecordBatch(BatchHeader):
    """A record batch (v2), or a message of format v0 or v1: a single message, or a wrapper of compressed messages.

    Attributes are named as in Kafka's documentation. -1 means none for `producer_id`, `producer_epoch`,
    `base_sequence`, `last_sequence`, `partition_leader_epoch` and `max_timestamp`. `delete_horizon_ms` is None
    if it is not set. `position` is the batch's byte position in its source.

    Iterating checks the CRC and yields the records. It raises CorruptRecordError, InvalidRecordError,
    UnsupportedCompressionTypeError or DecompressionLimitError.
    """

    __slots__ = ("_located", "_max_decompressed_bytes")

    def __init__(
        self, run: BatchRun, number: int, max_decompressed_bytes: int = codecs.DEFAULT_MAX_DECOMPRESSED_BYTES
    ) -> None:
        super().__init__(run, number)
        self._max_decompressed_bytes = max_decompressed_bytes
        self._located: LocatedRecords | None = None

    @property
    def buffer(self) -> memoryview:
        """The bytes of the batch, as a view into the source."""
        return self.run.batch(self.number)

    @property
    def codec(self) -> Codec:
        """The codec of the batch. Raises UnsupportedCompressionTypeError for the ids 5 to 7, which no codec has."""
        number = int(self.run.index["codec"][self.number])
        if number > Codec.ZSTD:
            message = f"codec: expected 0 to {int(Codec.ZSTD)}, found {number}"
            raise with_batch(UnsupportedCompressionTypeError(message), self.run, self.number)
        return Codec(number)

    @property
    def timestamp_type(self) -> TimestampType:
        """The timestamp type of the batch; NO_TIMESTAMP in format v0."""
        return TimestampType(int(self.run.index["timestamp_type"][self.number]))

    @property
    def base_offset(self) -> int:
        """The offset of the first record. For a v0/v1 wrapper, the first access decompresses the payload."""
        if self._is_wrapper:
            return int(self._wrapped().offsets()[0])
        return super().base_offset

    @property
    def count(self) -> int:
        """The number of records. For a v0/v1 wrapper, the first access decompresses the payload."""
        return len(self._wrapped()) if self._is_wrapper else super().count

    @property
    def _is_wrapper(self) -> bool:
        return self.magic < 2 and super().count < 0

    def _wrapped(self) -> LocatedRecords:
        if self._located is None:
            self._located = self.locate(verify=False)
        return self._located

    def locate(self, *, verify: bool, strict: bool = False) -> LocatedRecords:
        """Locate the records in the batch, or in its decompressed payload; see `decoding.locate`."""
        limit = self._max_decompressed_bytes
        return locate(self.run, self.number, self.number + 1, verify=verify, limit=limit, strict=strict)

    def is_valid(self) -> bool:
        """Return whether `ensure_valid` finds no damage.

        Raises UnsupportedCompressionTypeError or DecompressionLimitError if a wrapper cannot be decompressed.
        """
        try:
            self.ensure_valid()
        except (CorruptRecordError, InvalidRecordError):
            return False
        return True

    def ensure_valid(self) -> None:
        """Raise CorruptRecordError if the CRC does not match.

        A v0/v1 wrapper is decompressed, and its messages are checked. Raises CorruptRecordError if the CRC of a
        message does not match, and InvalidRecordError if the payload is not whole messages. Raises
        UnsupportedCompressionTypeError or DecompressionLimitError if the wrapper cannot be decompressed.
        """
        self.run.ensure_valid(self.number, self.number + 1)
        if self._is_wrapper:
            self.locate(verify=False, strict=True)

    def __repr__(self) -> str:
        base = (
            "" if self._is_wrapper else f"base_offset={self.base_offset}, "
        )  # the base offset of a wrapper would need a decompression
        number = int(self.run.index["codec"][self.number])
        codec = Codec(number).name if number <= Codec.ZSTD else number
        return (
            f"RecordBatch(magic={self.magic}, {base}last_offset={self.last_offset}, codec={codec}, "
            f"timestamp_type={self.timestamp_type.name}, size_in_bytes={self.size_in_bytes}, position={self.position})"
        )

    def __reduce__(self) -> tuple[Callable[..., RecordBatch], tuple[bytes, int, int]]:
        """Pickle this batch with its own bytes, without the rest of its run."""
        return only_batch, (bytes(self), self.position, self._max_decompressed_bytes)

    def __bytes__(self) -> bytes:
        return bytes(self.buffer)

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def records(self, *, verify: bool = True) -> Iterator[Record]:
        """Iterate the records. Without `verify` the CRC is not checked, so that a damaged batch can be read.

        Raises as iterating the batch does.
        """
        return iter(self.locate(verify=verify))

    def trim(self, first_offset: int) -> RecordBatch:
        """Return the batch without the records below `first_offset` (KIP-712: a fetch from the middle of a batch).

        The result keeps offsets, codec and producer state; its base offset is that of its first record. If no record
        is left, the result is empty and its base offset is `first_offset`. If the batch begins at `first_offset` or
        above, the result is this batch itself. A batch whose first records were compacted away begins below them.

        Raises UnsupportedVersionError for a batch below v2, ValueError if the batch ends before `first_offset`, and
        as iterating the batch does.
        """
        check_int("first_offset", first_offset)
        if first_offset <= self.base_offset:
            return self
        if self.magic < 2:
            message = f"trim: expected a batch of format v2, found v{self.magic}"
            raise with_batch(UnsupportedVersionError(message), self.run, self.number)
        if first_offset > self.last_offset:
            raise ValueError(f"first_offset: expected {self.last_offset} at most, found {first_offset}")
        located = self.locate(verify=True)
        first = located.first_at_or_above(first_offset)
        header = self.run.index[self.number : self.number + 1].copy()
        offsets = ascending_offsets(located, self.run, self.number)[first:]
        timestamps = located.timestamps()[first:]
        if len(offsets) and offsets[-1] > self.last_offset:
            message = (
                f"offset of the last record: expected {self.last_offset} at the most, found {offsets[-1]}"
            )
            raise with_batch(InvalidRecordError(message), self.run, self.number)
        base_offset = int(offsets[0]) if len(offsets) else first_offset
        if self.last_offset - base_offset >= 2**31:  # the header has a last offset delta below 0, and wrapped
            message = f"last offset: expected {base_offset} or less than 2^31 more, found {self.last_offset}"
            raise with_batch(InvalidRecordError(message), self.run, self.number)
        keeps_base = self.delete_horizon_ms is not None or not len(offsets)
        base_timestamp = self.base_timestamp if keeps_base else int(timestamps[0])
        batch = encode_records(located, first, len(located), base_offset, base_timestamp)
        if self.base_sequence >= 0:
            header["base_sequence"] = (self.base_sequence + base_offset - self.base_offset) & 0x7FFFFFFF
        header["base_offset"], header["base_timestamp"] = base_offset, base_timestamp
        header["count"] = len(offsets)
        if self.timestamp_type == TimestampType.CREATE_TIME and len(offsets):
            header["max_timestamp"] = timestamps.max()
        return only_batch(seal(batch, header, self.codec))


def seal(batch: bytearray, header: NDArray[np.void], codec: Codec, level: int | None = None) -> bytearray:
    """Return a v2 batch of encoded records: compress them, and write the header that the index row describes.

    batch: space for the header, followed by the uncompressed records. header: one row of an index; its codec is set.
    Raises ValueError for a level that the codec does not have.
    """
    if codec != Codec.NONE and header["count"][0]:
        records = memoryview(batch)[RECORD_BATCH_OVERHEAD:]
        batch = bytearray(RECORD_BATCH_OVERHEAD) + codecs.compress(codec, records, level=level)
    header["codec"] = codec
    seal_batch(batch, header)
    return batch


def only_batch(
    data: Buffer, position: int = 0, max_decompressed_bytes: int = codecs.DEFAULT_MAX_DECOMPRESSED_BYTES
) -> RecordBatch:
    """Return the batch that `data` contains. position: the batch's byte position in its source."""
    run, *_ = scan(memoryview(data).toreadonly(), position)
    return RecordBatch(run, 0, max_decompressed_bytes)
