"""Logs as a broker keeps them: a folder a partition, in it a file and its indexes a segment.

    <log directory>/<topic>-<partition>/<base offset>.log  .index  .timeindex  .txnindex

A folder is listed when it is asked for, never remembered: a broker may roll and delete segments meanwhile.
A segment that is gone when its turn comes is looked for again, since compaction merges segments; offsets that
retention deleted while they were read are an error, not a silent gap.

Records below the log start offset are deleted, though segments may still have them: see `checkpoints`. Offsets that
two segments have are handed out once: see `overlaps`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload

from _kafkafmt.scan import BatchRun
from kafkafmt._util.steps import Steps, finish
from kafkafmt.batch import RecordBatch
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.decoding import locate_in_groups
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.checkpoints import LogStartOffsets
from kafkafmt.log.indexes import AbortedTransaction, TimestampOffset
from kafkafmt.log.overlaps import ReadSegments, SegmentEnds
from kafkafmt.log.segment import NO_TURN, Segment, SegmentRecords, Turn, is_segment_file_name
from kafkafmt.log.transactions import TransactionTracker
from kafkafmt.records import RUN_BYTES
from kafkafmt.types import Isolation, TopicPartition, check_int, checked_path, is_committed, milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    from _kafkafmt.decode import Record
    from kafkafmt.log.committed import CommittedView

_MAX_PARTITION = 2**31 - 1

_Found = TypeVar("_Found")


class LogPosition(NamedTuple):
    """Where a batch begins: a segment, and the byte position in its file."""

    segment: Segment
    position: int


class LogDirectory:
    """A broker's log directory, a copy of one, or the folder of a single partition.

    Folders that are no partition's are passed over: those a broker marks `-delete`, `-future` or `-stray`,
    and those without a segment. Raises FileNotFoundError or NotADirectoryError for another `path`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _folder(path)

    def topics(self) -> list[str]:
        """Names of all topics, sorted."""
        return sorted({topic for topic, _ in self.folders()})

    def partitions(self, topic: str | None = None) -> list[TopicPartition]:
        """All partitions, or those of one topic; sorted by topic, then number."""
        return sorted(found for found in self.folders() if topic in (None, found.topic))

    def __repr__(self) -> str:
        return f"LogDirectory({str(self.path)!r})"

    @overload
    def partition(
        self,
        topic: TopicPartition | tuple[str, int],
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        from_segment_start: bool = False,
    ) -> PartitionLog: ...

    @overload
    def partition(
        self,
        topic: str,
        number: int,
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        from_segment_start: bool = False,
    ) -> PartitionLog: ...

    def partition(
        self,
        topic: str | TopicPartition | tuple[str, int],
        number: int | None = None,
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        from_segment_start: bool = False,
    ) -> PartitionLog:
        """Return the log of a partition: of a topic and a number, or of a `TopicPartition`.

        Raises FileNotFoundError if it is not here.
        """
        wanted = _wanted_partition(topic, number)
        folder = self.folders().get(wanted)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, f"no segments of partition {wanted}", str(self.path))
        return PartitionLog(
            folder, max_decompressed_bytes=max_decompressed_bytes, from_segment_start=from_segment_start
        )

    def logs(self, *, from_segment_start: bool = False) -> list[PartitionLog]:
        """The logs of all partitions, sorted; each folder is listed once. from_segment_start: as `PartitionLog`.

        A folder that is deleted meanwhile is left out.
        """
        log_starts = LogStartOffsets()
        logs = []
        for _, folder in sorted(self.folders().items()):
            with contextlib.suppress(FileNotFoundError):
                logs.append(
                    PartitionLog(folder, from_segment_start=from_segment_start, log_starts=log_starts)
                )
        return logs

    def folders(
        self, *, on_denied: Callable[[PermissionError], None] | None = None
    ) -> dict[TopicPartition, Path]:
        """The folder of each partition.

        A folder that may not be read is left out where `on_denied` takes the error; else PermissionError is raised.
        """
        own = _partition_of(self.path)
        if own is not None and _holds_segments(self.path):
            return {own: self.path}
        found = {}
        with os.scandir(self.path) as entries:
            for entry in entries:
                topic_partition = _partition_of_segments(entry, on_denied)
                if topic_partition is not None:
                    found[topic_partition] = self.path / entry.name
        return found


def _wanted_partition(topic: str | TopicPartition | tuple[str, int], number: int | None) -> TopicPartition:
    if isinstance(topic, str):
        if number is None:
            raise TypeError(f"number: expected that of a partition of topic {topic!r}, found none")
        check_int("number", number)
        return TopicPartition(topic, number)
    if not isinstance(topic, tuple) or len(topic) != 2:
        raise TypeError(f"topic: expected a name, or a pair of topic and number, found {topic!r}")
    if number is not None:
        raise TypeError(f"number: expected none beside {topic!r}, found {number!r}")
    return TopicPartition(*topic)


class FollowedFolders:
    """The folders of a log directory's partitions, as `LogDirectory.folders`, listed again and again.

    A listing looks only into folders that are new, or another one of the same name: it tells them by their inodes.
    """

    def __init__(self, directory: LogDirectory) -> None:
        self._path = directory.path
        self._known: dict[str, tuple[int, TopicPartition]] = {}
        self.folders: dict[TopicPartition, Path] = {}

    def refresh(self, *, on_denied: Callable[[PermissionError], None] | None = None) -> set[TopicPartition]:
        """List the folders; return the partitions that came or went, or whose folder is another one.

        on_denied: as for `LogDirectory.folders`.
        """
        own = _partition_of(self._path)
        if own is not None and _holds_segments(self._path):
            before, self.folders = self.folders, {own: self._path}
            self._known = {}
            return before.keys() ^ self.folders.keys()
        seen, changed = {}, set()
        with os.scandir(self._path) as entries:
            for entry in entries:
                known = self._known.get(entry.name)
                if known is None or known[0] != entry.inode():
                    topic_partition = _partition_of_segments(entry, on_denied)
                    if topic_partition is None:
                        continue
                    known = entry.inode(), topic_partition
                    self.folders[topic_partition] = self._path / entry.name
                    changed.add(topic_partition)
                seen[entry.name] = known
        for name, (_, topic_partition) in self._known.items():
            if name not in seen:
                del self.folders[topic_partition]
                changed.add(topic_partition)
        self._known = seen
        return changed

    def look_anew(self) -> None:
        """Look into all folders when they are listed next, as files in them were found to be gone."""
        self._known = {name: (-1, topic_partition) for name, (_, topic_partition) in self._known.items()}


def no_segments_message(path: str | os.PathLike[str]) -> str:
    """Return what a command says of a folder that it was to read, and in which no partition is."""
    nested = nested_log_directory(path)
    meant = "" if nested is None else f"; did you mean {nested}?"
    return f"{path}: no segments here, neither in it nor in folders named <topic>-<partition>{meant}"


def nested_log_directory(path: str | os.PathLike[str]) -> Path | None:
    """Return a folder in this one that is a log directory, if there is one: then this one is a level too high."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        return next((Path(path, name) for name in names if LogDirectory(Path(path, name)).folders()), None)
    except OSError:
        return None


class PartitionLog:
    """The log of one partition: the segments in a folder.

    The folder may have any name; one like `page-views-12` tells the `topic_partition`, which is None else.

    from_segment_start: reads begin at the first segment, and `log-start-offset-checkpoint` is not read. log_starts:
    what read that file for the other logs of the directory. segment_ends: what is known of segments of these logs.

    Raises FileNotFoundError or NotADirectoryError for another `path`. What reads, raises CheckpointError where
    `log-start-offset-checkpoint` is malformed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        from_segment_start: bool = False,
        log_starts: LogStartOffsets | None = None,
        segment_ends: SegmentEnds | None = None,
    ) -> None:
        self.path = _folder(path)
        self.max_decompressed_bytes = max_decompressed_bytes
        self.from_segment_start = from_segment_start
        self._log_starts = LogStartOffsets() if log_starts is None else log_starts
        self._segment_ends = SegmentEnds() if segment_ends is None else segment_ends

    def __repr__(self) -> str:
        start = ", from_segment_start=True" if self.from_segment_start else ""
        return f"PartitionLog({str(self.path)!r}, topic_partition={self.topic_partition}{start})"

    @property
    def topic_partition(self) -> TopicPartition | None:
        """The partition that the folder is named for."""
        return _partition_of(self.path)

    def segments(self) -> list[Segment]:
        """The segments there are now, by base offset; the last one is the active one. Opens none of them."""
        with os.scandir(self.path) as entries:
            names = sorted(
                entry.name for entry in entries if is_segment_file_name(entry.name) and entry.is_file()
            )
        return [Segment(self.path / name, is_active=name == names[-1]) for name in names]

    def read_segments(self, segments: list[Segment] | None = None) -> Steps[ReadSegments]:
        """Choose, in steps, the segments that reads read: not those whose offsets are in segments before them, too.

        The end of each closed segment is read once, by its index. segments: all there are, if they were listed.
        """
        listed = self.segments() if segments is None else segments
        return self._segment_ends.read_segments(self.path, listed)

    @property
    def log_start_offset(self) -> int:
        """The offset below which records are deleted, as `log-start-offset-checkpoint` has it now; 0 where none are."""
        return 0 if self.from_segment_start else self._log_starts.of(self.path)

    @property
    def start_offset(self) -> int:
        """The log start offset: that of the checkpoint, or the base offset of the first segment where that is higher.

        0 without segments and checkpoint. Records may begin behind it.
        """
        segments = self.segments()
        return max(segments[0].base_offset if segments else 0, self.log_start_offset)

    @property
    def end_offset(self) -> int:
        """The offset behind the last whole batch (Kafka's log end offset), 0 without segments.

        Never below the log start offset: a broker goes on there, too.
        """
        end = self._search(lambda chosen: chosen.segments[-1].find_next_offset() if chosen.segments else 0)
        return max(end, self.log_start_offset)

    def closed_end_offset(self) -> int:
        """`end_offset`, for a segment that is to begin there.

        Raises CorruptRecordError for a batch that is cut off at the end, and for zeros there: once another segment is
        behind them they are damage, and hide what follows.
        """
        return self._search(
            lambda chosen: Segment(chosen.segments[-1].path).find_next_offset() if chosen.segments else 0
        )

    def find_offset(self, offset: int) -> LogPosition | None:
        """The batch that holds `offset`, or where compaction left none the first behind it.

        None from the log's end on. Raises KafkaFormatError where damage is in the way.
        """

        wanted = max(offset, self.log_start_offset)

        def search(chosen: ReadSegments) -> LogPosition | None:
            for segment in chosen.from_offset(wanted):
                position = segment.find_offset(wanted)
                if position is not None:
                    return LogPosition(segment, position)
            return None

        return self._search(search)

    def find_timestamp(self, timestamp: int | datetime) -> TimestampOffset | None:
        """The first record, in the order of offsets, with `timestamp` or a higher one.

        timestamp: milliseconds, or an aware datetime. None where there is none. As Kafka's ListOffsets. Raises
        ValueError for a naive datetime and for a negative timestamp: those stand for the log's ends in ListOffsets,
        which `start_offset` and `end_offset` are here; and KafkaFormatError where damage is in the way.
        """
        return self.find_timestamp_from(self.log_start_offset, timestamp)

    def find_timestamp_from(
        self, start_offset: int, timestamp: int | datetime, turn: Turn = NO_TURN
    ) -> TimestampOffset | None:
        """`find_timestamp` among the records from `start_offset` on, whatever the log start offset is.

        turn: is entered while a batch is decompressed.
        """
        wanted_ms = milliseconds(timestamp)
        if wanted_ms < 0:
            raise ValueError(f"timestamp: expected 0 or more, found {timestamp}")

        def search(chosen: ReadSegments) -> TimestampOffset | None:
            wanted = chosen.from_offset(start_offset)
            limit = self.max_decompressed_bytes
            found = (
                segment.find_timestamp(wanted_ms, start_offset, max_decompressed_bytes=limit, turn=turn)
                for segment in wanted
            )
            return next((one for one in found if one is not None), None)

        return self._search(search)

    def aborted_transactions(
        self, start_offset: int = 0, end_offset: int | None = None
    ) -> list[AbortedTransaction]:
        """Aborted transactions that have offsets from `start_offset` to in front of `end_offset`.

        In the order of their markers, as the broker adds them to a fetch response (KIP-98). Out of
        `.txnindex` files; where one says what cannot be, out of the log, read whole.
        """

        def search(chosen: ReadSegments) -> list[AbortedTransaction]:
            found = []
            for segment in chosen.from_offset(start_offset):
                transactions = segment.aborted_transactions()
                if transactions is None:
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
        """Aborted transactions whose marker is in front of `end_offset`, out of the log alone, read from its start.

        What `aborted_transactions` does where an index is damaged. Raises KafkaFormatError for damage on the way.
        """
        tracker = TransactionTracker()
        for records, run, _ in self._runs(0, end_offset, RUN_BYTES):
            try:
                yield from tracker.add(run)
            except KafkaFormatError as error:
                raise records.described(error) from None

    def runs(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        run_bytes: int = RUN_BYTES,
        isolation: Isolation = "read_uncommitted",
    ) -> Iterator[BatchRun]:
        """Runs of whole batches, segment after segment, as `Records.runs`; none spans two segments.

        From the batch that holds `start_offset`, or the first behind it, to the one that holds the last
        offset in front of `end_offset`; never from in front of the one that holds the log start offset. If segments
        overlap, a batch whose offsets were all handed out is left out, and one of which some were is handed out
        whole: `records` leaves those out. Positions are those in the segment's file.

        With isolation `read_committed` batches of aborted transactions are left out, and reading ends in front of the
        first transaction that is open when it begins. Control batches are among the batches either way. To know
        the transactions, the log is read as `FollowedLog.stable_offset` reads it.

        Raises CorruptRecordError or UnsupportedVersionError, with path and position, for damage: bytes that
        are no whole batch at the end of a segment too, of the last one excepted; and FileNotFoundError where
        retention deletes what is still to be read.
        """
        view, end_offset = self._view(isolation, end_offset)
        reads = self._runs(self._read_from(start_offset), end_offset, run_bytes)
        if view is None:
            return (run for _, run, _ in reads)
        kept = (view.without_aborted(run, verify=False)[0] for _, run, _ in reads)
        return (run for run in kept if len(run))

    def batches(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        isolation: Isolation = "read_uncommitted",
    ) -> Iterator[RecordBatch]:
        """The batches of `runs`, shallow."""
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
        """Iterate the records from `start_offset` to in front of `end_offset`.

        Control batches, such as the markers that end transactions, are left out without `control`. With isolation
        `read_committed` the records of aborted transactions are, too, as `runs` has it; by default they are handed
        out, as a consumer hands them out by default.

        Raises as `runs` and `Records.records` do. For columns go segment by segment: `Segment.open`.
        """
        view, end_offset = self._view(isolation, end_offset)
        return self._records(start_offset, end_offset, view, verify=verify, control=control)

    def _view(self, isolation: Isolation, end_offset: int | None) -> tuple[CommittedView | None, int | None]:
        """What a read of that isolation leaves out, if that may be anything, and where it ends."""
        if not is_committed(isolation):
            return None, end_offset
        from kafkafmt.log.committed import CommittedView  # which follows logs, with this module

        view = self._search(lambda _: CommittedView(self))
        return view, view.end_offset if end_offset is None else min(end_offset, view.end_offset)

    def _records(
        self,
        start_offset: int | None,
        end_offset: int | None,
        view: CommittedView | None,
        *,
        verify: bool,
        control: bool,
    ) -> Iterator[Record]:
        for source, run, lowest in self._runs(self._read_from(start_offset), end_offset, RUN_BYTES):
            damage = None
            if view is not None:
                run, damage = view.without_aborted(run, verify=verify)
            try:
                for located in locate_in_groups(
                    run, verify=verify, control=control, limit=self.max_decompressed_bytes
                ):
                    first = located.first_at_or_above(lowest)
                    for record in islice(located, first, None):
                        if end_offset is not None and record.offset >= end_offset:
                            return
                        yield record
                if damage is not None:
                    try:
                        raise damage
                    finally:
                        del damage  # no cycle of error, traceback and frame
            except KafkaFormatError as error:
                raise source.described(error) from None

    def _read_from(self, start_offset: int | None) -> int:
        """Where reads begin that are asked to from `start_offset` on."""
        return max(start_offset or 0, self.log_start_offset)

    def _runs(
        self, start_offset: int, end_offset: int | None, run_bytes: int
    ) -> Iterator[tuple[SegmentRecords, BatchRun, int]]:
        """Runs, what they are read from, and the lowest offset that is wanted of each."""
        reached, has_read = start_offset, False
        segments = finish(self.read_segments()).from_offset(start_offset)
        while segments:
            if end_offset is not None and segments[0].base_offset >= end_offset:
                return
            try:
                records = segments[0].open(max_decompressed_bytes=self.max_decompressed_bytes)
            except FileNotFoundError:
                segments = self._find_again(segments[0], reached, was_reached=has_read)
                continue
            with records:
                lowest = reached
                for run in records.runs(segments[0].search_start(records, lowest), run_bytes=run_bytes):
                    first, stop = _rows_between(run, lowest, end_offset)
                    if first < stop:
                        reached = max(reached, int(run.index["last_offset"][stop - 1]) + 1)
                        has_read = True
                        yield records, part_of_run(run, first, stop), lowest
                    if stop < len(run):
                        return
            segments = segments[1:]

    def _find_again(self, gone: Segment, wanted: int, *, was_reached: bool) -> list[Segment]:
        """The segments from `wanted` on, after `gone` was found to be deleted."""
        segments = finish(self.read_segments()).from_offset(wanted)
        if segments and segments[0].path == gone.path:
            raise FileNotFoundError(errno.ENOENT, "segment is listed and cannot be opened", str(gone.path))
        if was_reached and (not segments or segments[0].base_offset > wanted):
            start = f"the log starts at {segments[0].base_offset} now" if segments else "no segment is left"
            message = f"offsets from {wanted} on were deleted while the log was read: {start}"
            raise FileNotFoundError(errno.ENOENT, message, str(gone.path))
        return segments

    def _search(self, search: Callable[[ReadSegments], _Found]) -> _Found:
        """The outcome of a search, done again where segments were deleted meanwhile."""
        chosen = finish(self.read_segments())
        while True:
            try:
                return search(chosen)
            except FileNotFoundError:
                before, chosen = chosen, finish(self.read_segments())
                if chosen.segments == before.segments:
                    raise


def _folder(path: str | os.PathLike[str]) -> Path:
    folder = checked_path(path)
    if not folder.is_dir():
        if folder.exists():
            raise NotADirectoryError(errno.ENOTDIR, "expected a folder, found a file", str(folder))
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(folder))
    return folder


def _partition_of(path: Path) -> TopicPartition | None:
    """The partition that a folder of this name belongs to, named as a broker names it."""
    return partition_of_folder(path.name or path.absolute().name)


def partition_of_folder(name: str) -> TopicPartition | None:
    """The partition whose log a broker keeps in a folder of just that name; None for one that no broker makes.

    >>> partition_of_folder("orders-7"), partition_of_folder("orders-07")
    (TopicPartition(topic='orders', partition=7), None)
    """
    found = TopicPartition.from_folder_name(name)
    return found if found is not None and str(found) == name and found.partition <= _MAX_PARTITION else None


def _partition_of_segments(
    entry: os.DirEntry[str], on_denied: Callable[[PermissionError], None] | None
) -> TopicPartition | None:
    """The partition whose segments a folder holds; None for any other folder, and for one that may not be read.

    Raises PermissionError for the latter without `on_denied`.
    """
    found = partition_of_folder(entry.name)
    try:
        return found if found is not None and _holds_segments(entry.path) else None
    except PermissionError as error:
        if on_denied is None:
            raise
        on_denied(error)
        return None


def _holds_segments(path: str | Path) -> bool:
    try:
        with os.scandir(path) as entries:
            return any(is_segment_file_name(entry.name) and entry.is_file() for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link that leads to itself
            return False
        raise


def _rows_between(run: BatchRun, start_offset: int, end_offset: int | None) -> tuple[int, int]:
    """First and stop of the batches that may hold offsets from `start_offset` to in front of `end_offset`.

    A wrapper's base offset is not known; it is above the last offset in front of it.
    """
    last = run.index["last_offset"]
    stop = len(run)
    first = stop - int((last >= start_offset).sum()) if last[0] < start_offset else 0
    if end_offset is not None:
        past = run.index["base_offset"] >= end_offset
        past[1:] |= last[:-1] >= end_offset - 1
        stop = int(past.argmax()) if past.any() else stop
    return first, max(first, stop)


def part_of_run(run: BatchRun, first: int, stop: int) -> BatchRun:
    """Batches `first` to in front of `stop` of a run, as one of their own."""
    if first == 0 and stop == len(run):
        return run
    return BatchRun(run.buffer, run.index[first:stop], run.origin)
