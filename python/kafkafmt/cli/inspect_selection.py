"""The batches and records that `kafkafmt inspect` shows: from which files, which offsets, and how many."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from _kafkafmt.json.record_lines import RecordLines
from kafkafmt.cli import rows as row_format
from kafkafmt.cli.output import damage_in_words, flush_output, in_words, notify
from kafkafmt.cli.rows import Row
from kafkafmt.cli.sources import SourceFile
from kafkafmt.cli.transaction_marks import TransactionMarks
from kafkafmt.cli.walk import DamagedBatch, DamageFound, SoundBatches, walk
from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs.files import Progress
from kafkafmt.log.overlaps import LowestOffsets
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.segment import MAX_OFFSET
from kafkafmt.log.time_range import EVERYTHING, TimeRange
from kafkafmt.records.decoding import locate_in_chunks
from kafkafmt.records.runs import first_offset, select_batches, slice_run
from kafkafmt.records.trimming import base_offset_of
from kafkafmt.schemas.json_programs import topic_records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.json.topic_records import TopicRecords
    from _kafkafmt.records.decode import LocatedRecords
    from kafkafmt.cli.record_formats import RecordFormats
    from kafkafmt.records.batch import RecordBatch
    from kafkafmt.storage import StoragePath

# So much damage after the end is held: a batch with a wrong CRC, and its range.
_MOST_BEYOND = 2


@dataclass
class OffsetBounds:
    """The first offset and the end of each file: those of `--offsets`, within those of `--from` and `--to`."""

    offsets: tuple[int | None, int | None] = (None, None)
    times: TimeRange = EVERYTHING
    from_segment_start: bool = False
    _of_times: dict[StoragePath, tuple[int | None, int | None]] = field(default_factory=dict)

    @property
    def is_everything(self) -> bool:
        """Whether there is no bound."""
        return self.offsets == (None, None) and self.times.is_everything

    def of(self, source: SourceFile) -> tuple[int | None, int | None]:
        """Return the bounds of a file. The sound records of its log say which offsets are within a range of time.

        Raises click.UsageError for a file outside a log, if there is a range of time.
        """
        if self.times.is_everything:
            return self.offsets
        if source.segment is None:
            raise click.UsageError(f"{source}: --from and --to are for segments of logs, found another file")
        folder = source.path.parent
        if folder not in self._of_times:
            self._of_times[folder] = self._found(folder)
        first, end = (
            [one for one in both if one is not None]
            for both in zip(self.offsets, self._of_times[folder], strict=True)
        )
        return max(first, default=None), min(end, default=None)

    def _found(self, folder: StoragePath) -> tuple[int | None, int | None]:
        log = PartitionLog(folder, from_segment_start=self.from_segment_start)
        first, end = (
            None if time is None else log.find_timestamp(time, skips_damage=True)
            for time in (self.times.start_ms, self.times.end_ms)
        )
        nothing = None if self.times.start_ms is None else MAX_OFFSET
        return nothing if first is None else first.offset, None if end is None else end.offset


@dataclass
class Selection:
    """The rows that the user selected.

    is_raw: records of internal topics are not decoded. formats: of keys and values; None for text or base64.
    bounds: the offsets of each file. limit: the most rows.
    damage: the number of damaged ranges found so far.
    """

    sources: Sequence[SourceFile]
    records: bool
    is_raw: bool
    formats: RecordFormats | None
    bounds: OffsetBounds
    limit: int | None
    lowest: LowestOffsets
    progress: Progress
    damage: int = 0
    marks: TransactionMarks = field(default_factory=TransactionMarks)

    def rows(self) -> Iterator[tuple[SourceFile, Iterator[Row]]]:
        """Yield each file with an iterator of its rows. Exhaust the iterator before the next file."""
        left = self.limit
        for source in self._sources():
            if left == 0:
                return
            found: Iterator[Row] = itertools.islice(self._rows_of(source), left)
            counted = _Counted(found if self.formats is None else self.formats.rendered(found))
            yield source, iter(counted)
            left = None if left is None else left - counted.count

    def record_lines(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the records of all files as JSON lines."""
        left = self.limit
        for source in self._sources():
            for lines, count in self._lines_of(source, left):
                yield lines
                left = None if left is None else left - count
            if left == 0:
                return

    def _sources(self) -> Iterator[SourceFile]:
        for source in self.sources:
            if source.may_hold(*self.bounds.of(source)):
                yield source
            else:
                self.progress(source.size_in_bytes)

    def _rows_of(self, source: SourceFile) -> Iterator[Row]:
        if self.records and self._topic_records(source) is not None:
            for lines, _ in self._lines_of(source, None):
                yield from map(row_format.row_of_line, bytes(lines).splitlines())
            return
        origin, offsets = row_format.source_row(source), self._record_offsets(source)
        for found in self._found_in(source):
            if isinstance(found, DamagedBatch):
                if not self.records:
                    yield row_format.batch_row(origin, found.batch, False)
                continue
            for batch in found.batches():
                if self.records:
                    try:
                        yield from self._record_rows(source, origin, batch, offsets)
                    except KafkaFormatError as error:
                        self._report(DamageFound.by_error(source, error))
                elif not self._begins_after_end(source, batch):
                    yield row_format.batch_row(origin, batch, True)

    def _record_rows(
        self, source: SourceFile, origin: Row, batch: RecordBatch, offsets: tuple[int, int | None]
    ) -> Iterator[Row]:
        first, end = offsets
        transaction = self.marks.of(source, batch)
        for record in batch:
            if record.offset >= first and (end is None or record.offset < end):
                yield row_format.record_row(origin, batch, record, transaction)

    def _lines_of(self, source: SourceFile, limit: int | None) -> Iterator[tuple[NDArray[np.uint8], int]]:
        """Yield JSON lines of the records of a file, at most `limit` in all, and their number."""
        origin = json.dumps(row_format.source_row(source))
        writer = RecordLines(origin.removesuffix("}").encode(), self._topic_records(source))
        first, end = self._record_offsets(source)
        for found in self._found_in(source):
            if isinstance(found, DamagedBatch):
                continue
            for located, states in self._located(source, found):
                number = 0
                while number < len(located):
                    lines, count, number = writer.write(
                        located,
                        number,
                        first_offset=first,
                        end_offset=end,
                        most=limit,
                        transactions=states,
                    )
                    limit = None if limit is None else limit - count
                    if count:
                        yield lines, count
                    if limit == 0:
                        return

    def _located(
        self, source: SourceFile, found: SoundBatches
    ) -> Iterator[tuple[LocatedRecords, NDArray[np.uint8] | None]]:
        """Yield the located records of batches, and the states of the run's transactions; None if it has none.

        A batch whose records are damaged is reported, and left out.
        """
        run, limit = found.run, found.max_decompressed_bytes
        while len(run):
            try:
                states = self.marks.of_run(source, run)
                for located in locate_in_chunks(run, verify=True, control=True, limit=limit, is_checked=True):
                    yield located, states
                return
            except KafkaFormatError as error:
                self._report(DamageFound.by_error(source, error))
                after = int(run.index["position"].searchsorted(error.position or 0, "right"))
                run = slice_run(run, after, len(run))

    def _topic_records(self, source: SourceFile) -> TopicRecords | None:
        if self.is_raw or self.formats is not None or source.topic_partition is None:
            return None
        return topic_records(source.topic_partition.topic)

    def _record_offsets(self, source: SourceFile) -> tuple[int, int | None]:
        """Return the first offset to show of a file, and the end. Call it before the file is read."""
        first, end = self.bounds.of(source)
        return max(self.lowest.of(source.path), first or 0), end

    def _found_in(self, source: SourceFile) -> Iterator[SoundBatches | DamagedBatch]:
        """Yield the batches of a file that may contain selected offsets. Damage is reported."""
        try:
            yield from self._found_from(source, self.lowest.of(source.path))
        except FileNotFoundError:
            notify(f"gone: {source.path}: deleted since it was listed")

    def _found_from(self, source: SourceFile, lowest: int) -> Iterator[SoundBatches | DamagedBatch]:
        first, end = self.bounds.of(source)
        left_out = 0
        reaches = False  # whether the last batch reaches the end
        # The damage after a batch that does: beyond the end, unless a later batch begins before the end.
        beyond = list[DamageFound | DamagedBatch]()
        lowest = lowest or -MAX_OFFSET  # a damaged base offset may be negative
        for found in walk(source, self.progress):
            if not isinstance(found, SoundBatches):
                if len(beyond) == _MOST_BEYOND:
                    break
                beyond.append(found)
                if not reaches:
                    yield from self._damaged(beyond, first)
                continue
            last_offsets = found.run.index["last_offset"]
            if beyond:
                if end is not None and base_offset_of(found.run, 0, found.max_decompressed_bytes) >= end:
                    break
                yield from self._damaged(beyond, first)
            left_out += int((last_offsets < lowest).sum())
            if left_out and last_offsets[-1] >= lowest:
                self._report_left_out(source, left_out)
                left_out = 0
            wanted = last_offsets >= (lowest if first is None else max(lowest, first))
            number = None
            if end is not None:
                begin_before, number = _before_end(found, end, reaches=reaches)
                wanted &= begin_before
                reaches = bool(last_offsets[-1] >= end - 1)
            if last_offsets[-1] >= lowest:
                self.lowest.add(source.path, source.segment, int(last_offsets[-1]) + 1)
            if wanted.any():
                yield replace(found, run=found.run if wanted.all() else select_batches(found.run, wanted))
            for damage in found.misplaced:
                if number is None or damage.row["position"] <= found.run.index["position"][number]:
                    self._report(damage)
            stop = self.lowest.stop_of(source.path, source.segment, int(last_offsets[-1]) + 1)
            if stop is not None and (end is None or stop < end):
                self._report(DamageFound.by_next_segment(source, found.run, stop))
            if number is not None:
                return
        if left_out:
            self._report_left_out(source, left_out)
        if end is not None and any(_begins_before(one, end) for one in beyond):
            yield from self._damaged(beyond, first)

    def _damaged(self, found: list[DamageFound | DamagedBatch], first: int | None) -> Iterator[DamagedBatch]:
        """Report damage, and yield the damaged batches with offsets from `first` on. Empties the list."""
        for one in found:
            if isinstance(one, DamageFound):
                self._report(one)
            elif first is None or one.batch.last_offset >= first:
                yield one
        found.clear()

    def _begins_after_end(self, source: SourceFile, batch: RecordBatch) -> bool:
        """Return whether a wrapper, whose header has no base offset, begins after the selected offsets."""
        _, end = self.bounds.of(source)
        try:
            return end is not None and batch.base_offset >= end
        except KafkaFormatError:
            return False

    def _report_left_out(self, source: SourceFile, batches: int) -> None:
        flush_output()
        start, reached = self.lowest.start_of(source.path), self.lowest.reached_before(source.path)
        why = f"below the log start offset {start}: --from-segment-start shows them"
        if reached > start:
            why = f"below offset {reached}: an earlier segment contains these offsets"
        notify(f"left out: {source.path}: {in_words(batches, 'batch')} {why}")

    def _report(self, found: DamageFound) -> None:
        self.damage += 1
        flush_output()
        notify(f"damage: {damage_in_words(found.row)}")


def _begins_before(found: DamageFound | DamagedBatch, end: int) -> bool:
    """Whether the header of a batch with a wrong CRC tells an offset before the end."""
    return isinstance(found, DamagedBatch) and first_offset(found.batch.run, found.batch.number) < end


def _before_end(found: SoundBatches, end: int, *, reaches: bool) -> tuple[NDArray[np.bool_], int | None]:
    """Return a mask of the batches that begin before an offset, and the number of the last one to read; None for all.

    That is the second batch in a row that reaches the end. The base offset of the first may be damaged, and then
    selected batches follow.

    A wrapper's header has no base offset. One that follows such a batch begins after the end, unless its offsets and
    those of the batch contradict each other.

    reaches: whether the batch before the run reaches the end.
    """
    rows = found.run.index
    is_misplaced = np.isin(rows["position"], [damage.row["position"] for damage in found.misplaced])
    reaching = rows["last_offset"] >= end - 1
    follows = np.concatenate(([reaches], reaching[:-1]))
    is_second = reaching & follows
    number = int(is_second.argmax()) if is_second.any() else None
    begins_after = is_second & (rows["base_offset"] < 0) & ~is_misplaced
    before: NDArray[np.bool_] = (rows["base_offset"] < end) & ~begins_after
    if number is not None:
        before[number + 1 :] = False
    return before, number


class _Counted:
    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        for row in self._rows:
            self.count += 1
            yield row
