"""Divide the limits of a micro-batch over the logs.

Each log gets a part of every limit in proportion to its lag, so that all logs reach their ends at the same time. As
batches are not cut, a log may not use its whole part. The log with the largest lag is last, and gets the rest. A log
whose part is less than a batch gets one batch when it is its turn.

Rows are counted as offsets, as in Spark's Kafka source. If compaction or markers left gaps, there are fewer rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.log_snapshot import LogSnapshot
from kafkafmt.log.segment import Segment
from kafkafmt.log.segment_search import begins_batch
from kafkafmt.log.splitting import Place
from kafkafmt.spark.source.options import NOTHING, UNLIMITED, Amount

if TYPE_CHECKING:
    from kafkafmt.records.base import Records

# The most bytes whose headers are scanned from the start. Beyond it, an index gives a nearer place to begin.
_SCANNED_BYTES = 16 * 1024 * 1024
_LEAST_RUN_BYTES, _MOST_RUN_BYTES = 4 * 1024, 64 * 1024


@dataclass(frozen=True)
class Lag:
    """The records of a log that are still to be read, from one place to a later one."""

    log: LogSnapshot
    start: Place
    end: Place

    def ranges(self) -> Iterator[tuple[Segment, Place, Place]]:
        """Yield each segment with records to read, with the places of their start and end in it."""
        place = self.start
        for segment, first, stop in self.log.read_segments.spans():
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
        """Return the bytes, offsets and files between start and end."""
        parts = [_between(start, end) for _, start, end in self.ranges()]
        size, files = sum(part.size_in_bytes for part in parts), len(parts)
        return Amount(size, self.end.offset - self.start.offset, files)


def share(lags: Sequence[Lag], limit: Amount, turn: int) -> list[Place]:
    """Return the place to read each log to, in the order of `lags`.

    Lag number `turn`, modulo their count, gets at least one batch, which may exceed `limit`. If a header is damaged and
    damage is skipped, the segment is read to its end, which may also exceed it. Else raises KafkaFormatError.
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
    """Return the last place within `most`, and the amount up to it. At least one batch if `takes_one`."""
    if not lag.amount.size_in_bytes:  # offsets without batches
        return lag.end, NOTHING
    place, taken = lag.start, NOTHING
    for segment, start, end in lag.ranges():
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
    log: LogSnapshot, segment: Segment, bounds: tuple[Place, Place], most: Amount, takes_one: bool
) -> Place:
    """Return the end of the last batch within `most` in a range of a segment, or the start of the range if none is."""
    start, end = bounds
    last = Place(
        min(start.offset + most.rows, UNLIMITED.rows),
        segment.base_offset,
        min(start.position + most.size_in_bytes, end.position),
    )
    with segment.open(start.position, end.position) as records:
        try:
            nearest = start
            if last.position - start.position > _SCANNED_BYTES:
                nearest = _nearest(segment, records, start, last)
            reached = _scan(records, nearest, last, takes_one and nearest == start)
            return end if reached is None else reached
        except KafkaFormatError as error:
            if not log.skips_damage:
                raise records.with_source(error) from None
            return end


def _nearest(segment: Segment, records: Records, start: Place, last: Place) -> Place:
    """Return a place before `last` from an index, after checking it against the log, or `start` if there is none."""
    index = segment.read_indexes().offset_index
    entry = index.entry_at_or_below(last.position)
    position = min(entry[1] if entry is not None else 0, index.position_at_or_below(last.offset))
    if position > start.position and begins_batch(records, position, start.offset, last.offset):
        run = next(records.runs(position, run_bytes=_LEAST_RUN_BYTES))
        if run.index["base_offset"][0] >= 0:  # unknown for a wrapper
            return Place(int(run.index["base_offset"][0]), segment.base_offset, position)
    return start


def _scan(records: Records, place: Place, last: Place, takes_one: bool) -> Place | None:
    """Return the end of the last batch from `place` on that ends at or before `last`; None if all batches do."""
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
