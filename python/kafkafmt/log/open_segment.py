"""A segment kept open to be read again and again: what was learned of its batches is remembered, within bounds."""

from __future__ import annotations

import contextlib
import errno
import os
from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

from _kafkafmt.layout import CRC_LENGTH, CRC_OFFSET, LOG_OVERHEAD
from kafkafmt._util.steps import Steps, finish
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.segment import Segment
from kafkafmt.records import RecordsRange
from kafkafmt.types import Codec

if TYPE_CHECKING:
    import numpy as np

    from _kafkafmt.scan import BatchRun

# From a place that is known a batch is looked for that far; farther away an index leads nearer.
_NEAR_BYTES = 4 * 1024 * 1024
_MOST_PLACES = 4096
_PLACE_BYTES = 64 * 1024
_MOST_PASSED = 256
_MOST_STRETCHES = 1024
READ_BYTES = 256 * 1024
_SEARCH_BYTES = 32 * 1024
# Of a batch of any format its CRC is in there.
HEAD_BYTES = CRC_OFFSET + CRC_LENGTH


class OpenSegment:
    """The records of a segment, and the places in it where batches begin and were found sound.

    The file stays readable once it is deleted. Where it may have grown, `extend` looks. memory: of `READ_BYTES`, to
    read into, which segments that one thread reads may share.
    """

    def __init__(
        self, segment: Segment, *, max_decompressed_bytes: int, memory: bytearray | None = None
    ) -> None:
        self.segment = segment
        self._memory = bytearray(READ_BYTES) if memory is None else memory
        self.records = segment.open(max_decompressed_bytes=max_decompressed_bytes)
        # By offset: where a batch begins in front of which all offsets are lower.
        self._places: list[tuple[int, int]] = [(segment.base_offset, 0)]
        self.has_zstd = False  # of the batches that were found sound
        # By what is read, and from which offset on: where reading goes on, as nothing in front of that is of use.
        self.passed: dict[tuple[int, int], int] = {}
        self._sound: list[tuple[int, int]] = []  # stretches, apart from each other, by position

    def is_at_path(self) -> bool:
        """Does its name still stand for this file? Compaction puts another in its place."""
        try:
            now = self.segment.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(now, os.fstat(self.records.fileno()))

    def extend(self) -> None:
        """Take in what was appended to the file."""
        self.records.end_position = os.fstat(self.records.fileno()).st_size

    def is_over(self, position: int, *, look_behind_zeros: bool = False) -> bool:
        """Is that the end, or are there zeros in place of a batch: not written yet, in a preallocated file?

        look_behind_zeros: not where anything else is behind them.
        """
        if position >= self.records.end_position:
            return True
        is_blank = self.head(position)[:LOG_OVERHEAD] == bytes(LOG_OVERHEAD)
        return is_blank and not (look_behind_zeros and self._has_data(position))

    def _has_data(self, position: int) -> bool:
        """Is there a byte other than zero from `position` on? Holes in the file are not read."""
        descriptor = self.records.fileno()
        while True:
            try:
                position = os.lseek(descriptor, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return False
            end = os.lseek(descriptor, position, os.SEEK_HOLE)
            if not RecordsRange(self.records, position, end)._only_zeros(position):
                return True
            position = end

    def between(self, start: int, end: int) -> RecordsRange:
        """The records from `start`, where a batch begins, to `end`; of what is read of them places are remembered."""
        return _RememberedRange(self, start, end)

    def run_at(
        self, position: int, end: int | None = None, *, run_bytes: int = READ_BYTES
    ) -> BatchRun | None:
        """The batches from `position` on, as many as are read at a time; valid until the next ones are read.

        run_bytes: what they take at the most, one that is larger excepted.
        """
        end = self.records.end_position if end is None else end
        return self.between(position, end).first_run(position, run_bytes, self._memory)

    def head(self, position: int) -> bytes:
        """The first bytes of the batch at `position`, which tell it from every other that may stand there."""
        return os.pread(self.records.fileno(), HEAD_BYTES, position)

    def find(self, offset: int) -> np.void | None:
        """The row, in the shallow index, of the first batch that ends at `offset` or later; None where none does.

        Raises KafkaFormatError where damage is in the way.
        """
        return finish(self.find_steps(offset))

    def find_steps(self, offset: int) -> Steps[np.void | None]:
        """`find` in steps: what reads far through the segment is handed out to be called."""
        number = bisect_right(self._places, offset, key=lambda place: place[0]) - 1
        _, position = self._places[max(number, 0)]
        row = None
        with contextlib.suppress(KafkaFormatError):  # an index leads past damage, where it does
            row = self._find_from(position, position + _NEAR_BYTES, self.records.end_position, offset)
        if row is None:
            # Made anew and dropped: an index of a large segment takes megabytes, and is seldom asked.
            row = yield lambda: Segment(self.segment.path).indexes.find_row(self.records, offset)
        if row is not None:
            self.remember(offset, int(row["position"]))
        return row

    def remember(self, offset: int, position: int) -> None:
        """All batches in front of `position`, where one begins, end below `offset`."""
        place, places = (offset, position), self._places
        number = bisect_right(places, place)
        fits = places[number - 1][1] < position and (number == len(places) or position < places[number][1])
        if fits:  # a damaged header may say otherwise
            places.insert(number, place)
            if len(places) > _MOST_PLACES:
                del places[1::2]

    def remember_run(self, run: BatchRun) -> None:
        """Remember where batches of a run begin, and where the next one does: a place for every so many bytes."""
        rows = run.index
        strides = rows["position"] // _PLACE_BYTES
        for number in (strides[1:] != strides[:-1]).nonzero()[0].tolist():
            self.remember(int(rows["last_offset"][number]) + 1, int(rows["position"][number + 1]))
        self.remember(int(rows["last_offset"][-1]) + 1, run.end_position)

    def _find_from(self, position: int, stop: int, end: int, offset: int) -> np.void | None:
        """The first batch that ends at `offset` or later; of those that begin a little behind `stop` none is looked at.

        All of them are whole in front of `end`.
        """
        records = self.between(position, end)
        while (
            position < stop and (run := records.first_run(position, _SEARCH_BYTES, self._memory)) is not None
        ):
            reaches = run.index["last_offset"] >= offset
            if reaches.any():
                row: np.void = run.index[reaches.argmax()]
                return row
            position = run.end_position
        return None

    def batch_size(self, position: int, end: int) -> int | None:
        """The size of the batch that begins at `position`; None where no whole one is in front of `end`."""
        row = self._find_from(position, end, end, -1)
        return None if row is None else int(row["size"])

    def remember_passed(self, key: tuple[int, int], position: int) -> None:
        if len(self.passed) >= _MOST_PASSED:
            self.passed.clear()
        self.passed[key] = position

    def offset_bound(self, position: int) -> int | None:
        """An offset that all records in front of `position` are below; None where none is known."""
        number = bisect_left(self._places, position, key=lambda place: place[1])
        return self._places[number][0] if number < len(self._places) else None

    def sound_end(self, start: int, end: int) -> int:
        """Where the batches from `start` on stop being sound: at `end`, or in front of it where damage or zeros begin.

        Their headers and CRCs are checked, once; of the batch that `end` is within nothing is. Raises
        KafkaFormatError for the batch at `start`.
        """
        return finish(self.sound_end_steps(start, end))

    def sound_end_steps(self, start: int, end: int) -> Steps[int]:
        """`sound_end` in steps of `READ_BYTES`, or one batch that is larger."""
        number = bisect_right(self._sound, (start, self.records.end_position)) - 1
        known = self._sound[number][1] if number >= 0 else 0
        if known >= end:
            return end
        position = max(start, known)
        reached = position
        try:
            while (run := self.run_at(reached, end)) is not None:
                run.ensure_valid()
                self.has_zstd = self.has_zstd or bool((run.index["codec"] == Codec.ZSTD).any())
                reached = run.end_position
                yield None
        except KafkaFormatError as error:
            reached = max(reached, error.position or 0)
            if reached <= start:
                raise self.records.described(error) from None
            end = reached
        if reached > position:
            self._add_sound(start, reached)
        return reached if reached < end and self.is_over(reached) else end

    def _add_sound(self, start: int, end: int) -> None:
        """Join a stretch with those that it touches."""
        apart = []
        for other_start, other_end in self._sound:
            if other_end < start or other_start > end:
                apart.append((other_start, other_end))
            else:
                start, end = min(start, other_start), max(end, other_end)
        insort(apart, (start, end))
        self._sound = apart if len(apart) <= _MOST_STRETCHES else [(start, end)]


class _RememberedRange(RecordsRange):
    """A stretch of an open segment, which remembers what is read of it."""

    def __init__(self, segment: OpenSegment, start: int, end: int) -> None:
        super().__init__(segment.records, start, end)
        self._segment = segment

    def first_run(self, position: int, run_bytes: int, memory: bytearray) -> BatchRun | None:
        run = super().first_run(position, run_bytes, memory)
        if run is not None:
            self._segment.remember_run(run)
        return run
