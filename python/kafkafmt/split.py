"""Splitting a batch that turned out too large (KIP-126): where Kafka splits it, or into parts that were measured.

Records are located once and encoded from there, part by part, with no Python object for any.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from _kafkafmt.layout import MESSAGE_OVERHEAD_V0, MESSAGE_OVERHEAD_V1, RECORD_BATCH_OVERHEAD
from kafkafmt import codecs
from kafkafmt.batch import RecordBatch, only_batch
from kafkafmt.builder import RecordBatchBuilder
from kafkafmt.decoding import describe
from kafkafmt.errors import InvalidRecordError, RecordTooLargeError
from kafkafmt.types import Codec, TimestampType, TooLargeRecord

if TYPE_CHECKING:
    from _kafkafmt.decode import LocatedRecords

# A part this full is not compressed again with more records, nor one that was compressed this often.
_FULL = 0.97
_MAX_ATTEMPTS = 8
# One that is less full is tried with one more record, however badly those in front of it compress.
_NEARLY_FULL = 0.9
# Where to leave that much free would cost one more part, they are filled further, but not beyond this.
_BRIMFUL = 0.995

_OVERHEADS = (MESSAGE_OVERHEAD_V0, MESSAGE_OVERHEAD_V1, RECORD_BATCH_OVERHEAD)
_MOST_NAMED = 5


def split_batch(
    batch: RecordBatch, split_batch_size: int, *, estimated_ratio: float = 1.0, level: int | None = None
) -> list[RecordBatch]:
    """Split a batch where Kafka's producer splits it (KIP-126, ProducerBatch.split).

    A part ends where the estimated size of it and one more record would pass `split_batch_size` bytes; so a
    part may still be larger than that, and a first record always fits. `estimated_ratio` is the compression
    ratio to reckon with: 1.0 right after a split. `level` is the codec's. Magic, codec, headers, timestamps and
    producer state are kept; the sequence numbers of the parts follow one another and wrap at 2^31. Offsets
    begin anew at 0 in each part, since a broker assigns them.

    Raises RecordTooLargeError for a batch of one record, which cannot be split, ValueError for a level that the
    codec has not, and what reading the batch raises.
    """
    _check_batch(batch)
    codecs.check_level(batch.codec, level)
    located = batch._locate(verify=True)
    if len(located) < 2:
        message = f"batch to split: expected two records or more, found {len(located)} in {batch.size_in_bytes} bytes"
        raise describe(RecordTooLargeError(message), batch.run, batch.number)
    parts: list[RecordBatch] = []
    first = 0
    while first < len(located):
        builder = _builder_like(batch, first, level)
        builder.estimated_ratio = estimated_ratio
        builder.batch_size = max(builder._size_upper_bound(located, first), split_batch_size)
        first = _fill(builder, batch, located, first, len(located))
        parts.append(only_batch(builder.build()))
    return parts


def split_to_fit(batch: RecordBatch, max_size: int, *, level: int | None = None) -> list[RecordBatch]:
    """Split a batch into parts of at most `max_size` bytes each, compressed: each was measured, none is a guess.

    All but the last are nearly full, as far as single records allow, and fuller where that saves a part. A batch
    that fits comes back as it is. What is kept is what `split_batch` keeps; `level` is the codec's.

    Raises RecordTooLargeError where records are larger than that in a batch of their own: `records` tells which,
    `parts` are the batches of the others, whose sequence numbers follow one another without a gap. Raises
    ValueError for a `max_size` below 1 and a level that the codec has not, and what reading the batch raises.

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
            for index, offset, size in too_large[:_MOST_NAMED]
        )
        more = f", and {len(too_large) - _MOST_NAMED} more" if len(too_large) > _MOST_NAMED else ""
        message = f"batch to split: expected each record to fit into {max_size} bytes, found {named}{more}"
        error = RecordTooLargeError(message, records=too_large, parts=parts)
        raise describe(error, batch.run, batch.number)
    return parts


def _check_batch(batch: object) -> None:
    if not isinstance(batch, RecordBatch):
        raise TypeError(f"batch: expected a RecordBatch, found {type(batch).__name__}")


class Part(NamedTuple):
    """A part of a batch, and the number and offset that its first record has there.

    Where it does not fit, it is one record that is too large.
    """

    batch: RecordBatch
    first: int
    offset: int
    fits: bool


def measured_parts(batch: RecordBatch, max_size: int, *, level: int | None = None) -> Iterator[Part]:
    """The parts that `split_to_fit` makes, in order, as they are asked for; a record that is too large stands alone.

    Sequence numbers count the records of parts that fit. Raises as `split_to_fit` does, but for such a record.
    """
    if max_size < 1:
        raise ValueError(f"max_size: expected 1 byte or more, found {max_size}")
    codecs.check_level(batch.codec, level)
    if batch.size_in_bytes <= max_size:
        return iter([Part(batch, 0, batch.base_offset, True)])
    return iter(_MeasuredParts(batch, max_size, level))


class _Prefix(NamedTuple):
    """Records up to one whose bytes end at `end`, uncompressed, and what they take as a batch."""

    stop: int
    end: int
    size: int


class _Bracket:
    """The longest prefix that fits and the shortest that does not, and where to look for a better one.

    Sizes are taken to be linear between the two, and to go on behind the longest as they did up to there. An end
    that stays while the other moves twice counts half as much each time (the Illinois algorithm): else a stretch
    that compresses far better than what follows would take many attempts.
    """

    def __init__(self, nothing: _Prefix, max_size: int) -> None:
        self.nothing = self.longest = nothing
        self.shortest: _Prefix | None = None
        self._max_size = max_size
        self._moved_up: bool | None = None
        self._weight = 1.0

    def narrow(self, prefix: _Prefix) -> bool:
        """Take in what was measured; tell whether it fits."""
        fits = prefix.size <= self._max_size
        if fits:
            self.longest = prefix
        else:
            self.shortest = prefix
        self._weight = self._weight / 2 if fits is self._moved_up else 1.0
        self._moved_up = fits
        return fits

    def ratio_behind(self) -> float:
        """The compression ratio to expect of what comes right behind the longest that fits."""
        there, base = (self.shortest, self.longest) if self.shortest else (self.longest, self.nothing)
        return (there.size - base.size) / (there.end - base.end)

    def end_at(self, size: float) -> float:
        """Where a prefix is expected to end, uncompressed, that takes `size` bytes."""
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
    """Searches for each part among the prefixes of the records that are left, by building and measuring them."""

    def __init__(self, batch: RecordBatch, max_size: int, level: int | None) -> None:
        self._batch = batch
        self._max_size = max_size
        self._level = level
        self._overhead = _OVERHEADS[batch.magic]
        self._located = batch._locate(verify=True)
        self._count = len(self._located)
        if not self._count:
            found = f"{batch.size_in_bytes} without records"
            message = f"batch to split: expected {max_size} bytes at the most, found {found}"
            raise describe(RecordTooLargeError(message), batch.run, batch.number)
        self._ends = self._located.ends()
        self._ratio = (batch.size_in_bytes - self._overhead) / int(self._ends[-1])
        self._fitting = 0

    def __iter__(self) -> Iterator[Part]:
        first = 0
        while first < self._count:
            data, stop = self._filled(first) if self._batch.codec == Codec.NONE else self._searched(first)
            fits = len(data) <= self._max_size
            yield Part(only_batch(data), first, next(self._located.iterate(first)).offset, fits)
            self._fitting += stop - first if fits else 0
            first = stop

    def _filled(self, first: int) -> tuple[bytes, int]:
        """The part that begins at `first`, and where it stops: uncompressed, so that sizes are known beforehand."""
        builder = _builder_like(self._batch, self._fitting, self._level)
        builder.batch_size = self._max_size
        stop = _fill(builder, self._batch, self._located, first, self._count)
        return builder.build(), stop

    def _searched(self, first: int) -> tuple[bytes, int]:
        """As `_filled`, compressed."""
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
        """Whether one more record may fit: is expected to, or the part is so empty that it is worth an attempt."""
        stop, end, size = bracket.longest
        if size < self._max_size * _NEARLY_FULL:
            return True
        record_size = int(self._ends[stop + 1]) - end
        return size + record_size * bracket.ratio_behind() <= self._max_size

    def _expected(self, first: int) -> tuple[int, float]:
        """Where the next part should stop, by the ratio of the last one, and the size that is enough for it."""
        room = max(self._max_size - self._overhead, 1)
        rest = int(self._ends[-1] - self._ends[first]) * self._ratio
        if rest <= room:
            return self._count, self._max_size * _FULL
        enough = self._max_size * min(max(rest / room / math.ceil(rest / room), _FULL), _BRIMFUL)
        aim = (enough + self._max_size) / 2 - self._overhead
        return max(self._stop_at(int(self._ends[first]) + aim / self._ratio), first + 1), enough

    def _stop_at(self, end: float) -> int:
        """The last record that ends at `end` or before, uncompressed, counted from 1."""
        return int(self._ends.searchsorted(int(min(end, self._ends[-1])), side="right")) - 1

    def _built(self, first: int, stop: int) -> bytes:
        builder = _builder_like(self._batch, self._fitting, self._level)
        _fill(builder, self._batch, self._located, first, stop)
        return builder.build()


def _fill(
    builder: RecordBatchBuilder, batch: RecordBatch, located: LocatedRecords, first: int, stop: int
) -> int:
    try:
        return builder._fill_located(located, first, stop)
    except ValueError as error:  # what the batch says cannot be written again
        raise describe(InvalidRecordError(str(error)), batch.run, batch.number) from None


def _builder_like(batch: RecordBatch, done: int, level: int | None) -> RecordBatchBuilder:
    """A builder for a part, `done` sequence numbers into the batch."""
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

    Raises InvalidRecordError if the batch says what no builder takes.
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
        raise describe(InvalidRecordError(str(error)), batch.run, batch.number) from None
