"""The log of one partition: the segments in a folder of a broker, or in a copy of one.

The folder is listed at each call, as a broker may roll and delete segments meanwhile. If a segment is gone when it is
to be read, the folder is listed again, as compaction merges segments. Offsets that retention deletes during a read are
an error, not a silent gap.

Records below the log start offset are deleted, though segments may still have them: see `checkpoints`. Offsets that
several segments have are read once: see `overlaps`.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from _kafkafmt.batches.scan import BatchRun
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import InvalidRecordError, KafkaFormatError
from kafkafmt.log.checkpoints import LogStartOffsets
from kafkafmt.log.indexes import AbortedTransaction, TimestampOffset
from kafkafmt.log.isolation import CommittedView, TransactionTracker, are_indexed
from kafkafmt.log.listing import ensure_regular, partition_of, segments_among
from kafkafmt.log.log_snapshot import LogPosition, LogSnapshot
from kafkafmt.log.overlaps import ReadSegments, SegmentEnds
from kafkafmt.log.segment import Segment, SegmentRecords
from kafkafmt.log.segment_search import NO_TURN, Turn
from kafkafmt.log.splitting import hides_batch
from kafkafmt.records.base import RUN_BYTES
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.decoding import locate_in_chunks
from kafkafmt.records.runs import first_offset, slice_run, with_batch
from kafkafmt.records.trimming import rows_between
from kafkafmt.storage import AnyPath, StoragePath, no_folder_reason, storage_of, storage_path
from kafkafmt.types import Isolation, TopicPartition, check_int, is_committed, milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    from _kafkafmt.records.decode import Record

_Found = TypeVar("_Found")


class PartitionLog:
    """The log of one partition: the segments in a folder.

    The folder may have any name. If it is named as a partition, such as `page-views-12`, `topic_partition` is that one;
    otherwise it is None.

    max_decompressed_bytes: the limit for each batch.
    from_segment_start: read from the first segment, and do not read `log-start-offset-checkpoint`.
    log_starts, segment_ends: caches that the logs of a directory share.

    Raises FileNotFoundError or NotADirectoryError if `path` is not a folder. Methods that read raise CheckpointError if
    `log-start-offset-checkpoint` is malformed.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        from_segment_start: bool = False,
        log_starts: LogStartOffsets | None = None,
        segment_ends: SegmentEnds | None = None,
    ) -> None:
        self.path = partition_folder(path)
        self.max_decompressed_bytes = max_decompressed_bytes
        self.from_segment_start = from_segment_start
        self._log_starts = LogStartOffsets() if log_starts is None else log_starts
        self._segment_ends = SegmentEnds() if segment_ends is None else segment_ends

    def __repr__(self) -> str:
        start = ", from_segment_start=True" if self.from_segment_start else ""
        return f"PartitionLog({str(self.path)!r}, topic_partition={self.topic_partition}{start})"

    @property
    def topic_partition(self) -> TopicPartition | None:
        """The partition by the name of the folder; None for another name."""
        return partition_of(self.path)

    def segments(self, known: Mapping[str, Segment] | None = None) -> list[Segment]:
        """List the present segments, by base offset, without opening them. The last one is the active segment.

        known: segments that were listed before, by file name. The same objects are returned for those that still exist.

        Raises NotRegularFileError for a folder, a FIFO or a broken link with the name of a segment: without an error,
        its records would be missing silently.
        """
        with storage_of(self.path).entries(self.path) as entries:
            found = segments_among(self.path, entries, known)
        ensure_regular(found)
        return found

    def size_in_bytes(self) -> int:
        """Return the size of all segments in bytes. Segments that are deleted meanwhile do not count."""
        size = 0
        for segment in self.segments():
            with contextlib.suppress(FileNotFoundError):
                size += segment.size_in_bytes
        return size

    def read_segments(self, segments: list[Segment] | None = None) -> ReadSegments:
        """Select the segments to read: those with offsets that earlier segments do not have.

        The end of each closed segment is read once, with its index. segments: all segments, if they were listed before.
        """
        return self._segment_ends.read_segments(self.segments() if segments is None else segments)

    @property
    def log_start_offset(self) -> int:
        """The offset below which records are deleted, read from `log-start-offset-checkpoint`; 0 without an entry."""
        return 0 if self.from_segment_start else self._log_starts.of(self.path)

    @property
    def start_offset(self) -> int:
        """The log start offset: that of the checkpoint, or the base offset of the first segment if that is higher.

        It is 0 without segments and checkpoint. The first record may have a higher offset.
        """
        return self._snapshot(self.log_start_offset).start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last whole batch (Kafka's log end offset), 0 without segments.

        It is never below the log start offset, where a broker would continue, too. Raises KafkaFormatError if damage
        hides the end.
        """
        end = self._search(lambda log: log.end_offset, self.log_start_offset)
        assert end is not None  # None is for damage that is skipped
        return end

    def closed_end_offset(self) -> int:
        """Return the end offset of the last segment, for a new segment that is to begin there.

        Raises CorruptRecordError for an incomplete batch or zeros at the end: if another segment follows, they are
        damage, which hides that segment.
        """

        def search(log: LogSnapshot) -> int:
            segments = log.read_segments.segments
            return Segment(segments[-1].path).find_next_offset() if segments else 0

        return self._search(search)

    def find_offset(self, offset: int) -> LogPosition | None:
        """Find the batch that contains `offset`, or the first one after it if compaction removed that.

        Returns None at or after the end of the log. Raises KafkaFormatError if damage prevents the search.
        """
        check_int("offset", offset)
        return self._search(lambda log: log.find_offset(offset), self.log_start_offset)

    def find_timestamp(
        self, timestamp: int | datetime, *, skips_damage: bool = False
    ) -> TimestampOffset | None:
        """Find the first record, in offset order, with `timestamp` or a higher one, as Kafka's ListOffsets; else None.

        timestamp: milliseconds, or an aware datetime. skips_damage: search only the batches that are sound.

        Raises ValueError for a naive datetime and for a negative timestamp. (In ListOffsets, negative timestamps mean
        the ends of the log; here these are `start_offset` and `end_offset`.) Raises KafkaFormatError if damage prevents
        the search.
        """
        return self.find_timestamp_from(self.log_start_offset, timestamp, skips_damage=skips_damage)

    def find_timestamp_from(
        self,
        start_offset: int,
        timestamp: int | datetime,
        turn: Turn = NO_TURN,
        *,
        skips_damage: bool = False,
    ) -> TimestampOffset | None:
        """Do `find_timestamp` for the records from `start_offset` on, without regard to the log start offset.

        turn: entered while a batch is decompressed.
        """
        wanted_ms = milliseconds(timestamp)
        if wanted_ms < 0:
            raise ValueError(f"timestamp: expected 0 or more, found {timestamp}")
        return self._search(
            lambda log: replace(log, skips_damage=skips_damage).find_timestamp(wanted_ms, turn), start_offset
        )

    def aborted_transactions(
        self, start_offset: int = 0, end_offset: int | None = None
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions with offsets from `start_offset` to before `end_offset`.

        They are in the order of their markers, as in a broker's fetch response (KIP-98). They are read from `.txnindex`
        files. The markers in the whole log are read instead if one is invalid, or if one is missing and the last
        segment has no `.snapshot`, as in a log that no broker wrote. This raises KafkaFormatError for damage.
        """

        def search(log: LogSnapshot) -> list[AbortedTransaction]:
            found = []
            is_indexed = are_indexed(log.read_segments.segments)
            for segment in log.read_segments.from_offset(start_offset):
                transactions = segment.aborted_transactions()
                if transactions is None or not (transactions or is_indexed):
                    return list(self.scan_aborted_transactions())
                found += transactions
                if end_offset is not None and found and found[-1].last_stable_offset >= end_offset:
                    break
            return found

        return [
            one
            for one in self._search(search)
            if one.last_offset >= start_offset and (end_offset is None or one.first_offset < end_offset)
        ]

    def scan_aborted_transactions(self, end_offset: int | None = None) -> Iterator[AbortedTransaction]:
        """Yield the aborted transactions whose marker is before `end_offset`, read from the log without indexes.

        `aborted_transactions` does this if indexes are missing or damaged. Raises KafkaFormatError for damage.
        """
        tracker = TransactionTracker()
        for records, run, _ in self._runs(0, end_offset, RUN_BYTES):
            try:
                yield from tracker.add(run)
            except KafkaFormatError as error:
                raise records.with_source(error) from None

    def runs(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        run_bytes: int = RUN_BYTES,
        isolation: Isolation = "read_uncommitted",
    ) -> Iterator[BatchRun]:
        """Iterate over runs of whole batches, segment by segment, as `Records.runs`. No run spans two segments.

        The first batch is the one that contains `start_offset`, or the first one after it; it is never before the batch
        that contains the log start offset. The last batch is the one with the last offset before `end_offset`.
        Positions are those in the segment's file.

        If segments overlap, a batch whose offsets were all returned before is left out. A batch with some new offsets
        is returned whole; `records` leaves out its repeated records.

        run_bytes: the size of a run; one larger batch is a run of its own.
        isolation: `read_committed` leaves out batches of aborted transactions, and ends before the first transaction
            that is open at the call. Control batches are returned in any case. The transactions are read as
            `LogTail.stable_offset` reads them. Damage at the end of the log is raised, as it may hide markers.

        Raises CorruptRecordError or UnsupportedVersionError, with path and position, for damage. An incomplete batch at
        the end of a segment is damage, too, except in the last segment. Raises InvalidRecordError if a batch with
        damaged offsets hides others before `end_offset`. Raises FileNotFoundError if retention deletes offsets before
        they are read.
        """
        view = self._view(isolation)
        reads = self._reads(start_offset, end_offset, run_bytes, view)
        if view is None:
            return (run for _, run, _ in reads)
        kept = (view.without_aborted(run, verify=False) for _, run, _ in reads)
        return (run for run in kept if len(run))

    def batches(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        isolation: Isolation = "read_uncommitted",
    ) -> Iterator[RecordBatch]:
        """Iterate over the batches of `runs`, without decoding their records."""
        for run in self.runs(start_offset, end_offset, isolation=isolation):
            for number in range(len(run)):
                yield RecordBatch(run, number, self.max_decompressed_bytes)

    def records(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        verify: bool = True,
        control: bool = False,
        isolation: Isolation = "read_uncommitted",
    ) -> Iterator[Record]:
        """Iterate over the records from `start_offset` to before `end_offset`.

        verify: check CRCs.
        control: return the records of control batches, too, such as the markers that end transactions.
        isolation: `read_committed` leaves out records of aborted transactions, as in `runs`. By default they are
            returned, as by a consumer.

        Raises as `runs` and `Records.records`. To read columns, open each segment: `Segment.open`.
        """
        view = self._view(isolation)
        return self._records(start_offset, end_offset, view, verify=verify, control=control)

    def _view(self, isolation: Isolation) -> CommittedView | None:
        """Return the view for `read_committed`, else None."""
        if not is_committed(isolation):
            return None
        return self._search(
            lambda log: CommittedView(log.read_segments.segments, self.max_decompressed_bytes)
        )

    def _records(
        self,
        start_offset: int | None,
        end_offset: int | None,
        view: CommittedView | None,
        *,
        verify: bool,
        control: bool,
    ) -> Iterator[Record]:
        for source, run, lowest in self._reads(start_offset, end_offset, RUN_BYTES, view):
            if view is not None:
                run = view.without_aborted(run, verify=verify)
            try:
                for located in locate_in_chunks(
                    run, verify=verify, control=control, limit=self.max_decompressed_bytes
                ):
                    first = located.first_at_or_above(lowest)
                    for record in located.iterate(first):
                        if end_offset is not None and record.offset >= end_offset:
                            break
                        yield record
            except KafkaFormatError as error:
                raise source.with_source(error) from None

    def _read_from(self, start_offset: int | None) -> int:
        """Return the offset where a read begins: `start_offset`, or the log start offset if that is higher."""
        if start_offset is None:
            return self.log_start_offset
        check_int("start_offset", start_offset)
        return max(start_offset, self.log_start_offset)

    def _reads(
        self, start_offset: int | None, end_offset: int | None, run_bytes: int, view: CommittedView | None
    ) -> Iterator[tuple[SegmentRecords, BatchRun, int]]:
        """Do `_runs` from the log start offset on, up to the end of the view. Then raise for damage that hides more."""
        start = self._read_from(start_offset)
        if view is None or (end_offset is not None and end_offset <= view.end_offset):
            return self._runs(start, end_offset, run_bytes)
        return _before_end(self._runs(start, view.end_offset, run_bytes), view)

    def _runs(
        self, start_offset: int, end_offset: int | None, run_bytes: int
    ) -> Iterator[tuple[SegmentRecords, BatchRun, int]]:
        """Iterate over runs, with the records they are read from, and the lowest offset to return from each."""
        reached, has_read = start_offset, False
        segments = [*self.read_segments().spans(start_offset)]
        while segments:
            segment, _, next_offset = segments[0]
            if end_offset is not None and segment.base_offset >= end_offset:
                return
            try:
                records = segment.open(max_decompressed_bytes=self.max_decompressed_bytes)
            except FileNotFoundError:
                segments = self._find_again(segment, reached, was_reached=has_read)
                continue
            with records:
                lowest = reached
                start = segment.read_indexes().search_start(records, lowest)
                for run in records.runs(start, run_bytes=run_bytes):
                    first, stop = rows_between(
                        run, lowest, end_offset, max_decompressed_bytes=self.max_decompressed_bytes
                    )
                    if end_offset is not None:
                        # A batch that seems to contain the end may hide those after it.
                        reaches = run.index["last_offset"][first:stop] >= end_offset
                        stop = first + int(reaches.argmax()) + 1 if reaches.any() else stop
                    error = None
                    if next_offset is not None and (
                        stop < len(run) or run.end_position == records.end_position
                    ):
                        number = min(stop, len(run) - 1)
                        error = self._find_jump(segment, next_offset, end_offset, run, number)
                        stop = stop if error is None else number
                    if first < stop:
                        reached = max(lowest, int(run.index["last_offset"][stop - 1]) + 1)
                        has_read = True
                        yield records, slice_run(run, first, stop), lowest
                    if error is not None:
                        raise records.with_source(error)
                    if stop < len(run):
                        _ensure_end(records, run, stop, end_offset)
                        return
            segments = segments[1:]

    def _find_jump(
        self, segment: Segment, next_offset: int, end_offset: int | None, run: BatchRun, number: int
    ) -> KafkaFormatError | None:
        """Return the error of the batch that ends the read of a segment, if it has offsets of the next segment.

        Those would be left out, as if they had been read. No CRC covers the base offset of a batch.

        next_offset: the lowest offset to read from the next segment. It is read again, as compaction merges segments.
        """
        last_offset = int(run.index["last_offset"][number])
        if last_offset < next_offset or (end_offset is not None and next_offset >= end_offset):
            return None
        spans = self.read_segments().spans()
        now = next((stop for one, _, stop in spans if one.path == segment.path), None)
        if now is None or last_offset < now or (end_offset is not None and now >= end_offset):
            return None
        try:
            run.ensure_valid(number, number + 1)
        except KafkaFormatError as error:
            return error
        found = first_offset(run, number)
        message = (
            f"offsets of a log ascend: expected less than {now}, where the next segment begins, found {found}"
        )
        return with_batch(InvalidRecordError(message), run, number)

    def _find_again(
        self, gone: Segment, wanted: int, *, was_reached: bool
    ) -> list[tuple[Segment, int, int | None]]:
        """List the segments from offset `wanted` on again, after the segment `gone` was deleted.

        Raises FileNotFoundError if it is still listed. was_reached: reading has begun, so a gap is an error, too.
        """
        segments = [*self.read_segments().spans(wanted)]
        found = segments[0][0] if segments else None
        if found is not None and found.path == gone.path:
            raise FileNotFoundError(errno.ENOENT, "segment is listed and cannot be opened", str(gone.path))
        if was_reached and (found is None or found.base_offset > wanted):
            start = "no segment is left" if found is None else f"the log starts at {found.base_offset} now"
            message = f"offsets from {wanted} on were deleted while the log was read: {start}"
            raise FileNotFoundError(errno.ENOENT, message, str(gone.path))
        return segments

    def _search(self, search: Callable[[LogSnapshot], _Found], log_start_offset: int = 0) -> _Found:
        """Return the result of a search. It is repeated if segments were deleted meanwhile."""
        log = self._snapshot(log_start_offset)
        while True:
            try:
                return search(log)
            except FileNotFoundError:
                before, log = log, self._snapshot(log_start_offset)
                if log == before:
                    raise

    def _snapshot(self, log_start_offset: int) -> LogSnapshot:
        return LogSnapshot(
            tuple(self.segments()),
            self._segment_ends,
            log_start_offset,
            checks_overlaps=True,
            max_decompressed_bytes=self.max_decompressed_bytes,
        )


def _before_end(
    reads: Iterator[tuple[SegmentRecords, BatchRun, int]], view: CommittedView
) -> Iterator[tuple[SegmentRecords, BatchRun, int]]:
    yield from reads
    view.ensure_end()


def _ensure_end(records: SegmentRecords, run: BatchRun, stop: int, end_offset: int | None) -> None:
    """Raise KafkaFormatError if the batch that ends a read hides others before `end_offset`; see `hides_batch`.

    stop: the number of the first batch that is not read. The one before ends the read if it contains `end_offset`.
    """
    if end_offset is None:
        return
    last_offsets = run.index["last_offset"]
    number = stop - 1 if stop and last_offsets[stop - 1] >= end_offset else stop
    least = int(last_offsets[number - 1]) + 1 if number else 0
    if not hides_batch(records, run.index[number], least, end_offset):
        return
    try:
        run.ensure_valid(number, number + 1)
    except KafkaFormatError as error:
        raise records.with_source(error) from None
    message = f"offsets of a log ascend: expected less than {end_offset}, found {first_offset(run, number)}"
    raise records.with_source(with_batch(InvalidRecordError(message), run, number))


def partition_folder(path: AnyPath) -> StoragePath:
    """Convert a path or URI to a path on its storage.

    Raises FileNotFoundError or NotADirectoryError if it is not a folder.
    """
    folder = storage_path(path)
    reason = no_folder_reason(folder)
    if reason is None:
        return folder
    if folder.exists():
        raise NotADirectoryError(errno.ENOTDIR, reason, str(folder))
    raise FileNotFoundError(errno.ENOENT, reason, str(folder))
