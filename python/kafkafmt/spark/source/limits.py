"""How far a micro-batch of a stream reads, where it may read so much: limits shared by the logs that have more.

Each log gets of every limit what its share is of all that there is to read, so that logs come to their ends together.
The one with most to read is served last, with what the others could not use, as batches are not cut. A log whose share
is less than a batch gets one when it is its turn.
Rows are counted by their offsets, as Spark's Kafka source does: where compaction or markers left gaps they are fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.segment import begins_batch
from kafkafmt.spark.source.logs import Log, Place, read_indexes
from kafkafmt.spark.source.options import NOTHING, UNLIMITED, Amount

if TYPE_CHECKING:
    from kafkafmt.records import Records
    from kafkafmt.spark.files import SegmentFile

# Up to where so many bytes lie all headers are followed; an index leads nearer to what is farther.
_SCANNED_BYTES = 16 * 1024 * 1024
_LEAST_RUN_BYTES, _MOST_RUN_BYTES = 4 * 1024, 64 * 1024


@dataclass(frozen=True)
class Lag:
    """What is to be read of a log: from one place to another, which is behind it."""

    log: Log
    start: Place
    end: Place

    def stretches(self) -> Iterator[tuple[SegmentFile, Place, Place]]:
        """Segment by segment, where what is to be read begins and ends; nothing of a segment without any of it."""
        place = self.start
        for segment, first, stop in self.log.spans():
            if segment.base_offset > self.end.base_offset:
                return
            if segment.base_offset < self.start.base_offset or first == stop:
                continue
            start = Place(place.offset, segment.base_offset, 0)
            start = place if place.base_offset == segment.base_offset else start
            place = self.end
            if segment.base_offset < self.end.base_offset and stop is not None:
                place = Place(max(stop, start.offset), segment.base_offset, segment.size_in_bytes)
            if place.position > start.position:
                yield segment, start, place

    @property
    def amount(self) -> Amount:
        parts = [_between(start, end) for _, start, end in self.stretches()]
        size, files = sum(part.size_in_bytes for part in parts), len(parts)
        return Amount(size, self.end.offset - self.start.offset, files)


def share(lags: Sequence[Lag], limit: Amount, turn: int) -> list[Place]:
    """How far each log is read, in the order of `lags`; a batch at the least of the one whose `turn` it is.

    No more than `limit` is read, unless by that batch, or where headers are damaged and that is to be passed over:
    then that segment is read to its end. Raises KafkaFormatError for damage in headers else.
    """
    amounts = [lag.amount for lag in lags]
    left, total = limit, NOTHING
    for amount in amounts:
        total = total.plus(amount)
    ends = [lag.start for lag in lags]
    for number in sorted(range(len(lags)), key=lambda number: (number != turn % len(lags), amounts[number])):
        own = Amount(*(_part(*three) for three in zip(left, amounts[number], total, strict=True)))
        ends[number], taken = _reach(lags[number], own, takes_one=number == turn % len(lags))
        left, total = left.minus(taken), total.minus(amounts[number])
    return ends


def _part(limit: int, own: int, total: int) -> int:
    return limit * own // total if total else limit


def _between(start: Place, end: Place) -> Amount:
    return Amount(end.position - start.position, end.offset - start.offset, 1)


def _reach(lag: Lag, most: Amount, *, takes_one: bool) -> tuple[Place, Amount]:
    """How far `most` reaches, and how much that is; one batch at the least if `takes_one`."""
    if not lag.amount.size_in_bytes:  # offsets without batches
        return lag.end, NOTHING
    place, taken = lag.start, NOTHING
    for segment, start, end in lag.stretches():
        whole = taken.plus(_between(start, end))
        if not whole.fits(most):
            has_none = takes_one and not taken.files
            if taken.files < most.files or has_none:
                reached = _last_within(lag.log, segment, (start, end), most.minus(taken), has_none)
                if reached != start:
                    return reached, taken.plus(_between(start, reached))
            break
        place, taken = end, whole
    return place, taken


def _last_within(
    log: Log, segment: SegmentFile, stretch: tuple[Place, Place], most: Amount, takes_one: bool
) -> Place:
    """Behind the last batch of a stretch of a segment up to which there is no more than `most`; its start if none."""
    start, end = stretch
    last = Place(
        min(start.offset + most.rows, UNLIMITED.rows),
        segment.base_offset,
        min(start.position + most.size_in_bytes, end.position),
    )
    with log.open(segment, start.position, end.position) as records:
        try:
            nearest = start
            if last.position - start.position > _SCANNED_BYTES:
                nearest = _nearest(segment, records, start, last)
            reached = _scan(records, nearest, last, takes_one and nearest == start)
            return end if reached is None else reached
        except KafkaFormatError as error:
            if log.options.on_corrupt == "fail":
                raise records.described(error) from None
            return end


def _nearest(segment: SegmentFile, records: Records, start: Place, last: Place) -> Place:
    """A place in front of `last`, from what an index says, held against the log; `start` where it says none."""
    index = read_indexes(segment).offset_index
    entry = index.entry_at_or_below(last.position)
    position = min(entry[1] if entry is not None else 0, index.position_at_or_below(last.offset))
    if position > start.position and begins_batch(records, position, start.offset, last.offset):
        run = next(records.runs(position, run_bytes=_LEAST_RUN_BYTES))
        if run.index["base_offset"][0] >= 0:  # of a wrapper it is not known
            return Place(int(run.index["base_offset"][0]), segment.base_offset, position)
    return start


def _scan(records: Records, place: Place, last: Place, takes_one: bool) -> Place | None:
    """Behind the last batch from `place` on that ends in front of `last`; None where all do."""
    run_bytes = max(_LEAST_RUN_BYTES, min(_MOST_RUN_BYTES, last.position - place.position))
    for run in records.runs(place.position, run_bytes=run_bytes, reuse_memory=True):
        rows = run.index
        fits = (rows["position"] + rows["size"] <= last.position) & (rows["last_offset"] < last.offset)
        fits[0] |= takes_one
        count = len(rows) if fits.all() else int(fits.argmin())
        if count:
            row = rows[count - 1]
            after = int(row["position"]) + int(row["size"])
            place = Place(int(row["last_offset"]) + 1, place.base_offset, after)
        if count < len(rows):
            return place
        takes_one = False
    return None
