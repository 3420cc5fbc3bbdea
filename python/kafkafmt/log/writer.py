"""Write segments with their indexes, so that readers never see an incomplete one.

Writers write to temporary files in the same folder, which readers ignore. A commit flushes them and renames them, the
`.log` last; then the segment exists for readers. A writer that is killed leaves temporary files, and perhaps indexes
without a `.log`, which readers ignore, too.

A writer holds a lock (flock) on its temporary `.log` until it or its process ends. So temporary files whose lock is
free are stale, and the next writer removes them. On file systems without such locks they stay.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from kafkafmt._util.directory_lock import DirectoryLock, lock_partition_folder
from kafkafmt._util.files import (
    NotRegularFileError,
    make_folder,
    naming_errors,
    open_regular,
    write_durably,
)
from kafkafmt._util.locks import locked_folder, take_over, wait_for_lock
from kafkafmt.log.batch_writer import (
    BatchWriter,
    ensure_ascending,
    ensure_segment_bytes,
    segment_base_offset,
)
from kafkafmt.log.indexes import (
    DEFAULT_INDEX_INTERVAL_BYTES,
    AbortedTransaction,
    transaction_entries,
)
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.runs import whole_batches
from kafkafmt.storage import writable_path
from kafkafmt.types import check_int

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer, Self

    from _kafkafmt.batches.scan import BatchRun

# The broker's default of `log.segment.bytes`.
DEFAULT_SEGMENT_BYTES = 1024 * 1024 * 1024

_TEMPORARY_NAME = re.compile(r"(?P<segment>\.\d{20})\.[a-z]+\.(?P<token>[0-9a-f]{16})\.tmp")


class SegmentWriter:
    """Write one segment: `append` its batches, then `commit`, or `abort` to remove it.

    A context manager that commits, or aborts after an exception. A missing folder is created.

    base_offset: the name of the segment; no offset in it may be lower.
    replace: replace an existing segment. Indexes without their segment are always replaced.

    A reader of a replaced segment sees the old or the new one. For a moment it may see the old one with the new
    indexes, which do not match. The folder is locked (flock) during a commit: the caller must not hold this lock. The
    log directory, the folder's parent, is locked against brokers until the writer ends.

    Raises FileExistsError if the segment exists and `replace` is not set. Raises DirectoryLockedError, a
    BlockingIOError, before any change if a broker uses the log directory.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        base_offset: int,
        *,
        index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
        replace: bool = False,
    ) -> None:
        check_int("base_offset", base_offset, 0)
        self.folder = writable_path(folder)
        self.base_offset = base_offset
        self.path = self.folder / segment_file_name(base_offset)
        self._batch_writer = BatchWriter(self.path, base_offset, index_interval_bytes)
        self._aborted: list[AbortedTransaction] = []
        self._replace = replace
        self._ended = False
        with contextlib.ExitStack() as undo:
            self._lock = undo.enter_context(lock_partition_folder(self.folder))
            make_folder(self.folder)
            self._refuse_existing()
            self._descriptor, self._token = self._create_log()
            undo.pop_all()

    @property
    def size_in_bytes(self) -> int:
        """The number of appended bytes."""
        return self._batch_writer.size_in_bytes

    @property
    def next_offset(self) -> int:
        """The offset after the last batch; the base offset if there is no batch."""
        return self._batch_writer.next_offset

    def fitting(self, rows: NDArray[np.void], segment_bytes: int) -> int:
        """Return how many batches of `rows` fit into a segment of `segment_bytes`; at least 1 if it is empty.

        rows: of the index of a run.
        """
        return self._batch_writer.fitting(rows, segment_bytes)

    def append(self, data: RecordBatch | Buffer) -> None:
        """Append a batch, or the bytes of whole batches.

        Raises KafkaFormatError for bytes that are not batches. Raises InvalidRecordError for offsets that do not ascend
        or are below the base offset. Raises ValueError for an incomplete batch, and for more than a segment can have:
        2^31 - 1 bytes, and 2^31 offsets. Raises OSError if writing fails. After an error the segment is unchanged, and
        `data` may be appended again.
        """
        self.append_run(whole_batches(data, self.size_in_bytes))

    def append_run(self, run: BatchRun, first: int = 0, stop: int | None = None) -> None:
        """Append batches `first` to before `stop` of a run, without gaps between their bytes. Raises as `append`."""
        self._ensure_open()
        self._batch_writer.append_run(self._descriptor, run, first, stop)

    def add_aborted_transactions(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add transactions whose abort marker is in this segment to its `.txnindex`."""
        self._ensure_open()
        self._aborted += transactions

    def commit(self) -> Path:
        """Flush the segment to disk and make it visible to readers. Returns its path.

        After an error the writer is aborted. Raises FileExistsError if another writer has committed the segment first,
        and OSError.
        """
        self._ensure_open()
        try:
            with naming_errors(self.path):
                os.ftruncate(self._descriptor, self.size_in_bytes)  # cut off the bytes of a failed append
                os.fsync(self._descriptor)
            indexes = self._batch_writer.index_entries()
            if self._aborted:
                indexes[TRANSACTION_INDEX_SUFFIX] = transaction_entries(self._aborted)
            for suffix, entries in indexes.items():
                write_durably(self._temporary(suffix), entries.tobytes())
            # Only one of two writers of a segment renames files: the lock prevents a mixture.
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
        """Remove the temporary files. Does nothing after `commit` or `abort`."""
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
        """Create and lock a temporary `.log`. Returns its descriptor and the token in its name."""
        while True:
            token = secrets.token_hex(8)
            path = self._temporary(LOG_SUFFIX, token)
            with contextlib.ExitStack() as undo:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                undo.callback(os.close, descriptor)
                wait_for_lock(descriptor)
                if os.fstat(
                    descriptor
                ).st_nlink:  # else another writer removed it as stale before it was locked
                    undo.pop_all()
                    return descriptor, token

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
    """Write the log of a partition into a folder, segment by segment.

    A segment gets the first offset of its first batch as its name. It is committed when the next batch would exceed
    `segment_bytes`, and at the end. If the folder has segments already, offsets must continue after them. Stale
    temporary files in the folder are removed.

    A context manager that commits, or aborts after an exception; committed segments stay.

    The log directory, the folder's parent, is locked against brokers until `commit` or `abort`. A later append locks it
    again, and continues at the present end of the log.

    Raises FileExistsError if a segment of that name exists, KafkaFormatError if damage hides the end of the existing
    log, and as `SegmentWriter`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    ) -> None:
        ensure_segment_bytes(segment_bytes)
        self.folder = writable_path(folder)
        self.segment_bytes = segment_bytes
        self.index_interval_bytes = index_interval_bytes
        self.committed: list[Path] = []
        self._segment: SegmentWriter | None = None
        self._aborted: list[AbortedTransaction] = []
        self._lock: DirectoryLock | None = None
        self._open()

    @property
    def next_offset(self) -> int:
        """The offset after the last batch; after the existing log if nothing was appended yet."""
        return self._committed_offset if self._segment is None else self._segment.next_offset

    def append(self, data: RecordBatch | Buffer) -> None:
        """Append a batch, or the bytes of whole batches, to as many segments as they need.

        Raises as `SegmentWriter.append`; offsets must ascend across segments, too. After an error, segments that were
        filled before may contain a part of `data`.
        """
        run = whole_batches(data)
        if self._lock is None:
            self._open()
        ensure_ascending(run.index, self.next_offset, self.folder)
        first = 0
        while first < len(run):
            if self._segment is None:
                self._segment = SegmentWriter(
                    self.folder,
                    segment_base_offset(run, first, self.next_offset),
                    index_interval_bytes=self.index_interval_bytes,
                )
            stop = self._segment.fitting(run.index[first:], self.segment_bytes) + first
            if stop > first:
                self._segment.append_run(run, first, stop)
            if stop < len(run):
                self._commit_segment()
            first = stop

    def add_aborted_transactions(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Add aborted transactions to the `.txnindex` of the segments with their markers, if committed after this."""
        self._aborted += transactions

    def commit(self) -> list[Path]:
        """Commit the last segment. Returns the paths of all committed segments."""
        try:
            if self._segment is not None:
                self._commit_segment()
        finally:
            self._release()
        return self.committed

    def abort(self) -> None:
        """Remove the segment that is not committed yet."""
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
        """Lock the log directory, and find the end of the log."""
        with contextlib.ExitStack() as undo:
            lock = undo.enter_context(lock_partition_folder(self.folder))
            make_folder(self.folder)
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
    """Remove the temporary files of ended writers from a folder. Returns their paths.

    Files of running writers, of this or another process, are locked and stay.
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
    """Lock a temporary `.log`. Yields False if its writer holds the lock, or if it is not a regular file."""
    try:
        descriptor = open_regular(log)
    except FileNotFoundError:
        yield True
        return
    except NotRegularFileError:  # no writer creates one
        yield False
        return
    try:
        yield take_over(descriptor)
    finally:
        os.close(descriptor)
