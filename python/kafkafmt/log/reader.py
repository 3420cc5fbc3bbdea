"""The log of one partition, read on from an offset in runs of sound batches, past damage where that is to be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.directory import PartitionLog, part_of_run
from kafkafmt.log.following import FollowedLog, SegmentCache, UnreadTail
from kafkafmt.log.open_segment import READ_BYTES, OpenSegment
from kafkafmt.log.reading import SourceDamage, aborted, first_offset, trimmed_run
from kafkafmt.log.segment import check_tail

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun
    from kafkafmt.log.overlaps import Overlap
    from kafkafmt.log.segment import Segment
    from kafkafmt.types import TopicPartition


class LogReader:
    """Reads a log from `offset` on, which moves behind what was read.

    is_committed: batches of aborted transactions and control batches are left out, and nothing is read from the first
    open transaction on; keeps_control_batches: without that, whether those are handed out. trims_first_batch: of a
    batch that `offset` is within the records below it are left out. memory: of READ_BYTES, which readers may share.
    from_segment_start: as `PartitionLog` has it; without that nothing below the log start offset is handed out, which
    may rise at each `refresh`. on_gone: called with `offset` and the log start offset if that has risen above it: what
    lies between them was deleted before it was read.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        folder: Path,
        cache: SegmentCache,
        memory: bytearray,
        *,
        is_committed: bool,
        keeps_control_batches: bool,
        trims_first_batch: bool = True,
        from_segment_start: bool = False,
        on_gone: Callable[[int, int], None] = lambda from_offset, to_offset: None,
    ) -> None:
        self.topic_partition = topic_partition
        self._log = PartitionLog(folder, from_segment_start=from_segment_start, log_starts=cache.log_starts)
        self._followed = FollowedLog(folder, cache, from_segment_start=from_segment_start)
        self._memory = memory
        self._is_committed = is_committed
        self._keeps_control_batches = keeps_control_batches
        self._trims_first_batch = trims_first_batch
        self._open: OpenSegment | None = None
        self._position = 0
        self._is_tail_told = False
        self._on_gone = on_gone
        self.offset = self.start_offset
        self.refresh()

    @property
    def folder(self) -> Path:
        return self._log.path

    @property
    def start_offset(self) -> int:
        return self._followed.start_offset

    @property
    def log_end(self) -> int:
        return self._followed.end_offset

    @property
    def unread_tail(self) -> UnreadTail | None:
        """As `FollowedLog.unread_tail`."""
        return self._followed.unread_tail

    @property
    def overlaps(self) -> list[Overlap]:
        """As `FollowedLog.overlaps`."""
        return self._followed.overlaps

    def refresh(self) -> None:
        """Look for what was appended, and for how far the log may be read. Raises FileNotFoundError."""
        self._followed.refresh()
        if self.start_offset > self.offset:
            self._on_gone(self.offset, self.start_offset)
            self.seek(self.start_offset)
        self.end_offset = self._followed.stable_offset if self._is_committed else self._followed.end_offset

    def seek(self, offset: int) -> None:
        """Go on at an offset, or at the log start offset where that is higher."""
        offset = max(offset, self.start_offset)
        if offset != self.offset:
            self.offset, self._open = offset, None

    def rest(self) -> None:
        """Let go of the segment that is open for reading; it is opened again where that goes on."""
        self._open = None

    def read(self, end_offset: int, most_bytes: int = READ_BYTES) -> BatchRun | SourceDamage | None:
        """The next batches in front of `end_offset`, at most that of the log; None where there are none.

        most_bytes: of them, one batch that is larger excepted. A run is valid until the memory is used again. Where a
        batch is damaged that is told, and reading goes on behind it once it is asked for again.
        """
        while self.offset < min(end_offset, self.end_offset):
            try:
                run = self._next_run(min(most_bytes, READ_BYTES))
            except KafkaFormatError as error:
                damage = self._pass_over(error)
                if damage is not None:
                    return damage
                continue
            if run is None:
                return self._missing()
            run = self._in_front_of(min(end_offset, self.end_offset), run)
            if run is None:  # compaction has left nothing of what there was
                self.offset = min(end_offset, self.end_offset)
                continue
            wanted = self._wanted(run)
            if wanted is not None:
                return wanted
        return self._tail_damage(end_offset)

    def _next_run(self, run_bytes: int) -> BatchRun | None:
        """The sound batches behind those that were read. Raises KafkaFormatError where the first one is damaged."""
        while True:
            opened = self._open if self._open is not None else self._find()
            if opened is None:
                return None
            opened.extend()
            is_over = opened.is_over(self._position, look_behind_zeros=True)
            run = None if is_over else opened.run_at(self._position, run_bytes=run_bytes)
            if run is not None:
                return _sound_part(run)
            behind = self._behind(opened.segment)
            if not is_over:
                check_tail(opened.records, self._position, is_active=behind is None)
            if behind is None:
                return None
            self._pass_deleted_segments(behind)
            try:
                self._begin(behind)
            except FileNotFoundError:  # it was deleted, or merged with the one before it
                self._open = None

    def _find(self) -> OpenSegment | None:
        """The segment that holds the offset, or the first behind it, from where an index leads to."""
        for segment in self._followed.read_segments().from_offset(self.offset):
            self._pass_deleted_segments(segment)
            try:
                opened = self._begin(segment)
            except FileNotFoundError:  # retention was faster
                continue
            self._position = segment.search_start(opened.records, self.offset)
            return opened
        return None

    def _pass_deleted_segments(self, segment: Segment) -> None:
        """Move `offset` to the log start offset if that has risen, unseen by `refresh`, before `segment` is read.

        A gap between segments that the log start offset does not explain is compaction's.
        """
        if segment.base_offset <= self.offset:
            return
        start = self._log.start_offset
        if start > self.offset:
            self._on_gone(self.offset, start)
            self.offset = start

    def _begin(self, segment: Segment) -> OpenSegment:
        limit = self._log.max_decompressed_bytes
        self._open = OpenSegment(segment, max_decompressed_bytes=limit, memory=self._memory)
        self._position = 0
        return self._open

    def _behind(self, segment: Segment) -> Segment | None:
        segments = self._followed.read_segments().segments
        return next((one for one in segments if one.base_offset > segment.base_offset), None)

    def _in_front_of(self, end_offset: int, run: BatchRun) -> BatchRun | None:
        """The batches that begin in front of an offset; those behind it wait."""
        rows = run.index
        firsts = np.where(rows["base_offset"] >= 0, rows["base_offset"], rows["last_offset"])
        stop = int(firsts.searchsorted(end_offset))
        return part_of_run(run, 0, stop) if stop else None

    def _wanted(self, run: BatchRun) -> BatchRun | None:
        """What of a run is handed out; where it begins within a batch, that batch alone, trimmed.

        Reading goes on behind what was looked at.
        """
        rows = run.index
        wanted = rows["last_offset"] >= self.offset
        if not self._keeps_control_batches:
            wanted &= ~rows["is_control"]
        if self._is_committed and rows["is_transactional"].any():
            assert self._open is not None
            transactions = self._followed.aborted_transactions(
                first_offset(run), self._open, run.end_position
            )
            wanted &= ~aborted(rows, transactions)
        numbers = wanted.nonzero()[0]
        begins_within = len(numbers) > 0 and 0 <= int(rows["base_offset"][numbers[0]]) < self.offset
        if self._trims_first_batch and begins_within:
            trimmed = trimmed_run(run, int(numbers[0]), self.offset)
            self._go_on_behind(rows[numbers[0]])
            return trimmed
        self._go_on_behind(rows[-1])
        return type(run)(run.buffer, rows[numbers], run.origin) if len(numbers) else None

    def _go_on_behind(self, row: np.void) -> None:
        self._position = int(row["position"]) + int(row["size"])
        self.offset = max(self.offset, int(row["last_offset"]) + 1)

    def _pass_over(self, error: KafkaFormatError) -> SourceDamage | None:
        """Go on behind damage, where something sound is, and tell of it; not where it is below the offset."""
        opened, offset = self._open, self.offset
        assert opened is not None
        if error.position is not None:
            self._position = opened.records.position_after(error)
        next_offset: int | None = None
        if not opened.is_over(self._position):
            run = opened.run_at(self._position)
            next_offset = None if run is None else first_offset(run)
        elif (behind := self._behind(opened.segment)) is not None:
            self._begin(behind)
            next_offset = behind.base_offset
        if next_offset is not None and next_offset <= offset:
            return None
        self.offset = self.end_offset if next_offset is None else next_offset
        return SourceDamage(self.topic_partition, offset, next_offset, str(error))

    def _missing(self) -> SourceDamage | None:
        """The log has become shorter since it was looked at."""
        expected = self.end_offset
        self.refresh()
        if self.offset < self.end_offset:
            return None
        message = f"expected batches up to offset {expected}, and the log ends at {self.end_offset} now"
        return SourceDamage(self.topic_partition, self.offset, None, message)

    def _tail_damage(self, end_offset: int) -> SourceDamage | None:
        """What stands at the end of the log in place of a batch, once, if that is damage."""
        damage = self._followed.damage
        if damage is None:
            self._is_tail_told = False
            return None
        if self._is_tail_told or self.offset < min(end_offset, self.end_offset):
            return None
        self._is_tail_told = True
        return SourceDamage(self.topic_partition, self.offset, None, str(damage))


def _sound_part(run: BatchRun) -> BatchRun:
    """The batches in front of the first whose CRC does not hold. Raises CorruptRecordError where that is the first."""
    sound = run.valid()
    if sound.all():
        return run
    stop = int(sound.argmin())
    if not stop:
        run.ensure_valid(0, 1)
    return part_of_run(run, 0, stop)


def read_memory() -> bytearray:
    """What readers read into."""
    return bytearray(READ_BYTES)
