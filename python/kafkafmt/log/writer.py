"""Writing segments with their indexes, so that a reader never sees half of one.

What is written goes to temporary files in the same folder, whose names no reader takes for a segment's. A
commit makes them durable and renames them, the `.log` last, which is what makes a segment be there. A writer
that is killed leaves temporaries, and perhaps indexes without a `.log`, which mean nothing to readers.

A writer holds a lock (flock) on its temporary `.log` until it ends, however it ends. So temporaries whose lock
is free are stale, and the next writer removes them; on file systems without such locks they are left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from kafkafmt._util.directory_lock import DirectoryLock, lock_partition_folder
from kafkafmt._util.files import NotRegularFileError, open_regular
from kafkafmt.batch import RecordBatch
from kafkafmt.log.appending import (
    MAX_INT32,
    SegmentAppender,
    ensure_ascending,
    whole_batches,
    write_index,
)
from kafkafmt.log.directory import PartitionLog
from kafkafmt.log.indexes import (
    DEFAULT_INDEX_INTERVAL_BYTES,
    AbortedTransaction,
    transaction_entries,
)
from kafkafmt.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

    from _kafkafmt.scan import BatchRun

# The broker's default of `log.segment.bytes`.
DEFAULT_SEGMENT_BYTES = 1024 * 1024 * 1024

_TEMPORARY_NAME = re.compile(r"(?P<segment>\.\d{20})\.[a-z]+\.(?P<token>[0-9a-f]{16})\.tmp")


class SegmentWriter:
    """Writes one segment: `append` its batches, then `commit`; `abort` leaves nothing of it.

    A context manager that commits, or aborts where an exception ends it. The folder is made where it is
    missing. base_offset names the segment and is no higher than any offset in it.

    Raises FileExistsError where the folder has that segment already, unless it is to be replaced; indexes
    without their segment always are. A reader of a segment that is replaced sees the old one, or the new one;
    for a moment it may see the old one with the new indexes, which it will find wrong. The folder is locked
    (flock) during a commit: a caller must not hold that lock.

    The log directory, the folder's parent, is locked against brokers until the writer ends. Raises
    DirectoryLockedError, a BlockingIOError, before anything is touched if a broker runs there.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        base_offset: int,
        *,
        index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
        replace: bool = False,
    ) -> None:
        if base_offset < 0:
            raise ValueError(f"base_offset: expected 0 or more, found {base_offset}")
        self.folder = Path(folder)
        self.base_offset = base_offset
        self.path = self.folder / segment_file_name(base_offset)
        self._appender = SegmentAppender(self.path, base_offset, index_interval_bytes)
        self._aborted: list[AbortedTransaction] = []
        self._replace = replace
        self._ended = False
        with contextlib.ExitStack() as undo:
            self._lock = undo.enter_context(lock_partition_folder(self.folder))
            self.folder.mkdir(parents=True, exist_ok=True)
            self._refuse_existing()
            self._descriptor, self._token = self._create_log()
            undo.pop_all()

    @property
    def size_in_bytes(self) -> int:
        """Bytes appended."""
        return self._appender.size_in_bytes

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch; the base offset before there is one."""
        return self._appender.next_offset

    def append(self, data: RecordBatch | Buffer) -> None:
        """Append a batch, or the bytes of whole batches.

        Raises KafkaFormatError for bytes that are no batches, and InvalidRecordError for offsets that do not
        ascend or are below the base offset; ValueError for a part of a batch, and for more than fits into a
        segment: 2^31 - 1 bytes, and as many offsets; OSError where it cannot be written. The segment is as it was
        before then, and `data` may be appended again.
        """
        self.append_run(whole_batches(data, self.size_in_bytes))

    def append_run(self, run: BatchRun, first: int = 0, stop: int | None = None) -> None:
        """Append batches `first` to `stop` of a run, from which no byte is missing between them."""
        self._ensure_open()
        self._appender.append_run(self._descriptor, run, first, stop)

    def add_aborted_transactions(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Have `.txnindex` name these: transactions whose abort marker is in this segment."""
        self._ensure_open()
        self._aborted += transactions

    def commit(self) -> Path:
        """Make the segment be there, all of it and durable; return its path. Nothing is left to do then.

        Raises FileExistsError, having aborted, where another writer was faster.
        """
        self._ensure_open()
        try:
            os.ftruncate(self._descriptor, self.size_in_bytes)  # what an append that failed has left
            os.fsync(self._descriptor)
            indexes = self._appender.index_entries()
            if self._aborted:
                indexes[TRANSACTION_INDEX_SUFFIX] = transaction_entries(self._aborted)
            for suffix, entries in indexes.items():
                write_index(self._temporary(suffix), entries)
            with locked_folder(self.folder) as folder:
                self._refuse_existing()
                for suffix in indexes:
                    self._temporary(suffix).rename(self._final(suffix))
                if TRANSACTION_INDEX_SUFFIX not in indexes:
                    self._final(TRANSACTION_INDEX_SUFFIX).unlink(missing_ok=True)
                os.fsync(folder)
                self._temporary(LOG_SUFFIX).rename(self.path)
                os.fsync(folder)
        except BaseException:
            self.abort()
            raise
        self._end()
        return self.path

    def abort(self) -> None:
        """Remove what was written. Does nothing once committed or aborted."""
        if self._ended:
            return
        try:
            for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, LOG_SUFFIX):
                self._temporary(suffix).unlink(missing_ok=True)
        finally:
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif not self._ended:
            self.commit()

    def _create_log(self) -> tuple[int, str]:
        """A new temporary that is locked, and its token."""
        while True:
            token = secrets.token_hex(8)
            path = self._temporary(LOG_SUFFIX, token)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o666)
            wait_for_lock(descriptor)
            if os.fstat(descriptor).st_nlink:
                return descriptor, token
            os.close(descriptor)  # removed as stale between its creation and the lock

    def _temporary(self, suffix: str, token: str | None = None) -> Path:
        return self.folder / f".{segment_file_name(self.base_offset, suffix)}.{token or self._token}.tmp"

    def _final(self, suffix: str) -> Path:
        return self.folder / segment_file_name(self.base_offset, suffix)

    def _refuse_existing(self) -> None:
        if not self._replace and self.path.exists():
            raise FileExistsError(errno.EEXIST, "segment exists already", str(self.path))

    def _ensure_open(self) -> None:
        if self._ended:
            raise ValueError(f"{self.path}: the segment was committed or aborted")

    def _end(self) -> None:
        self._ended = True
        os.close(self._descriptor)
        self._lock.close()


class PartitionLogWriter:
    """Writes the log of a partition into a folder, a segment after the other.

    A segment is named for the offset of its first batch and committed when the next batch would not fit into
    `segment_bytes`, and at the end. Where the folder has segments already, offsets go on behind theirs. Removes
    what dead writers left in the folder.

    A context manager that commits, or aborts where an exception ends it; segments that were committed before stay.
    Raises FileExistsError where a segment of that name exists, and KafkaFormatError where damage hides the end of
    the log that is there; else as `SegmentWriter`.

    The log directory, the folder's parent, is locked against brokers until `commit` or `abort`. An append after that
    locks it again and goes on at the end of the log that it finds.
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
        self.committed: list[Path] = []
        self._segment: SegmentWriter | None = None
        self._aborted: list[AbortedTransaction] = []
        self._lock: DirectoryLock | None = None
        self._open()

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch, of the log that was there before where nothing is appended."""
        return self._committed_offset if self._segment is None else self._segment.next_offset

    def append(self, data: RecordBatch | Buffer) -> None:
        """Append a batch, or the bytes of whole batches, to as many segments as they need.

        Raises as `SegmentWriter.append`.
        Offsets ascend across segments, too. Where writing fails, segments that were full may hold a part of `data`.
        """
        run = whole_batches(data, 0)
        if self._lock is None:
            self._open()
        ensure_ascending(run.index, self.next_offset, self.folder)
        first = 0
        while first < len(run):
            if self._segment is None:
                self._segment = SegmentWriter(
                    self.folder,
                    RecordBatch(run, first).base_offset,
                    index_interval_bytes=self.index_interval_bytes,
                )
            appender = self._segment._appender
            stop = appender.fitting(run.index[first:], self.segment_bytes) + first
            if stop > first:
                self._segment.append_run(run, first, stop)
            if stop < len(run):
                self._commit_segment()
            first = stop

    def add_aborted_transactions(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Have the `.txnindex` of the segments that hold their markers, committed from now on, name these."""
        self._aborted += transactions

    def commit(self) -> list[Path]:
        """Commit the last segment; return the paths of all."""
        try:
            if self._segment is not None:
                self._commit_segment()
        finally:
            self._release()
        return self.committed

    def abort(self) -> None:
        """Remove what was written of a segment that is not committed."""
        segment, self._segment = self._segment, None
        try:
            if segment is not None:
                segment.abort()
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        else:
            self.commit()

    def _open(self) -> None:
        """Lock the log directory, and find where the log ends."""
        with contextlib.ExitStack() as undo:
            lock = undo.enter_context(lock_partition_folder(self.folder))
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_stale_temporaries(self.folder)
            self._committed_offset = PartitionLog(self.folder).closed_end_offset()
            undo.pop_all()
        self._lock = lock

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def _commit_segment(self) -> None:
        segment, self._segment = self._segment, None
        assert segment is not None
        ended = [one for one in self._aborted if one.last_offset < segment.next_offset]
        segment.add_aborted_transactions(one for one in ended if one.last_offset >= segment.base_offset)
        self._aborted = [one for one in self._aborted if one.last_offset >= segment.next_offset]
        self.committed.append(segment.commit())
        self._committed_offset = segment.next_offset


def remove_stale_temporaries(folder: str | os.PathLike[str]) -> list[Path]:
    """Remove the temporaries of writers that no longer live from a folder; return their paths.

    Safe beside writers at work, in this process and others: what is locked stays.
    """
    writers: dict[str, list[Path]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _TEMPORARY_NAME.fullmatch(entry.name)
            if match:
                log = f"{match['segment']}{LOG_SUFFIX}.{match['token']}.tmp"
                writers.setdefault(log, []).append(Path(folder, entry.name))
    removed = []
    for log, paths in writers.items():
        with _lock_of_dead(Path(folder, log)) as is_dead:
            if is_dead:
                for path in paths:
                    path.unlink(missing_ok=True)
                removed += paths
    return sorted(removed)


@contextlib.contextmanager
def _lock_of_dead(log: Path) -> Iterator[bool]:
    """Holds the lock of a temporary `.log`; False where its writer does."""
    try:
        descriptor = open_regular(log)
    except FileNotFoundError:
        yield True
        return
    except NotRegularFileError:  # no writer makes such a thing
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_dead = True
    except OSError:
        is_dead = False
    try:
        yield is_dead
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[int]:
    """The folder's descriptor, locked: of two writers of a segment one renames all its files, or the other."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        wait_for_lock(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def wait_for_lock(descriptor: int) -> None:
    """Wait for an exclusive lock; do without one on a file system that has none."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
