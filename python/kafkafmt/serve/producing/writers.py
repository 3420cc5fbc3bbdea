"""Writers of the logs that producers append to: one for each partition. It orders the appends and shares flushes.

Files are written and flushed in threads, never in the event loop. The logs that were used last stay open. After a
failure to open a log, the next append tries again. After a flush that failed, the log is refused until a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog
from kafka import errors

from _kafkafmt.batches.scan import BatchRun, scan
from _kafkafmt.batches.stamp import assign_offsets
from kafkafmt.log.appender import LogAppender
from kafkafmt.serve.producing.failed_logs import FailedLogs
from kafkafmt.serve.producing.sequences import check_sequence
from kafkafmt.server.produced_records import RefusedRecordsError
from kafkafmt.types import TimestampType

if TYPE_CHECKING:
    from kafkafmt.serve.partition import Partition
    from kafkafmt.serve.topic_settings import EffectiveSettings

_log = structlog.get_logger()

_THREADS = 8
_NO_TIME = -1
_REPLACED = "the folder of a log was deleted or replaced while the log was open"

_T = TypeVar("_T")


class Appended(NamedTuple):
    """Where records were appended. end_offset: after the last record. log_append_time: in milliseconds; -1: none."""

    base_offset: int
    end_offset: int
    log_append_time: int = _NO_TIME


class UnflushedLogError(OSError):
    """A log that producers have appended to could not be flushed. It may lack records."""


class _LogReplacedError(Exception):
    """The log that is open is not in its folder any more."""


class PartitionWriter:
    """Appends to one partition's log. For the tasks of one event loop.

    failed: the logs that were closed after a failed flush. The writer adds its log, and refuses appends to them.
    """

    def __init__(self, partition: Partition, threads: ThreadPoolExecutor, failed: FailedLogs) -> None:
        self._partition = partition
        self._threads = threads
        self._failed = failed
        self._log: LogAppender | None = None
        self._appending = asyncio.Lock()
        self._durable_offset = -1
        self._flushing: asyncio.Task[None] | None = None
        self.users = 0

    async def append(self, run: BatchRun, settings: EffectiveSettings, now: Callable[[], int]) -> Appended:
        """Assign offsets to batches and append all of them, or none.

        run: batches in writable memory, end to end. now: returns the time in milliseconds. Batches that were appended
        before are not appended again; the result begins with their offsets. Raises RefusedRecordsError,
        KafkaFormatError and OSError.
        """
        async with self._appending, self._partition.appending():
            try:
                return await self._in_thread(lambda: self._append(run, settings, now))
            except _LogReplacedError:
                _log.warning(_REPLACED, folder=str(self._partition.folder))
                await self._close_log()
                return await self._in_thread(lambda: self._append(run, settings, now))

    async def flush(self, end_offset: int) -> None:
        """Wait until all records before `end_offset` are durable. Calls during a flush share the next one.

        Raises OSError, also if the folder with the records was deleted or replaced.
        """
        was_flushed = False
        while self._durable_offset < end_offset:
            if was_flushed or self._log is None:
                raise OSError(errno.ESTALE, _REPLACED, str(self._partition.folder))
            if self._flushing is None:
                self._flushing = asyncio.create_task(self._flush(self._log))
                was_flushed = True
            await asyncio.shield(self._flushing)

    async def close(self) -> None:
        """Close the log after the append and the flush that are under way. Raises OSError."""
        async with self._appending:
            await self._close_log()

    async def _close_log(self) -> None:
        log, self._log, self._durable_offset = self._log, None, -1
        if log is None:
            return
        try:
            if self._flushing is not None:
                await asyncio.wait([self._flushing])
        finally:
            await self._in_thread(lambda: self._close(log))

    def _close(self, log: LogAppender) -> None:
        """Close a log. Keep the error of a failed flush, if the log is in its folder."""
        is_in_place = True
        try:
            is_in_place = log.is_in_place
        finally:
            try:
                log.close()
            finally:
                if is_in_place and log.failure is not None:
                    self._failed.add(log.folder, log.failure)

    async def _flush(self, log: LogAppender) -> None:
        try:
            end_offset = await self._in_thread(log.flush)
            if log is self._log:
                self._durable_offset = end_offset
        finally:
            self._flushing = None

    def _open(self, settings: EffectiveSettings) -> LogAppender:
        """Return the log. Raises _LogReplacedError if it is not in its folder any more, and OSError."""
        folder = self._partition.folder
        assert isinstance(folder, Path)  # `ServeOptions.local_directory` raises for a remote folder
        log = self._log
        if log is not None and not log.is_in_place:
            raise _LogReplacedError
        if log is None:
            if not folder.exists():  # the appender would create it
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
            failure = self._failed.error(folder)
            if failure is not None:  # a new error: its traceback has the request
                raise OSError(failure.errno, failure.strerror, failure.filename)
            log = self._log = LogAppender(folder, segment_bytes=settings.segment_bytes)
            if log.truncated_bytes:
                _log.warning(
                    "a log was truncated after its last whole batch",
                    folder=str(folder),
                    bytes=log.truncated_bytes,
                )
        return log

    def _append(self, run: BatchRun, settings: EffectiveSettings, now: Callable[[], int]) -> Appended:
        log, rows = self._open(settings), run.index
        log.segment_bytes = settings.segment_bytes
        size = int(rows["size"].sum())
        if size > log.segment_bytes:
            message = f"expected at most {log.segment_bytes} bytes of batches, a segment's size, found {size}"
            raise RefusedRecordsError(errors.RecordListTooLargeError, message)
        known, base_offset, buffer = 0, log.next_offset, memoryview(run.buffer)
        if (rows["producer_id"] >= 0).any():
            known, known_offset = check_sequence(run, log.producers, base_offset)
            if known:
                base_offset = known_offset
                buffer = buffer[int(rows["size"][:known].sum()) :]
        if known == len(rows):
            return Appended(base_offset, base_offset + int(rows["count"].sum()))
        time = now() if settings.timestamp_type is TimestampType.LOG_APPEND_TIME else _NO_TIME
        end_offset = assign_offsets(buffer, log.next_offset, self._partition.leader_epoch, time)
        log.append_run(scan(buffer)[0])
        return Appended(base_offset, end_offset, time)

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        """Return the result of a call in a thread. A cancelled caller waits as well: the call uses its memory."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise


class Writers:
    """The writers of all partitions. Unused writers are closed while there are more than `max_open`."""

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="appends")
        self._writers: OrderedDict[Partition, PartitionWriter] = OrderedDict()
        self._failed = FailedLogs()

    @contextlib.asynccontextmanager
    async def writer(self, partition: Partition) -> AsyncIterator[PartitionWriter]:
        """Provide the writer of a partition, which stays open within the block."""
        found = self._writers.setdefault(partition, PartitionWriter(partition, self._threads, self._failed))
        self._writers.move_to_end(partition)
        found.users += 1
        try:
            yield found
        finally:
            found.users -= 1
            await self._close_unused()

    async def close(self) -> None:
        """Close all logs, which makes them durable.

        Raises UnflushedLogError for the first error after that, also if it is of an earlier flush.
        """
        errors = [await self._close(writer) for writer in list(self._writers.values())]
        self._threads.shutdown()
        for error in (*self._failed.close(), *errors):
            if error is not None:
                raise UnflushedLogError(error.errno, error.strerror, error.filename)

    async def _close_unused(self) -> None:
        excess = len(self._writers) - self._max_open
        unused = [item for item in self._writers.items() if not item[1].users] if excess > 0 else []
        for partition, writer in unused[:excess]:
            if not writer.users:
                await self._close(writer)
            if not writer.users:  # no task uses it again, which would have opened the log
                self._writers.pop(partition, None)

    async def _close(self, writer: PartitionWriter) -> OSError | None:
        """Close a log. An error is logged and returned."""
        try:
            await writer.close()
        except OSError as error:
            _log.error("a log cannot be closed", error=str(error))
            return error
        return None
