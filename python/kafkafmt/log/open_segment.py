"""A segment that stays open for many reads, and remembers positions of its batches, within bounds."""

from __future__ import annotations

import contextlib
import os
import sys
from bisect import bisect_right, insort
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from _kafkafmt.batches.places import BatchPlaces
from _kafkafmt.wire.layout import CRC_LENGTH, CRC_OFFSET, LOG_OVERHEAD
from kafkafmt._util.steps import LargeRead, Steps
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.segment import Segment
from kafkafmt.records.lost import LostBytesError
from kafkafmt.records.range import RecordsRange
from kafkafmt.storage import RemotePath
from kafkafmt.types import Codec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

# A batch is searched for this far from a known place. Beyond it, the offset index is closer.
_NEAR_BYTES = 4 * 1024 * 1024
_MOST_PLACES = 4096
_PLACE_BYTES = 64 * 1024
_MOST_PASSED = 256
_MOST_RANGES = 1024
READ_BYTES = 256 * 1024
# Steps yield a function that reads a larger batch and checks its CRC, as this may take 50 ms.
LARGE_BATCH_BYTES = 1024 * 1024
_SEARCH_BYTES = 32 * 1024
# The first bytes of a batch, which include the CRC in every format.
HEAD_BYTES = CRC_OFFSET + CRC_LENGTH


class LogEnd(NamedTuple):
    """The end of a log: the next offset, and the segment and the position in it where the next batch will be.

    The last batch begins at last_position with the bytes last_head, which are empty if there is no batch.

    last_rows: of the shallow index, those of the last two sound batches of the segment, if so many are known.
    """

    offset: int
    base_offset: int
    position: int
    last_position: int = 0
    last_head: bytes = b""
    last_rows: NDArray[np.void] | None = None


class OpenSegment:
    """The records of a segment, with known positions of batches and known sound ranges.

    A local file stays readable after it is deleted. `extend` reads how far it has grown.

    memory: a read buffer of `READ_BYTES`. All segments that one thread reads may share it.
    end: the position where reading ends, even if the file grows; None: the end of the file at the last `extend`.
    """

    def __init__(
        self,
        segment: Segment,
        *,
        max_decompressed_bytes: int,
        memory: bytearray | None = None,
        end: int | None = None,
    ) -> None:
        self.segment = segment
        self._may_grow = end is None
        self._memory = bytearray(READ_BYTES) if memory is None else memory
        self.records = segment.open(end=end, max_decompressed_bytes=max_decompressed_bytes)
        # Conversions remember places in their own threads.
        self._places = BatchPlaces(segment.base_offset, most=_MOST_PLACES, stride_bytes=_PLACE_BYTES)
        self.has_zstd = False  # whether one of the batches that were found sound has this codec
        # By target magic and fetch offset: the position where reading continues, as earlier batches have no records.
        self.passed: dict[tuple[int, int], int] = {}
        self._sound: list[tuple[int, int]] = []  # (start, end) of sound ranges that do not touch, sorted
        # By the end of a sound range: a position up to which no whole batch follows, and no zeros.
        self._partial: dict[int, int] = {}

    def is_at_path(self) -> bool:
        """Whether the path still leads to this file: compaction replaces files."""
        path = self.segment.path
        if isinstance(path, RemotePath):  # a listed path means the file of that listing
            return True
        try:
            now = path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(now, os.fstat(self.records.fileno()))

    def extend(self) -> None:
        """Move the end of the records to the present end of the file, unless `end` was given."""
        if self._may_grow:
            self.records.extend()

    def is_over(self, position: int, *, look_after_zeros: bool = False) -> bool:
        """Whether the records end at `position`, or zeros stand there: the unwritten part of a preallocated file.

        look_after_zeros: zeros count only if nothing but zeros follows.
        """
        if position >= self.records.end_position:
            return True
        is_blank = self.head(position)[:LOG_OVERHEAD] == bytes(LOG_OVERHEAD)
        return is_blank and not (look_after_zeros and not self.records.is_zero_from(position))

    def between(self, start: int, end: int) -> RecordsRange:
        """Return the records from `start`, where a batch begins, to `end`. Reading them remembers places."""
        return _RememberedRange(self, start, end)

    def run_at(
        self, position: int, end: int | None = None, *, run_bytes: int = READ_BYTES
    ) -> BatchRun | None:
        """Read whole batches from `position` to `end`, up to `run_bytes` or one larger batch; None if there is none.

        The run is valid until the next read. end: None is the end of the records.
        """
        end = self.records.end_position if end is None else end
        return self.between(position, end).first_run(position, run_bytes, self._memory)

    def run_steps(self, position: int, end: int | None = None) -> Steps[BatchRun | None]:
        """Do `run_at` in steps, which yield a function to read a large batch, into newly allocated memory."""
        size = self._large_size(position, end)
        if not size:
            return self.run_at(position, end)
        run: BatchRun | None = yield LargeRead(size, partial(self._read_large, position, end))
        if run is not None:
            self.remember_run(run)
        return run

    def checked_run_steps(
        self, position: int, end: int | None = None
    ) -> Steps[tuple[BatchRun, NDArray[np.bool_]] | None]:
        """Do `run_steps`; return also which of the batches have a valid CRC."""
        size = self._large_size(position, end)
        if not size:
            return _checked(self.run_at(position, end))
        checked: tuple[BatchRun, NDArray[np.bool_]] | None
        checked = yield LargeRead(size, lambda: _checked(self._read_large(position, end)))
        if checked is not None:
            self.remember_run(checked[0])
        return checked

    def _read_large(self, position: int, end: int | None) -> BatchRun | None:
        """Read a batch into newly allocated memory. Any thread may call it, as nothing is remembered."""
        records = RecordsRange(self.records, position, self.records.end_position if end is None else end)
        return records.first_run(position, READ_BYTES, bytearray())

    def _large_size(self, position: int, end: int | None = None) -> int:
        """Return the size of the batch at `position` if it is above LARGE_BATCH_BYTES and ends by `end`; else 0."""
        size = self.records.size_at(position) or 0
        return size if size > LARGE_BATCH_BYTES and (end is None or position + size <= end) else 0

    def head(self, position: int) -> bytes:
        """Return the first bytes of the batch at `position`. The CRC in them identifies the batch. Empty if lost."""
        try:
            return bytes(self.records.read_at(position, HEAD_BYTES))
        except LostBytesError:
            return b""

    def find_steps(self, offset: int, end: int) -> Steps[np.void | None]:
        """Find the row, in the shallow index, of the first batch that ends at `offset` or later; None if none does.

        end: the position where the log ends. No place after it is remembered: what is there may be truncated.
        The steps yield a function for a long search through the segment. Raises KafkaFormatError if damage prevents the
        search.
        """
        position = self._places.position_for(offset)
        row = None
        with contextlib.suppress(KafkaFormatError):  # the index may lead past the damage
            row = self._find_from(position, position + _NEAR_BYTES, end, offset)
        if row is None:
            # The index is not kept: that of a large segment takes megabytes, and is seldom needed.
            row = yield lambda: self.segment.read_indexes().find_row(self.records, offset)
        if row is not None:
            self.remember(offset, int(row["position"]))
        return row

    def remember(self, offset: int, position: int) -> None:
        """Remember that a batch begins at `position`, and that all batches before it end below `offset`."""
        self._places.remember(offset, position)

    def remember_run(self, run: BatchRun) -> None:
        """Remember positions of a run's batches, one for each `_PLACE_BYTES`, and the position after the run."""
        self._places.remember_run(run)

    def _find_from(self, position: int, stop: int, end: int, offset: int) -> np.void | None:
        """Find the row of the first batch that ends at `offset` or later; None if the search ends before.

        The search ends shortly after `stop`, at `end`, and before a large batch.
        """
        records = self.between(position, end)
        while position < stop:
            run = records.first_run(position, _SEARCH_BYTES, self._memory, LARGE_BATCH_BYTES)
            if run is None:
                break
            number = run.first_reaching(offset)
            if number is not None:
                row: np.void = run.index[number]
                return row
            position = run.end_position
        return None

    def batch_size(self, position: int, end: int) -> int | None:
        """Return the size of the batch that begins at `position`; None if no whole batch is before `end`."""
        if size := self._large_size(position, end):
            return size
        row = self._find_from(position, end, end, -1)
        return None if row is None else int(row["size"])

    def remember_passed(self, key: tuple[int, int], position: int) -> None:
        """Keep the position after the batches that convert to nothing; `passed` says for which key."""
        if len(self.passed) >= _MOST_PASSED:
            self.passed.clear()
        self.passed[key] = position

    def offset_bound(self, position: int) -> int | None:
        """Return an offset above those of all records before `position`; None if none is known."""
        return self._places.offset_above(position)

    def is_known_sound(self, start: int, end: int) -> bool:
        """Whether `sound_end_steps` has found all batches from `start` to `end` sound before."""
        known = self._known_sound_end(start)
        return known >= end or (known > start and self._partial.get(known, 0) >= end)

    def _known_sound_end(self, start: int) -> int:
        number = bisect_right(self._sound, (start, self.records.end_position)) - 1
        return self._sound[number][1] if number >= 0 else 0

    def sound_end_steps(self, start: int, end: int) -> Steps[int]:
        """Find the position up to which the batches from `start` are sound: `end`, or where damage or zeros begin.

        Headers and CRCs are checked once, in steps of `READ_BYTES`; the steps yield a function to read a large batch. A
        batch that extends past `end` is not checked. Raises KafkaFormatError if the batch at `start` is damaged.
        """
        if self.is_known_sound(start, end):
            return end
        known = self._known_sound_end(start)
        position = max(start, known)
        reached = position
        try:
            while (checked := (yield from self.checked_run_steps(reached, end))) is not None:
                run, is_valid = checked
                if not is_valid.all():
                    run.ensure_valid(int(is_valid.argmin()))
                self.has_zstd = self.has_zstd or bool((run.index["codec"] == Codec.ZSTD).any())
                reached = run.end_position
                del run, checked  # they may hold a large batch
                yield None
        except KafkaFormatError as error:
            reached = max(reached, error.position or 0)
            if reached <= start:
                raise self.records.with_source(error) from None
            end = reached
        if reached > position:
            self._add_sound(start, reached)
        if reached < end and self.is_over(reached):
            return reached
        if start < reached < end:
            if len(self._partial) >= _MOST_RANGES:
                self._partial.clear()
            self._partial[reached] = max(end, self._partial.get(reached, 0))
        return end

    def _add_sound(self, start: int, end: int) -> None:
        """Add a sound range, and join it with the ranges that it touches."""
        apart = []
        for other_start, other_end in self._sound:
            if other_end < start or other_start > end:
                apart.append((other_start, other_end))
            else:
                start, end = min(start, other_start), max(end, other_end)
        insort(apart, (start, end))
        self._sound = apart if len(apart) <= _MOST_RANGES else [(start, end)]


def _checked(run: BatchRun | None) -> tuple[BatchRun, NDArray[np.bool_]] | None:
    return None if run is None else (run, run.valid())


class _RememberedRange(RecordsRange):
    """A range of an open segment. Each run that is read from it is remembered in the segment."""

    def __init__(self, segment: OpenSegment, start: int, end: int) -> None:
        super().__init__(segment.records, start, end)
        self._segment = segment

    def first_run(
        self, position: int, run_bytes: int, memory: bytearray, most_bytes: int = sys.maxsize
    ) -> BatchRun | None:
        run = super().first_run(position, run_bytes, memory, most_bytes)
        if run is not None:
            self._segment.remember_run(run)
        return run
