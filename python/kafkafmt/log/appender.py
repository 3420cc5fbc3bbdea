"""Append to a partition's log in place, as a broker does: readers see appended batches at once.

A segment is closed and flushed, with its indexes, before the next one is created. So after a crash, only the last
segment may end with an incomplete batch. The next LogAppender that opens the log truncates it there.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.closing import Closing
from kafkafmt._util.directory_lock import LOCK_FILE, lock_partition_folder
from kafkafmt._util.files import (
    ensure_regular_or_missing,
    make_folder,
    naming_errors,
    open_regular,
    read_regular,
    replace_file,
    sync_path,
    write_durably,
)
from kafkafmt._util.locks import try_lock
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.log.batch_writer import (
    ensure_ascending,
    ensure_segment_bytes,
    segment_base_offset,
    write_all,
)
from kafkafmt.log.checkpoints import LOG_START_OFFSET_CHECKPOINT, CheckpointError, LogStartOffsets
from kafkafmt.log.growing_segment import GrowingSegment
from kafkafmt.log.indexes import (
    DEFAULT_INDEX_INTERVAL_BYTES,
    TRANSACTION_INDEX_DTYPE,
    AbortedTransaction,
    read_transaction_index,
    transaction_entries,
)
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.producer_states import ProducerStates
from kafkafmt.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    segment_file_name,
)
from kafkafmt.log.writer import DEFAULT_SEGMENT_BYTES
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.runs import whole_batches
from kafkafmt.storage import writable_path

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from _kafkafmt.batches.scan import BatchRun

_BESIDE_LOG = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX)


class LogAppender(Closing):
    """Append to the log in `folder`. A missing folder is created with an empty segment.

    A context manager that closes the log. Not safe to use from several threads, except `flush`.

    Offsets come from the batches and must ascend; an empty log begins with the first offset. If the open segment would
    exceed `segment_bytes`, it is closed. The next one gets the name of its first offset.

    max_decompressed_bytes: the limit for a v0/v1 wrapper that is opened, because a segment begins with it.
    truncated_bytes: the bytes after the last valid batch, which were cut off when the log was opened.

    Only one appender may have a folder open, in all processes: others get BlockingIOError. The file system must support
    flock for this. The log directory, the folder's parent, is locked against brokers until the appender is closed.

    Raises DirectoryLockedError, a BlockingIOError, before any change if a broker uses the log directory. Raises
    CorruptRecordError if a valid batch follows an invalid one: this damage is left as it is. Raises InvalidRecordError
    if the offsets in the last segment do not ascend, and OSError, also for a URI.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self.folder = writable_path(folder)
        ensure_segment_bytes(segment_bytes)
        self.segment_bytes = segment_bytes
        self.index_interval_bytes = index_interval_bytes
        self.max_decompressed_bytes = max_decompressed_bytes
        self._log_start = LogStartOffsets().of(self.folder)
        self._failure: OSError | None = None
        self._producers: ProducerStates | None = None
        with contextlib.ExitStack() as undo:
            self._directory_lock = undo.enter_context(lock_partition_folder(self.folder))
            make_folder(self.folder)
            self._lock = _locked(self.folder / LOCK_FILE)
            undo.callback(os.close, self._lock)
            self._segment = self._open_last()
            undo.pop_all()
        self._is_closed = False
        self.truncated_bytes = self._segment.truncated_bytes

    @property
    def next_offset(self) -> int:
        """The offset after the last batch; the base offset of the segment if it has no batch."""
        return self._segment.next_offset

    @property
    def last_leader_epoch(self) -> int:
        """The leader epoch of the last batch; -1 if it has none, or the last segment has no batch."""
        return self._segment.last_leader_epoch

    @property
    def is_in_place(self) -> bool:
        """Whether the open segment is still in the folder: neither was deleted, moved or replaced.

        Raises ValueError after `close`.
        """
        self._ensure_not_closed()
        return self._segment.is_in_place

    @property
    def failure(self) -> OSError | None:
        """The error of the flush that failed, also of the flush by `close`; None if none failed.

        A new appender does not find it: Linux reports bytes that it could not write once, and may return them from
        memory.
        """
        return self._failure

    @property
    def producers(self) -> ProducerStates:
        """The states of the log's producers, read from the log at the first access.

        They are read from the `.snapshot` of the last segment and that segment, or without a `.snapshot` from the whole
        log. Raises KafkaFormatError and OSError if the log cannot be read.
        """
        if self._producers is None:
            self._producers = self._read_producers()
        return self._producers

    def append(self, data: RecordBatch | Buffer) -> None:
        """Append a batch, or the bytes of whole batches.

        Raises KafkaFormatError for bytes that are not batches, InvalidRecordError for offsets that do not ascend,
        ValueError for an incomplete batch, and OSError if writing fails. After an error the log is unchanged.
        """
        self.append_run(whole_batches(data))

    def append_run(self, run: BatchRun, first: int = 0, stop: int | None = None) -> None:
        """Append batches `first` to before `stop` of a run. There must be no gap between their bytes.

        Batches beyond `segment_bytes` go to new segments. If writing fails, the segments that were filled before keep
        their batches. Raises as `append`, and CheckpointError for offsets below the log start offset.
        """
        self._ensure_open()
        stop = len(run) if stop is None else stop
        ensure_ascending(run.index[first:stop], self.next_offset, self.folder)
        if first < stop and (last_offset := int(run.index["last_offset"][first])) < self._log_start:
            raise CheckpointError(
                f"{self.folder}: {LOG_START_OFFSET_CHECKPOINT} beside it says that records below {self._log_start} are "
                f"deleted, and a batch that ends at {last_offset} is appended: remove the partition's line if its "
                "log was made again"
            )
        while first < stop:
            fitting = self._segment.fitting(run.index[first:stop], self.segment_bytes)
            is_new = not self._segment.size_in_bytes
            if first + fitting < stop and not is_new:
                self._roll(self._base_offset(run, first))
                continue
            if is_new:
                self.begin_at(self._base_offset(run, first))
            self._append(run, first, first + fitting)
            first += fitting

    def _base_offset(self, run: BatchRun, number: int) -> int:
        return segment_base_offset(run, number, self.next_offset, self.max_decompressed_bytes)

    def begin_at(self, base_offset: int) -> None:
        """Continue at `base_offset` in a log whose last segment is empty: rename this segment, durably.

        Raises ValueError if the segment has batches or its base offset is higher, and OSError.
        """
        self._ensure_open()
        if self._segment.size_in_bytes or base_offset < self.next_offset:
            message = f"expected to continue at {self.next_offset}, or higher if the last segment is empty"
            raise ValueError(f"{self.folder}: {message}, found {base_offset}")
        if self._segment.base_offset == base_offset:
            return
        replaced, self._segment = self._segment, self._create(base_offset)
        replaced.close()
        self._remove(replaced.base_offset)

    def flush(self) -> int:
        """Flush all batches that were appended before this call to disk. Returns the offset after them.

        Any thread may call it. Raises OSError if it fails. As it is then unknown which batches are on disk, all later
        appends raise that error, too.
        """
        self._ensure_open()
        segment = self._segment
        end = segment.next_offset
        try:
            segment.flush()
        except OSError as error:
            self._failure = OSError(error.errno, error.strerror, str(segment.path))
            raise self._failure from None
        return end

    def close(self) -> None:
        """Flush the log with its indexes to disk, and release its locks. A second call does nothing.

        If the log is not in place, nothing is flushed: the indexes in the folder may be those of another log. After
        a flush that failed, nothing is flushed either: Linux reports bytes that it could not write only once.
        """
        if self._is_closed:
            return
        try:
            if self._failure is None and self._segment.is_in_place:
                self._finish()
        finally:
            self._is_closed = True
            self._segment.close()
            os.close(self._lock)
            self._directory_lock.close()

    def _ensure_open(self) -> None:
        self._ensure_not_closed()
        if (failure := self._failure) is not None:  # a new error: the traceback of one that is kept grows
            raise OSError(failure.errno, failure.strerror, failure.filename)

    def _ensure_not_closed(self) -> None:
        if self._is_closed:
            raise ValueError(f"{self.folder}: the log was closed")

    def _open_last(self) -> GrowingSegment:
        segments = PartitionLog(self.folder).segments()
        for empty in segments[:-1]:
            if not empty.size_in_bytes:  # a process was killed before it replaced this one by the next one
                self._remove(empty.base_offset)
        if not segments:
            self._producers = ProducerStates()
            return self._create(0)
        segment = GrowingSegment(self.folder / segments[-1].path.name, self.index_interval_bytes)
        if not segment.size_in_bytes:  # `create_log`, which flushes nothing, may have created it
            sync_path(self.folder)
            sync_path(self.folder.parent)
        _cut_off_transactions(segment)
        read = PartitionLog(self.folder).read_segments().segments
        if read and read[-1].base_offset != segment.base_offset:  # earlier segments have all its offsets
            segment.close()
            return self._create(read[-1].find_next_offset())
        if segments[0].base_offset == segment.base_offset and not segment.size_in_bytes:
            self._producers = ProducerStates()
        return segment

    def _append(self, run: BatchRun, first: int, stop: int) -> None:
        """Append to the open segment. Its `.txnindex` is written first: it must not miss a transaction of the log."""
        rows = run.index[first:stop]
        tracker = None
        with contextlib.ExitStack() as undo:
            if rows["is_transactional"].any():
                aborted, tracker = self.producers.aborted_by(run, first, stop)
                if aborted:
                    undo.callback(_add_aborted(self._segment.path, aborted))
            self._segment.append_run(run, first, stop)
            undo.pop_all()
        if self._producers is not None:
            self._producers.add(run, first, stop, tracker)

    def _roll(self, base_offset: int) -> None:
        """Close the segment and create the next one, with a `.snapshot` if the closed segment has one."""
        if self._producers is None and self._path(self._segment.base_offset, SNAPSHOT_SUFFIX).exists():
            self._producers = self._read_producers()
        self._finish()
        closed, self._segment = self._segment, self._create(base_offset)
        closed.close()

    def _finish(self) -> None:
        """Flush the open segment with its indexes. An error of an index is no `failure`: they only speed up reads."""
        self.flush()
        self._segment.finish()

    def _create(self, base_offset: int) -> GrowingSegment:
        """Create a segment, with a `.snapshot` if producers are known. Removes remains of a segment without `.log`."""
        for suffix in _BESIDE_LOG:
            self._path(base_offset, suffix).unlink(missing_ok=True)
        if self._producers is not None:
            write_durably(self._path(base_offset, SNAPSHOT_SUFFIX), self._producers.snapshot())
        path = self._path(base_offset, LOG_SUFFIX)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        try:
            sync_path(self.folder)
            return GrowingSegment(path, self.index_interval_bytes)
        except BaseException:  # out of descriptors, for example: the next append creates the segment
            with contextlib.suppress(OSError):
                self._remove(base_offset)
            raise

    def _remove(self, base_offset: int) -> None:
        for suffix in (LOG_SUFFIX, *_BESIDE_LOG):
            self._path(base_offset, suffix).unlink(missing_ok=True)
        sync_path(self.folder)

    def _path(self, base_offset: int, suffix: str) -> Path:
        return self.folder / segment_file_name(base_offset, suffix)

    def _read_producers(self) -> ProducerStates:
        segments = PartitionLog(self.folder).read_segments().segments
        states = None
        with contextlib.suppress(FileNotFoundError):
            states = ProducerStates.from_snapshot(
                read_regular(self._path(segments[-1].base_offset, SNAPSHOT_SUFFIX))
            )
        if states is None:
            states = ProducerStates()
        else:
            segments = segments[-1:]
        for segment in segments:
            aborted: list[AbortedTransaction] = []
            with segment.open() as records:
                for run in records.runs(reuse_memory=True):
                    found, tracker = states.aborted_by(run, 0, len(run))
                    aborted += found
                    states.add(run, 0, len(run), tracker)
            _ensure_indexed(segment, aborted)
        return states


def create_log(folder: Path) -> None:
    """Create an empty log in `folder`, unless it has a segment. The caller must have locked the log directory.

    Nothing is flushed here: `LogAppender` flushes a log that it finds empty. Raises OSError.
    """
    folder.mkdir(exist_ok=True)
    if not PartitionLog(folder).segments():
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        os.close(os.open(folder / segment_file_name(0), flags, 0o666))


def ensure_not_open(folder: Path) -> None:
    """Raise BlockingIOError if a `LogAppender` of any process has the log in a partition's folder open."""
    if (folder / LOCK_FILE).exists():
        os.close(_locked(folder / LOCK_FILE))


def _locked(path: Path) -> int:
    """Open and lock a file. Returns its descriptor; closing this ends the lock. Raises BlockingIOError if it is locked.

    On a file system without locks, the file is only opened.
    """
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        is_free = try_lock(descriptor)
    except OSError:
        is_free = True
    if not is_free:
        os.close(descriptor)
        raise BlockingIOError(errno.EWOULDBLOCK, "another writer has the log open", str(path.parent))
    return descriptor


def _cut_off_transactions(segment: GrowingSegment) -> None:
    """Drop the entries of a `.txnindex` whose markers are not in the log. A damaged file stays as it is."""
    path = segment.path.with_suffix(TRANSACTION_INDEX_SUFFIX)
    ensure_regular_or_missing(path)
    known = read_transaction_index(path, segment.base_offset, is_active=True)
    if known is None or not path.exists():
        return
    kept = sum(one.last_offset < segment.next_offset for one in known)
    os.truncate(path, kept * TRANSACTION_INDEX_DTYPE.itemsize)


def _ensure_indexed(segment: Segment, aborted: list[AbortedTransaction]) -> None:
    """Add the aborted transactions that the `.txnindex` of a segment lacks, durably.

    A `.snapshot` after the segment says that the file has all. Copies, and Spark's sink, write segments without it.
    """
    assert isinstance(segment.path, Path)
    path = segment.path.with_suffix(TRANSACTION_INDEX_SUFFIX)
    known = read_transaction_index(path, segment.base_offset, is_active=segment.is_active) or []
    markers = {one.last_offset for one in known}
    missing = [one for one in aborted if one.last_offset not in markers]
    if missing:
        replace_file(path, transaction_entries(known + missing).tobytes())


def _add_aborted(log: Path, aborted: list[AbortedTransaction]) -> Callable[[], None]:
    """Add entries to the `.txnindex` of a segment, durably. Returns a function that removes them again."""
    path = log.with_suffix(TRANSACTION_INDEX_SUFFIX)
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT)
    try:
        size = os.fstat(descriptor).st_size

        def take_back() -> None:
            os.truncate(path, size)

        try:
            with naming_errors(path):
                write_all(descriptor, memoryview(transaction_entries(aborted).tobytes()), size)
                os.fsync(descriptor)
            if not size:  # the file may be new
                sync_path(path.parent)
        except OSError:
            take_back()
            raise
    finally:
        os.close(descriptor)
    return take_back
