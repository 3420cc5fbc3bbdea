"""Searches for offsets and timestamps in the records of a segment, from any source, with and without its indexes.

A search starts at the position from an index, after a check against the log: a batch begins there, and no earlier
batch can be the result. Otherwise it starts at the beginning. So a missing, stale or damaged index makes a search
slower, not wrong. There is one exception: if timestamps do not ascend, a damaged `.timeindex` that matches the log at
the used entry can hide an earlier record from a search by timestamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from kafkafmt.errors import InvalidRecordError, KafkaFormatError
from kafkafmt.log.indexes import OffsetIndex, TimeIndex, TimestampOffset
from kafkafmt.records.base import Records
from kafkafmt.records.decoding import locate
from kafkafmt.records.runs import expected_of_last, first_offset

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

# The highest offset in a segment, relative to its base offset: as much as an index has.
MAX_RELATIVE_OFFSET = 2**31 - 1

_Found = TypeVar("_Found")

# A context that is entered while a batch is decompressed. A lock limits how many are decompressed at once.
Turn: TypeAlias = AbstractContextManager[Any]
NO_TURN: Turn = nullcontext()

# Searches read less at once than readers: with an index the result is near.
_SEARCH_BYTES = 64 * 1024


@dataclass(frozen=True)
class SegmentIndexes:
    """The indexes of a segment, and searches with them in its records, from any source."""

    base_offset: int
    offset_index: OffsetIndex
    time_index: TimeIndex

    def search_start(self, records: Records, offset: int) -> int:
        """Find the position of a batch at or before the first one that ends at `offset` or later."""
        start, position = records.start_position, self.offset_index.position_at_or_below(offset)
        is_usable = position > start and begins_batch(records, position, self.base_offset, offset)
        return position if is_usable else start

    def search_start_of_last(self, records: Records) -> int:
        """Find the position of the third batch from the end, or of one before it.

        It is the start of the records if no index entry leads to one.
        """
        entries = self.offset_index.entries["relative_offset"][-3:]
        if len(entries) < 3:
            return records.start_position
        return self.search_start(records, self.base_offset + int(entries[0]))

    def find_row(self, records: Records, offset: int) -> np.void | None:
        """Find the row, in the shallow index, of the first batch that ends at `offset` or later; None if none does."""
        return find_row(records, offset, self.search_start(records, offset))

    def find_timestamp(
        self, records: Records, timestamp: int, start_offset: int = 0, turn: Turn = NO_TURN
    ) -> TimestampOffset | None:
        """Find the first record from `start_offset` on with `timestamp` (milliseconds) or a higher one; else None.

        turn: entered while a batch is decompressed.
        """
        start = self._start_for_timestamp(records, timestamp)
        return _search(
            records, start, lambda runs: _first_at_or_after(records, runs, timestamp, start_offset, turn)
        )

    def find_next_offset(self, records: Records) -> int:
        """Find the offset after the last whole batch; the base offset if there is no batch.

        Raises InvalidRecordError for an offset that a segment cannot have: no CRC covers the base offset of a batch.
        """
        last = self._find_last_rows(records)
        if last is None:
            return self.base_offset
        offset, most = int(last["last_offset"][-1]), self.base_offset + MAX_RELATIVE_OFFSET
        expected, least = f"0 to {most}", expected_of_last(last, self.base_offset)
        if least is not None:
            expected = f"{least} or more"
        elif 0 <= offset <= most:
            return offset + 1
        message = f"last offset of a segment: expected {expected}, found {offset}"
        raise records.with_source(InvalidRecordError(message, position=int(last["position"][-1])))

    def find_last_row(self, records: Records) -> np.void | None:
        """Find the row, in the shallow index, of the last whole batch; None if there is none."""
        last = self._find_last_rows(records)
        return None if last is None else last[-1]

    def _find_last_rows(self, records: Records) -> NDArray[np.void] | None:
        """Find the rows of the last whole batches, three if there are so many; None if there is none."""
        return _search(records, self.search_start_of_last(records), _last_rows)

    def _start_for_timestamp(self, records: Records, timestamp: int) -> int:
        """Find the position of a batch at or before the first one with a record at `timestamp` or later."""
        entry = self.time_index.last_below(timestamp)
        if entry is None:
            return records.start_position
        try:
            row = self.find_row(records, entry.offset)
        except KafkaFormatError:
            return records.start_position
        if row is None or row["max_timestamp"] != entry.timestamp or row["base_offset"] > entry.offset:
            return records.start_position
        return int(row["position"])


def begins_batch(records: Records, position: int, base_offset: int, offset: int) -> bool:
    """Whether a valid batch begins at `position`, with a first offset from `base_offset` to `offset`.

    If so, all offsets before it are below `offset`. This checks the entry of an index against the log.
    """
    try:
        run = next(records.runs(position, run_bytes=_SEARCH_BYTES), None)
        if run is None:
            return False
        run.ensure_valid(0, 1)
    except KafkaFormatError:
        return False
    return base_offset <= first_offset(run) <= offset


def find_row(records: Records, offset: int, start: int) -> np.void | None:
    """Find the row, in the shallow index, of the first batch from `start` on that ends at `offset` or later.

    start: the probable position of a batch; all batches before it end below `offset`. Returns None if there is no such
    batch. Raises KafkaFormatError if damage prevents the search.
    """
    return _search(records, start, lambda runs: _first_row(runs, offset))


def _search(records: Records, start: int, search: Callable[[Iterator[BatchRun]], _Found]) -> _Found:
    """Return the result of a search from `start` on, or from the beginning if there is damage after `start`.

    The bytes at `start` may only look like a batch: the value of a record may contain one.
    """
    if start > records.start_position:
        try:
            return search(records.runs(start, run_bytes=_SEARCH_BYTES, reuse_memory=True))
        except KafkaFormatError:
            pass
    return search(records.runs(run_bytes=_SEARCH_BYTES, reuse_memory=True))


def _first_row(runs: Iterable[BatchRun], offset: int) -> np.void | None:
    for run in runs:
        reaches = run.index["last_offset"] >= offset
        if reaches.any():
            row: np.void = run.index[reaches.argmax()]
            return row
    return None


def _last_rows(runs: Iterable[BatchRun]) -> NDArray[np.void] | None:
    rows: NDArray[np.void] | None = None
    for run in runs:
        rows = run.index[-3:] if rows is None else np.append(rows, run.index[-3:])[-3:]
    return rows


def _first_at_or_after(
    records: Records, runs: Iterable[BatchRun], timestamp: int, start_offset: int, turn: Turn
) -> TimestampOffset | None:
    for run in runs:
        may_hold = (run.index["max_timestamp"] >= timestamp) & (run.index["last_offset"] >= start_offset)
        for number in may_hold.nonzero()[0].tolist():
            try:
                with turn:
                    found = _first_in(run, number, timestamp, start_offset, records.max_decompressed_bytes)
            except KafkaFormatError as error:
                raise records.with_source(error) from None
            if found is not None:
                return found
    return None


def _first_in(
    run: BatchRun, number: int, timestamp: int, start_offset: int, limit: int
) -> TimestampOffset | None:
    """Find the first record of one batch with `timestamp` or a higher one, from `start_offset` on."""
    located = locate(run, number, number + 1, verify=True, limit=limit)
    timestamps = located.timestamps()
    late = (timestamps >= timestamp) & (located.offsets() >= start_offset)
    if not late.any():
        return None
    first = int(late.argmax())
    return TimestampOffset(int(timestamps[first]), int(located.offsets()[first]))
