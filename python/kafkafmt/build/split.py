"""Split a batch that is too large (KIP-126): where Kafka splits it, or into parts whose sizes are measured.

The records are located once, and encoded from there part by part, without a Python object per record.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from _kafkafmt.wire.layout import MESSAGE_OVERHEAD_V0, MESSAGE_OVERHEAD_V1, RECORD_BATCH_OVERHEAD
from kafkafmt import codecs
from kafkafmt.build.builder import RecordBatchBuilder
from kafkafmt.errors import InvalidRecordError, RecordTooLargeError
from kafkafmt.records.batch import RecordBatch, only_batch
from kafkafmt.records.runs import with_batch
from kafkafmt.types import Codec, TimestampType, TooLargeRecord, check_int

if TYPE_CHECKING:
    from _kafkafmt.records.decode import LocatedRecords

# A part is not compressed again with more records if it is this full, or was compressed this many times.
_FULL = 0.97
_MAX_ATTEMPTS = 8
# A part that is less full is tried with one more record, whatever the expected compression ratio.
_NEARLY_FULL = 0.9
# If parts of `_FULL` would need one part more, they are filled further, up to this.
_MAX_FULL = 0.995

_OVERHEADS = (MESSAGE_OVERHEAD_V0, MESSAGE_OVERHEAD_V1, RECORD_BATCH_OVERHEAD)
_MAX_NAMED = 5


def split_batch(
    batch: RecordBatch, split_batch_size: int, *, estimated_ratio: float = 1.0, level: int | None = None
) -> list[RecordBatch]:
    """Split a batch where Kafka's producer splits it (KIP-126, ProducerBatch.split).

    A part ends before the record with which its estimated size would exceed `split_batch_size` bytes. A part has one
    record at least. Because sizes are estimated, a part may be larger than `split_batch_size`.

    estimated_ratio: the compression ratio for the estimate; Kafka uses 1.0 right after a split. level: the codec's
    compression level.

    The parts keep magic, codec, headers, timestamps and producer state. Their sequence numbers are consecutive and wrap
    at 2^31. Offsets begin at 0 in each part, because a broker assigns them.

    Raises RecordTooLargeError for a batch of fewer than two records, and what reading the batch raises. Raises
    InvalidRecordError for a timestamp below -1, which no builder accepts, as in Kafka, and ValueError for a level that
    the codec does not have.
    """
    _check_batch(batch)
    check_int("split_batch_size", split_batch_size, 0)
    codecs.check_level(batch.codec, level)
    located = batch.locate(verify=True)
    if len(located) < 2:
        message = f"batch to split: expected two records or more, found {len(located)} in {batch.size_in_bytes} bytes"
        raise with_batch(RecordTooLargeError(message), batch.run, batch.number)
    parts: list[RecordBatch] = []
    first = 0
    while first < len(located):
        builder = _builder_like(batch, first, level)
        builder.estimated_ratio = estimated_ratio
        builder.batch_size = max(builder.size_upper_bound(located, first), split_batch_size)
        first = _fill(builder, batch, located, first, len(located))
        parts.append(only_batch(builder.build()))
    return parts


def split_to_fit(batch: RecordBatch, max_size: int, *, level: int | None = None) -> list[RecordBatch]:
    """Split a batch into parts of at most `max_size` bytes each. These are measured sizes of compressed batches.

    All parts but the last are nearly full, as far as the sizes of records allow. A batch that fits is returned
    unchanged. The parts keep what those of `split_batch` keep. level: the codec's compression level.

    Raises RecordTooLargeError if a record is larger than `max_size` in a batch of its own. The error's `records` name
    such records. Its `parts` are the batches of the other records, with consecutive sequence numbers. Raises
    InvalidRecordError for a timestamp below -1 in a batch that does not fit, as `split_batch`. Raises ValueError for a
    `max_size` below 1 and for a level that the codec does not have, and what reading the batch raises.

    >>> from kafkafmt import MemoryRecords
    >>> builder = RecordBatchBuilder()
    >>> for number in range(100):
    ...     builder.append(0, None, b"value %d" % number)
    >>> (batch,) = MemoryRecords(builder.build()).batches()
    >>> [(part.count, part.size_in_bytes) for part in split_to_fit(batch, 700)]
    [(43, 696), (42, 691), (15, 286)]
    """
    _check_batch(batch)
    parts: list[RecordBatch] = []
    too_large: list[TooLargeRecord] = []
    for part in measured_parts(batch, max_size, level=level):
        if part.fits:
            parts.append(part.batch)
        else:
            too_large.append(TooLargeRecord(part.first, part.offset, part.batch.size_in_bytes))
    if too_large:
        named = ", ".join(
            f"record {index} at offset {offset} takes {size}"
            for index, offset, size in too_large[:_MAX_NAMED]
        )
        more = f", and {len(too_large) - _MAX_NAMED} more" if len(too_large) > _MAX_NAMED else ""
        message = f"batch to split: expected each record to fit into {max_size} bytes, found {named}{more}"
        error = RecordTooLargeError(message, records=too_large, parts=parts)
        raise with_batch(error, batch.run, batch.number)
    return parts


def _check_batch(batch: object) -> None:
    if not isinstance(batch, RecordBatch):
        raise TypeError(f"batch: expected a RecordBatch, found {type(batch).__name__}")


class MeasuredPart(NamedTuple):
    """A part of a batch, and the number and offset of its first record in that batch.

    fits: False for a part of one record that is larger than the size allowed.
    """

    batch: RecordBatch
    first: int
    offset: int
    fits: bool


def measured_parts(batch: RecordBatch, max_size: int, *, level: int | None = None) -> Iterator[MeasuredPart]:
    """Iterate the parts of `split_to_fit`, each built when it is requested. A record that is too large is its own part.

    Sequence numbers count only the records of parts that fit. Raises as `split_to_fit` does, except for records that
    are too large.
    """
    if max_size < 1:
        raise ValueError(f"max_size: expected 1 byte or more, found {max_size}")
    codecs.check_level(batch.codec, level)
    if batch.size_in_bytes <= max_size:
        return iter([MeasuredPart(batch, 0, batch.base_offset, True)])
    return iter(_MeasuredParts(batch, max_size, level))


class _Prefix(NamedTuple):
    """The first records of those that are left: up to number `stop`, and uncompressed byte `end`.

    size: the bytes of a batch of these records, compressed.
    """

    stop: int
    end: int
    size: int


class _Bracket:
    """The longest known prefix that fits and the shortest that does not; it estimates where a better one ends.

    Sizes are assumed to be linear between the two. While every prefix fits, sizes are extrapolated from the longest. If
    the same end moves twice in a row, the weight of the other is halved (the Illinois algorithm). Otherwise records
    that compress far better than those after them would need many attempts.
    """

    def __init__(self, nothing: _Prefix, max_size: int) -> None:
        self.nothing = self.longest = nothing
        self.shortest: _Prefix | None = None
        self._max_size = max_size
        self._moved_up: bool | None = None
        self._weight = 1.0

    def narrow(self, prefix: _Prefix) -> bool:
        """Narrow the bracket by a measured prefix; return whether the prefix fits."""
        fits = prefix.size <= self._max_size
        if fits:
            self.longest = prefix
        else:
            self.shortest = prefix
        self._weight = self._weight / 2 if fits is self._moved_up else 1.0
        self._moved_up = fits
        return fits

    def ratio_behind(self) -> float:
        """Return the expected compression ratio of the records right after the longest prefix that fits."""
        there, base = (self.shortest, self.longest) if self.shortest else (self.longest, self.nothing)
        return (there.size - base.size) / (there.end - base.end)

    def end_at(self, size: float) -> float:
        """Return the uncompressed byte where a prefix with a batch of `size` bytes is expected to end."""
        below = max(size - self.longest.size, 0.0)
        if self.shortest is None:
            return self.longest.end + below / self.ratio_behind()
        above = self.shortest.size - size
        if self._moved_up:
            above *= self._weight
        else:
            below *= self._weight
        return self.longest.end + (self.shortest.end - self.longest.end) * below / (below + above)


class _MeasuredParts:
    """Iterates the parts of a batch. It finds each part by building and measuring prefixes of the records left."""

    def __init__(self, batch: RecordBatch, max_size: int, level: int | None) -> None:
        self._batch = batch
        self._max_size = max_size
        self._level = level
        self._overhead = _OVERHEADS[batch.magic]
        self._located = batch.locate(verify=True)
        self._count = len(self._located)
        if not self._count:
            found = f"{batch.size_in_bytes} without records"
            message = f"batch to split: expected {max_size} bytes at most, found {found}"
            raise with_batch(RecordTooLargeError(message), batch.run, batch.number)
        self._ends = self._located.ends()
        self._ratio = (batch.size_in_bytes - self._overhead) / int(self._ends[-1])
        self._fitting = 0

    def __iter__(self) -> Iterator[MeasuredPart]:
        first = 0
        while first < self._count:
            data, stop = self._filled(first) if self._batch.codec == Codec.NONE else self._searched(first)
            fits = len(data) <= self._max_size
            yield MeasuredPart(only_batch(data), first, next(self._located.iterate(first)).offset, fits)
            self._fitting += stop - first if fits else 0
            first = stop

    def _filled(self, first: int) -> tuple[bytes, int]:
        """Return the uncompressed part that begins at `first`, and its stop number. Its size is known beforehand."""
        builder = _builder_like(self._batch, self._fitting, self._level)
        builder.batch_size = self._max_size
        stop = _fill(builder, self._batch, self._located, first, self._count)
        return builder.build(), stop

    def _searched(self, first: int) -> tuple[bytes, int]:
        """Return the compressed part that begins at `first`, and its stop number."""
        nothing = _Prefix(first, int(self._ends[first]), self._overhead)
        bracket = _Bracket(nothing, self._max_size)
        stop, enough = self._expected(first)
        data = found = b""
        for attempt in itertools.count(1):
            data = self._built(first, stop)
            if bracket.narrow(_Prefix(stop, int(self._ends[stop]), len(data))):
                found = data
            last = bracket.shortest.stop - 1 if bracket.shortest else self._count
            if bracket.longest.stop == last:
                break
            if found and (len(found) >= enough or attempt >= _MAX_ATTEMPTS or not self._may_grow(bracket)):
                break
            stop = self._stop_at(bracket.end_at((enough + self._max_size) / 2))
            stop = min(max(stop, bracket.longest.stop + 1), last)
        stop = bracket.longest.stop if found else first + 1
        self._ratio = (len(found or data) - self._overhead) / int(self._ends[stop] - self._ends[first])
        return found or data, stop

    def _may_grow(self, bracket: _Bracket) -> bool:
        """Return whether to try one more record: it is expected to fit, or the part is less than nearly full."""
        stop, end, size = bracket.longest
        if size < self._max_size * _NEARLY_FULL:
            return True
        record_size = int(self._ends[stop + 1]) - end
        return size + record_size * bracket.ratio_behind() <= self._max_size

    def _expected(self, first: int) -> tuple[int, float]:
        """Return the expected stop number of the next part, and the size in bytes that is full enough for it.

        Both follow from the compression ratio of the last part.
        """
        room = max(self._max_size - self._overhead, 1)
        rest = int(self._ends[-1] - self._ends[first]) * self._ratio
        if rest <= room:
            return self._count, self._max_size * _FULL
        enough = self._max_size * min(max(rest / room / math.ceil(rest / room), _FULL), _MAX_FULL)
        aim = (enough + self._max_size) / 2 - self._overhead
        return max(self._stop_at(int(self._ends[first]) + aim / self._ratio), first + 1), enough

    def _stop_at(self, end: float) -> int:
        """Return the number of records that end at or before the uncompressed byte `end`."""
        return int(self._ends.searchsorted(int(min(end, self._ends[-1])), side="right")) - 1

    def _built(self, first: int, stop: int) -> bytes:
        builder = _builder_like(self._batch, self._fitting, self._level)
        _fill(builder, self._batch, self._located, first, stop)
        return builder.build()


def _fill(
    builder: RecordBatchBuilder, batch: RecordBatch, located: LocatedRecords, first: int, stop: int
) -> int:
    try:
        return builder.fill_located(located, first, stop)
    except ValueError as error:  # a record of the batch has values that no builder accepts
        raise with_batch(InvalidRecordError(str(error)), batch.run, batch.number) from None


def _builder_like(batch: RecordBatch, done: int, level: int | None) -> RecordBatchBuilder:
    """Return a builder for a part whose first sequence number is `done` after that of the batch."""
    sequence = batch.base_sequence
    return builder_like(
        batch,
        magic=batch.magic,
        codec=batch.codec,
        level=level,
        base_sequence=(sequence + done) & 0x7FFFFFFF if sequence >= 0 else sequence,
        is_control=batch.is_control,
    )


def builder_like(
    batch: RecordBatch,
    *,
    magic: int,
    codec: Codec,
    level: int | None = None,
    base_offset: int = 0,
    last_offset: int | None = None,
    base_sequence: int,
    is_control: bool = False,
) -> RecordBatchBuilder:
    """Return a builder with the timestamp type, delete horizon, leader epoch and producer of a batch.

    Raises InvalidRecordError if a builder does not accept these values.
    """
    is_log_append = batch.timestamp_type == TimestampType.LOG_APPEND_TIME
    try:
        return RecordBatchBuilder(
            magic,
            codec,
            level=level,
            base_offset=base_offset,
            last_offset=last_offset,
            timestamp_type=TimestampType.LOG_APPEND_TIME if is_log_append else TimestampType.CREATE_TIME,
            log_append_time=batch.max_timestamp if is_log_append else None,
            delete_horizon_ms=batch.delete_horizon_ms,
            partition_leader_epoch=batch.partition_leader_epoch,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=base_sequence,
            is_transactional=batch.is_transactional,
            is_control=is_control,
        )
    except ValueError as error:
        raise with_batch(InvalidRecordError(str(error)), batch.run, batch.number) from None
