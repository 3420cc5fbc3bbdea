"""A partition's log appended to in place, as a broker does it: readers see what is appended at once.

A segment is closed, and made durable with its indexes, before the next one is there. So a crash leaves at most the
last segment with an end that is no whole batch, which the next one who opens the log cuts off.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.directory_lock import LOCK_FILE, lock_partition_folder
from kafkafmt._util.files import (
    ensure_regular_or_missing,
    open_regular,
    read_regular,
    sync_folder,
    write_durably,
)
from kafkafmt._util.steps import finish
from kafkafmt.batch import RecordBatch
from kafkafmt.closing import Closing
from kafkafmt.log.appending import MAX_INT32, ensure_ascending, whole_batches, write_all
from kafkafmt.log.checkpoints import LOG_START_OFFSET_CHECKPOINT, CheckpointError, LogStartOffsets
from kafkafmt.log.directory import PartitionLog
from kafkafmt.log.growing_segment import GrowingSegment
from kafkafmt.log.indexes import (
    DEFAULT_INDEX_INTERVAL_BYTES,
    TRANSACTION_INDEX_DTYPE,
    AbortedTransaction,
    read_transaction_index,
    transaction_entries,
)
from kafkafmt.log.producer_states import ProducerStates
from kafkafmt.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from kafkafmt.log.writer import DEFAULT_SEGMENT_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from _kafkafmt.scan import BatchRun

_BESIDE_LOG = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX)


class LogAppender(Closing):
    """Appends to the log in a folder, which is made, with an empty segment, where it is missing.

    A context manager that closes it. Offsets are those of the batches and ascend; an empty log begins with the first
    one. A segment that has no room for all that is appended at once, within `segment_bytes`, is closed, and the next
    one named for the first offset in it.

    truncated_bytes: what was cut off at the end when it was opened, as it was no whole valid batch.

    One appender at a time: raises BlockingIOError where another one, of any process, has the folder (a lock that the
    file system must know, flock). Raises CorruptRecordError where a valid batch stands behind what is none: that is
    damage, and is left as it is; InvalidRecordError where offsets in the last segment do not ascend; and OSError.
    Not safe for threads, `flush` excepted.

    The log directory, the folder's parent, is locked against brokers until the appender is closed. Raises
    DirectoryLockedError, a BlockingIOError, before anything is touched if a broker runs there.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    ) -> None:
        if not 1 <= segment_bytes <= MAX_INT32:
            raise ValueError(f"segment_bytes: expected 1 to 2^31 - 1, found {segment_bytes}")
        self.folder = Path(folder)
        self.segment_bytes = segment_bytes
        self.index_interval_bytes = index_interval_bytes
        self._log_start = LogStartOffsets().of(self.folder)
        self._failure: OSError | None = None
        self._producers: ProducerStates | None = None
        with contextlib.ExitStack() as undo:
            self._directory_lock = undo.enter_context(lock_partition_folder(self.folder))
            if not self.folder.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                sync_folder(self.folder.parent)
            self._lock = _locked(self.folder / LOCK_FILE)
            undo.callback(os.close, self._lock)
            self._segment = self._open_last()
            undo.pop_all()
        self._is_closed = False
        self.truncated_bytes = self._segment.truncated_bytes

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch; where there is none the base offset of the segment."""
        return self._segment.next_offset

    @property
    def producers(self) -> ProducerStates:
        """What the log knows of its producers: read from it when it is asked for first.

        From the last segment on where a `.snapshot` is beside it, else from the start. Raises KafkaFormatError and
        OSError where that cannot be read.
        """
        if self._producers is None:
            self._producers = self._read_producers()
        return self._producers

    def append(self, data: RecordBatch | Buffer) -> None:
        """Append a batch, or the bytes of whole batches.

        Raises KafkaFormatError for bytes that are no batches, and InvalidRecordError for offsets that do not ascend;
        ValueError for a part of a batch; OSError where it cannot be written. The log is as it was before then.
        """
        self.append_run(whole_batches(data, 0))

    def append_run(self, run: BatchRun, first: int = 0, stop: int | None = None) -> None:
        """Append batches `first` to `stop` of a run, from which no byte is missing between them.

        What is larger than `segment_bytes` goes to several segments; where writing fails, those that were full keep
        their part of it. Raises as `append` does.
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
                self._roll(RecordBatch(run, first).base_offset)
                continue
            if is_new:
                self.begin_at(RecordBatch(run, first).base_offset)
            self._append(run, first, first + fitting)
            first += fitting

    def begin_at(self, base_offset: int) -> None:
        """Have a log whose end is an empty segment go on at an offset, durably: the segment is named for that.

        Raises ValueError where the segment has batches, or begins behind that offset; and OSError.
        """
        self._ensure_open()
        if self._segment.size_in_bytes or base_offset < self.next_offset:
            message = (
                f"expected to go on at {self.next_offset}, or behind that where the last segment is empty"
            )
            raise ValueError(f"{self.folder}: {message}, found {base_offset}")
        if self._segment.base_offset == base_offset:
            return
        replaced, self._segment = self._segment, self._create(base_offset)
        replaced.close()
        self._remove(replaced.base_offset)

    def flush(self) -> int:
        """Make durable what was appended before this was called, in any thread; return the offset behind it.

        Once that has failed nobody knows what is durable, so that nothing is appended any more.
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
        """Make all of it durable and give the log back. Does nothing where it is closed."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._segment.finish()
        finally:
            self._segment.close()
            os.close(self._lock)
            self._directory_lock.close()

    def _ensure_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"{self.folder}: the log was closed")
        if self._failure is not None:
            raise self._failure

    def _open_last(self) -> GrowingSegment:
        segments = PartitionLog(self.folder).segments()
        for empty in segments[:-1]:
            if not empty.size_in_bytes:  # whoever was about to replace it by the one behind it was killed
                self._remove(empty.base_offset)
        if not segments:
            self._producers = ProducerStates()
            return self._create(0)
        segment = GrowingSegment(segments[-1].path, self.index_interval_bytes)
        if not segment.size_in_bytes:  # `create_log` made it, perhaps
            sync_folder(self.folder)
            sync_folder(self.folder.parent)
        _cut_off_transactions(segment)
        read = finish(PartitionLog(self.folder).read_segments()).segments
        if read and read[-1].base_offset != segment.base_offset:  # its offsets are in segments before it, too
            segment.close()
            return self._create(read[-1].find_next_offset())
        if segments[0].base_offset == segment.base_offset and not segment.size_in_bytes:
            self._producers = ProducerStates()
        return segment

    def _append(self, run: BatchRun, first: int, stop: int) -> None:
        """To the segment that is open. Its `.txnindex` comes first: it must not lack what the log has."""
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
        """Close the segment and begin the next one, which has a `.snapshot` where the one before has one."""
        if self._producers is None and self._path(self._segment.base_offset, SNAPSHOT_SUFFIX).exists():
            self._producers = self._read_producers()
        self.flush()
        self._segment.finish()
        closed, self._segment = self._segment, self._create(base_offset)
        closed.close()

    def _create(self, base_offset: int) -> GrowingSegment:
        """A new segment, beside it what is known of producers, in place of what is left of one without a `.log`."""
        for suffix in _BESIDE_LOG:
            self._path(base_offset, suffix).unlink(missing_ok=True)
        if self._producers is not None:
            write_durably(self._path(base_offset, SNAPSHOT_SUFFIX), self._producers.snapshot())
        path = self._path(base_offset, LOG_SUFFIX)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        sync_folder(self.folder)
        return GrowingSegment(path, self.index_interval_bytes)

    def _remove(self, base_offset: int) -> None:
        for suffix in (LOG_SUFFIX, *_BESIDE_LOG):
            self._path(base_offset, suffix).unlink(missing_ok=True)
        sync_folder(self.folder)

    def _path(self, base_offset: int, suffix: str) -> Path:
        return self.folder / segment_file_name(base_offset, suffix)

    def _read_producers(self) -> ProducerStates:
        segments = finish(PartitionLog(self.folder).read_segments()).segments
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
            with segment.open() as records:
                for run in records.runs(reuse_memory=True):
                    states.add(run, 0, len(run))
        return states


def create_log(folder: Path) -> None:
    """Create the folder of an empty log, unless it has a segment. The caller has locked the log directory.

    Nothing is flushed: `LogAppender` flushes what it finds empty. Raises OSError.
    """
    folder.mkdir(exist_ok=True)
    if not PartitionLog(folder).segments():
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        os.close(os.open(folder / segment_file_name(0), flags, 0o666))


def ensure_not_open(folder: Path) -> None:
    """Raise BlockingIOError if a `LogAppender` has the log in a partition's folder open, in whatever process."""
    if (folder / LOCK_FILE).exists():
        os.close(_locked(folder / LOCK_FILE))


def _locked(path: Path) -> int:
    """The descriptor of a file that is locked until it is closed; without a lock where a file system has none."""
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        message = "another writer has the log open"
        raise BlockingIOError(errno.EWOULDBLOCK, message, str(path.parent)) from None
    except OSError:
        pass
    return descriptor


def _cut_off_transactions(segment: GrowingSegment) -> None:
    """Drop entries of a `.txnindex` whose marker did not get into the log. One that is damaged stays as it is."""
    path = segment.path.with_suffix(TRANSACTION_INDEX_SUFFIX)
    ensure_regular_or_missing(path)
    known = read_transaction_index(path, segment.base_offset, is_active=True)
    if known is None or not path.exists():
        return
    kept = sum(one.last_offset < segment.next_offset for one in known)
    os.truncate(path, kept * TRANSACTION_INDEX_DTYPE.itemsize)


def _add_aborted(log: Path, aborted: list[AbortedTransaction]) -> Callable[[], None]:
    """Add entries to the `.txnindex` of a segment, durably; returns what takes them back."""
    path = log.with_suffix(TRANSACTION_INDEX_SUFFIX)
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT)
    try:
        size = os.fstat(descriptor).st_size

        def take_back() -> None:
            os.truncate(path, size)

        try:
            write_all(descriptor, memoryview(transaction_entries(aborted).tobytes()), size)
            os.fsync(descriptor)
        except OSError:
            take_back()
            raise
    finally:
        os.close(descriptor)
    return take_back
