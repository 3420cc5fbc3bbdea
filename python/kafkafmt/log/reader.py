"""Read the log of one partition from an offset, in runs of sound batches, and report damage between them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kafkafmt.errors import InvalidRecordError, KafkaFormatError
from kafkafmt.log.cut import LogCut
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.log.indexes import AbortedTransaction
from kafkafmt.log.marker_reports import MarkerReports
from kafkafmt.log.open_segment import READ_BYTES, OpenSegment
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.segment import check_tail
from kafkafmt.log.segment_files import SegmentCache
from kafkafmt.log.tail import LogTail, UnreadTail
from kafkafmt.records.runs import (
    first_misplaced,
    first_offset,
    of_aborted_transactions,
    out_of_order,
    select_batches,
    slice_run,
    sound_part,
    with_batch,
)
from kafkafmt.records.trimming import base_offset_of, cut_run, rows_between, trimmed_run

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.log.isolation import UnreadableMarker
    from kafkafmt.log.overlaps import Overlap
    from kafkafmt.log.segment import Segment
    from kafkafmt.log.segment_search import SegmentIndexes
    from kafkafmt.log.time_range import TimeRange
    from kafkafmt.storage import StoragePath
    from kafkafmt.types import TopicPartition


class LogReader:
    """Read a log from `offset` on, which moves after the batches that were read.

    is_committed: leave out batches of aborted transactions, and end before the first open transaction.
    keeps_control_batches: return control batches, too.
    trims_first_batch: if `offset` is within a batch, leave out the records below it. If that batch cannot be read,
        SourceDamage is returned. A wrapper that cannot be decompressed is returned whole: its reader reports the error.
    memory: a buffer of READ_BYTES, which readers may share.
    from_segment_start: as in `PartitionLog`. Without it, no batch below the log start offset is returned. That offset
        may rise at each `refresh`.
    on_gone: called with the next offset to read and the log start offset, if that is higher. The offsets between them
        were deleted before they were read.

    Raises FileNotFoundError or NotADirectoryError if there is no such folder, and CheckpointError.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        folder: StoragePath,
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
        self._tail = LogTail(folder, cache, from_segment_start=from_segment_start)
        self._memory = memory
        self._is_committed = is_committed
        self._keeps_control_batches = keeps_control_batches
        self._trims_first_batch = trims_first_batch
        self._open: OpenSegment | None = None
        self._indexes: tuple[Segment, SegmentIndexes] | None = None  # kept by `rest`
        self._position = 0
        self._may_begin_within = True  # whether `offset` may be within the next batch
        self._reached = 0  # the offset after the last batch before `_position`
        self._is_tail_reported = False
        self._markers = MarkerReports(self._tail)
        self._cut: LogCut | None = None
        self._time_end = 0  # the offset of the end in time, which a transaction that is open may precede
        self._on_gone = on_gone
        self.offset = self.start_offset
        self.refresh()

    @property
    def folder(self) -> StoragePath:
        """The folder of the log."""
        return self._log.path

    @property
    def start_offset(self) -> int:
        """The log start offset."""
        return self._tail.start_offset

    @property
    def log_end(self) -> int:
        """The offset after the last whole batch."""
        return self._tail.end_offset

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """The first offsets of the transactions that are open at the end of the log, by producer id."""
        return self._tail.open_transactions

    @property
    def unread_tail(self) -> UnreadTail | None:
        """As `LogTail.unread_tail`."""
        return self._tail.unread_tail

    @property
    def overlaps(self) -> list[Overlap]:
        """As `LogTail.overlaps`."""
        return self._tail.overlaps

    def refresh(self) -> None:
        """Read the present end of the log, and set `end_offset`. Raises FileNotFoundError if the folder is gone."""
        self._tail.refresh()
        if self.start_offset > self.offset:
            self.seek(self.offset)
        if self._cut is not None:
            self.end_offset = min(self._cut.end_offset, self._tail.end_offset)
        else:
            self.end_offset = self._tail.stable_offset if self._is_committed else self._tail.end_offset

    def end_at(self, cut: LogCut) -> None:
        """End at a cut from `kafkafmt.log.cut`.

        A batch that contains its offset is encoded again without its later records. With `is_committed` batches of
        transactions that are open there are left out, and those after them are returned.
        """
        self._cut = cut
        self.refresh()

    def seek(self, offset: int) -> None:
        """Continue at an offset. If the log start offset is higher, call `on_gone` and continue there."""
        if offset < self.start_offset:
            self._on_gone(offset, self.start_offset)
            offset = self.start_offset
        if offset != self.offset:
            self.offset, self._open = offset, None
            self._may_begin_within = True

    @property
    def held_by(self) -> UnreadableMarker | None:
        """The marker that `read` is still to return, and that leaves out records before the end; None if none does."""
        is_at_end = self._is_committed and self.offset >= self.end_offset
        if not is_at_end or (self._cut is not None and self._cut.end_offset >= self._time_end):
            return None
        return self._markers.unreported_from(self.offset)

    def find_timestamp(self, timestamp_ms: int, *, skips_damage: bool) -> int | None:
        """Return the offset of the first record with a timestamp or a later one, as `PartitionLog.find_timestamp`."""
        found = self._log.find_timestamp(timestamp_ms, skips_damage=skips_damage)
        return None if found is None else found.offset

    def find_start(
        self, timestamp_ms: int, *, skips_damage: bool, on_damage: Callable[[SourceDamage], None]
    ) -> int | None:
        """Do `find_timestamp`. `on_damage` is called with the damage that the search skips. `offset` may move."""
        try:
            return self.find_timestamp(timestamp_ms, skips_damage=False)
        except KafkaFormatError as error:
            if not skips_damage:
                raise
            paths = {str(one.path): one.base_offset for one in self._tail.read_segments().segments}
            first = paths.get(str(error.path), self.start_offset)
        found = self.find_timestamp(timestamp_ms, skips_damage=True)
        end = self.end_offset if found is None else min(found, self.end_offset)
        self.seek(max(first, self.start_offset))
        while self.offset < end and (read := self.read(end)) is not None:
            if isinstance(read, SourceDamage):
                on_damage(read._replace(next_offset=end) if read.next_offset is None else read)
        return found

    def bound(
        self,
        times: TimeRange,
        *,
        skips_damage: bool,
        on_damage: Callable[[SourceDamage], None] = lambda damage: None,
    ) -> None:
        """Begin at the first record at or after a time, and end before the first record at or after another one.

        Without such a record, it is the end of the log. A batch that contains the end is cut, as by `end_at`. Raises
        KafkaFormatError if damage prevents the search, unless it is skipped. on_damage: as in `find_start`.
        """
        end = None if times.end_ms is None else self.find_timestamp(times.end_ms, skips_damage=skips_damage)
        if end is not None:
            self._time_end = end
            self.end_at(LogCut(max(min(end, self.end_offset), self.start_offset), {}))
        if times.start_ms is not None:
            start = self.find_start(times.start_ms, skips_damage=skips_damage, on_damage=on_damage)
            self.seek(self.end_offset if start is None else min(start, self.end_offset))

    def rest(self) -> None:
        """Release the open segment; the next read opens it again."""
        self._open = None

    def read(self, end_offset: int, most_bytes: int = READ_BYTES) -> BatchRun | SourceDamage | None:
        """Return the next batches before `end_offset` and before the end of the log; None if there are none.

        most_bytes: the most bytes to return; one larger batch is returned whole. A run is valid until the memory is
        used again. A damaged batch is returned as SourceDamage, and the next call continues after it. With
        `is_committed` so is a marker that cannot be read.
        """
        while True:
            limit = min(end_offset, self.end_offset)
            marker = self._markers.first_from(self.offset) if self._is_committed else None
            end = limit if marker is None else min(limit, marker.offset)
            while self.offset < end:
                try:
                    run = self._next_run(min(most_bytes, READ_BYTES))
                except KafkaFormatError as error:
                    damage = self._pass_over(error)
                    if damage is not None:
                        return damage
                    continue
                if run is None:
                    return self._missing()
                found = self._found_in(run, end)
                if found is not None:
                    return found
            if marker is None or end == limit:
                break
            if not self._markers.is_reported(marker):
                return self._marker_damage(marker)
            self.offset = max(self.offset, marker.offset + 1)
        held_by = self.held_by
        return self._tail_damage(end_offset) if held_by is None else self._marker_damage(held_by)

    def _found_in(self, run: BatchRun, end: int) -> BatchRun | SourceDamage | None:
        """Return what is wanted of the batches of a run before an offset; None if nothing is. Moves `offset`."""
        limit = self._log.max_decompressed_bytes
        _, stop = rows_between(run, end_offset=end, max_decompressed_bytes=limit)
        if not stop:
            misplaced = self._contradicted(run)
            if misplaced is not None:
                return self._pass_over(misplaced)
            self.offset = end  # compaction has removed all records up to `end`
            return None
        run = slice_run(run, 0, stop)
        return self._wanted(run) if self._cut is None else self._wanted_before(run, self._cut.end_offset)

    def _marker_damage(self, marker: UnreadableMarker) -> SourceDamage:
        """Return a marker as damage, and move after it, unless its transaction, which is open, ends the log."""
        self._markers.note(marker)
        offset = self.offset
        if offset >= marker.offset:
            self.offset = marker.offset + 1
        return SourceDamage(self.topic_partition, offset, self.offset, str(marker.error))

    def _next_run(self, run_bytes: int) -> BatchRun | None:
        """Read the next sound batches; None at the end. Raises KafkaFormatError if the first one is damaged."""
        while True:
            opened = self._open if self._open is not None else self._find()
            if opened is None:
                return None
            opened.extend()
            is_over = opened.is_over(self._position, look_after_zeros=True)
            run = None if is_over else opened.run_at(self._position, run_bytes=run_bytes)
            if run is not None:
                sound, _ = sound_part(run)
                if not len(sound):
                    run.ensure_valid(0, 1)  # raises
                return self._in_order(sound, opened, self._reached)
            following = self._tail.read_segments().after(opened.segment)
            if not is_over:
                check_tail(opened.records, self._position, is_active=following is None)
            if following is None:
                return None
            self._pass_deleted_segments(following)
            try:
                self._begin(following)
            except FileNotFoundError:  # retention deleted it, or compaction merged it with the previous one
                self._open = None

    def _in_order(self, run: BatchRun, opened: OpenSegment, next_offset: int) -> BatchRun:
        """Return the batches before the first one whose offsets cannot be right: no CRC covers a base offset.

        next_offset: the lowest offset that is possible. Raises InvalidRecordError if that is the first batch.
        """
        rows = run.index
        bound = self._tail.first_offset_after(opened, run.end_position)
        if not out_of_order(rows, next_offset).any() and (bound is None or rows["last_offset"][-1] < bound):
            return run
        self._tail.refresh()  # the log may have been compacted, or truncated, and have grown since
        bound = self._tail.first_offset_after(opened, run.end_position)
        following = partial(opened.records.sound_run_at, run.end_position)
        number, message = first_misplaced(rows, next_offset, bound, following)
        if number:
            return slice_run(run, 0, number)
        raise with_batch(InvalidRecordError(f"offsets of a log ascend: {message}"), run, 0)

    def _contradicted(self, run: BatchRun) -> KafkaFormatError | None:
        """Return the error of the first batch of a run if its offsets are too high for the batches after the run."""
        assert self._open is not None
        following = self._open.records.sound_run_at(run.end_position)
        if following is None:
            return None
        number, message = first_misplaced(np.concatenate((run.index, following.index)), self._reached)
        if number:
            return None
        return with_batch(InvalidRecordError(f"offsets of a log ascend: {message}"), run, 0)

    def _find(self) -> OpenSegment | None:
        """Open the segment that contains `offset`, or the first one after it; None if there is none."""
        for segment in self._tail.read_segments().from_offset(self.offset):
            self._pass_deleted_segments(segment)
            try:
                opened = self._begin(segment)
            except FileNotFoundError:  # retention has deleted it meanwhile
                continue
            if self._indexes is None or self._indexes[0] is not segment:
                self._indexes = segment, segment.read_indexes()
            self._position = self._indexes[1].search_start(opened.records, self.offset)
            return opened
        return None

    def _pass_deleted_segments(self, segment: Segment) -> None:
        """Move `offset` to the log start offset if that has risen since `refresh`, before `segment` is read.

        A gap between segments above the log start offset comes from compaction.
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
        self._position, self._reached = 0, segment.base_offset
        self._may_begin_within = True
        return self._open

    def _wanted_before(self, run: BatchRun, end_offset: int) -> BatchRun | SourceDamage | None:
        """Return what `_wanted` does, without records from the cut on. A batch that contains it is returned alone."""
        if int(run.index["last_offset"][-1]) < end_offset:
            return self._wanted(run)
        if len(run) > 1:
            return self._wanted(slice_run(run, 0, len(run) - 1))
        is_control = bool(run.index["is_control"][0])
        offset = self.offset
        wanted = self._wanted(run)
        if isinstance(wanted, SourceDamage):
            return wanted
        self.offset = end_offset
        if wanted is None or is_control:
            return None
        limit = self._log.max_decompressed_bytes
        try:
            return cut_run(wanted, 0, end_offset, max_decompressed_bytes=limit)
        except KafkaFormatError as error:
            return SourceDamage(self.topic_partition, offset, end_offset, self._message_of(error))

    def _wanted(self, run: BatchRun) -> BatchRun | SourceDamage | None:
        """Return the batches of a run that are wanted; None if there are none. Moves `offset` after them.

        If `offset` is within the first batch, and that is to be trimmed, it is returned alone, or its damage.
        """
        rows = run.index
        wanted = rows["last_offset"] >= self.offset
        if not self._keeps_control_batches:
            wanted &= ~rows["is_control"]
        if self._is_committed and rows["is_transactional"].any():
            assert self._open is not None
            transactions = self._tail.aborted_transactions(first_offset(run), self._open, run.end_position)
            if self._cut is not None:
                end = self._cut.end_offset
                transactions += [
                    AbortedTransaction(producer_id, first, end, end)
                    for producer_id, first in self._cut.open_transactions.items()
                ]
            wanted &= ~of_aborted_transactions(rows, transactions)
        numbers = wanted.nonzero()[0]
        if self._trims_first_batch and len(numbers) and self._begins_within(run, int(numbers[0])):
            return self._trimmed(run, int(numbers[0]))
        self._continue_after(rows[-1])
        return select_batches(run, numbers) if len(numbers) else None

    def _trimmed(self, run: BatchRun, number: int) -> BatchRun | SourceDamage | None:
        limit = self._log.max_decompressed_bytes
        try:
            trimmed = trimmed_run(run, number, self.offset, max_decompressed_bytes=limit)
        except KafkaFormatError as error:
            return self._pass_over(error)
        self._continue_after(run.index[number])
        return trimmed

    def _begins_within(self, run: BatchRun, number: int) -> bool:
        """Return whether `offset` is within a batch, which ends at `offset` or later.

        The header of a wrapper does not tell. So it is decompressed, unless the batch before it was read.
        """
        base_offset = int(run.index["base_offset"][number])
        if base_offset < 0:
            assert self._open is not None
            if not self._may_begin_within or self.offset <= self._open.segment.base_offset:
                return False
            base_offset = base_offset_of(run, number, self._log.max_decompressed_bytes)
        return base_offset < self.offset

    def _continue_after(self, row: np.void) -> None:
        self._position = int(row["position"]) + int(row["size"])
        self._reached = int(row["last_offset"]) + 1
        if self._reached > self.offset:
            self.offset = self._reached
            self._may_begin_within = False

    def _pass_over(self, error: KafkaFormatError) -> SourceDamage | None:
        """Move to the next sound batch after damage. Returns the damage; None if it was below `offset`.

        If batches that were returned had too high offsets, the damage hides all batches after them.
        """
        opened, offset, is_in_sequence = self._open, self.offset, 0 < self._reached == self.offset
        assert opened is not None
        message = self._message_of(error)
        if error.position is not None:
            self._position = opened.records.position_after(error)
        next_offset = self._next_offset(opened)
        if next_offset is None and opened.is_over(self._position):
            following = self._tail.read_segments().after(opened.segment)
            if following is not None:
                next_offset, is_in_sequence = self._first_from(self._begin(following), offset), False
        if next_offset is not None and next_offset <= offset:
            if not is_in_sequence:
                return None
            next_offset, self._reached = None, 0
        self.offset = self.end_offset if next_offset is None else next_offset
        return SourceDamage(self.topic_partition, offset, next_offset, message)

    def _next_offset(self, opened: OpenSegment) -> int | None:
        """Move to the next batch of a segment whose offsets are possible. Returns its first one; None at the end."""
        while not opened.is_over(self._position):
            run = opened.run_at(self._position)
            if run is None:
                return None
            sound, _ = sound_part(run)
            try:
                if len(sound):
                    self._in_order(sound, opened, first_offset(sound))
            except InvalidRecordError:  # only its base offset may be wrong, so the next batch follows it
                self._position += int(sound.index["size"][0])
                continue
            return base_offset_of(run, 0, self._log.max_decompressed_bytes)
        return None

    def _first_from(self, opened: OpenSegment, offset: int) -> int:
        """Return the first offset of a segment's first batch that ends at `offset` or later.

        The segment may overlap the one before, and lack the offsets of a damaged batch there.
        """
        segment = opened.segment
        if segment.base_offset < offset:
            with contextlib.suppress(KafkaFormatError):  # a later read reports it
                row = segment.read_indexes().find_row(opened.records, offset)
                run = None if row is None else opened.run_at(int(row["position"]))
                if run is not None:
                    return base_offset_of(run, 0, self._log.max_decompressed_bytes)
        return segment.base_offset

    def _message_of(self, error: KafkaFormatError) -> str:
        assert self._open is not None
        return str(self._open.records.with_source(error))

    def _missing(self) -> SourceDamage | None:
        """Return the damage that a log was truncated below `end_offset`; None if it has new batches.

        If compaction has removed all records up to `end_offset`, and the last segment is empty, move there.
        """
        expected = self.end_offset
        self.refresh()
        if self.offset < self.end_offset:
            if self._open is not None and self._tail.is_end(self._open, self._position):
                self.offset = self.end_offset
            return None
        message = f"expected batches up to offset {expected}, found the end of the log at {self.end_offset}"
        return SourceDamage(self.topic_partition, self.offset, None, message)

    def _tail_damage(self, end_offset: int) -> SourceDamage | None:
        """Return the damage at the end of the log, once; None if there is none."""
        damage = self._tail.damage
        if damage is None:
            self._is_tail_reported = False
            return None
        if self._is_tail_reported or self.offset < min(end_offset, self.end_offset):
            return None
        self._is_tail_reported = True
        return SourceDamage(self.topic_partition, self.offset, None, str(damage))
