"""A partition of an endpoint, and its log. Requests of many tasks share it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import structlog

from kafkafmt.log.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    CheckpointError,
    LeaderEpoch,
    parse_leader_epochs,
)
from kafkafmt.log.segment_files import SegmentCache
from kafkafmt.log.tail import LogTail
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.structured_logging import RateLimitedLog
from kafkafmt.server.yielding import run_steps
from kafkafmt.storage import RemotePath, StoragePath, read_file, storage_of
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt._util.steps import Steps

_Result = TypeVar("_Result")

_log = structlog.get_logger()


class Partition:
    """A partition and its log, which is opened when it is first used.

    The methods that read the log raise KafkaFormatError if damage prevents that, and OSError if files are missing.
    A remote log is read in threads, by one at a time: the event loop never waits for a store.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        folder: StoragePath,
        cache: SegmentCache,
        max_decompressed_bytes: int,
        work: BatchWork,
        *,
        from_segment_start: bool = False,
    ) -> None:
        self.topic_partition = topic_partition
        self.folder = folder
        self.is_remote = isinstance(folder, RemotePath)
        self._max_decompressed_bytes = max_decompressed_bytes
        self._from_segment_start = from_segment_start
        self.limited_log = RateLimitedLog()  # for events that each fetch finds again
        self._cache = cache
        self._work = work
        self._epochs: tuple[tuple[int, ...], list[LeaderEpoch]] = ((), [])
        self._log: LogTail | None = None
        self._overlaps_logged = self._markers_logged = 0
        self._listed_ns = 0  # the time of the folder that the last `follow` of a remote log read
        self._following = asyncio.Lock()
        self._is_appending = False
        self._is_followed = False  # whether the log was followed after the last append
        self._requesting = asyncio.Lock()
        self._reading_transactions = asyncio.Lock()

    @property
    def log(self) -> LogTail:
        """Return the log; its offsets are those of the last `follow`. The first access reads it if `follow` did not."""
        if self._log is None:
            self._log = self._unread_log()
            self._log.refresh()
        return self._log

    @property
    def is_being_followed(self) -> bool:
        return self._following.locked()

    async def run(self, steps: Steps[_Result]) -> _Result:
        """Take all steps of work on the log, and return its result. Yields to other tasks during long reads."""
        if not self.is_remote:
            return await run_steps(steps, self._work)
        async with self._requesting:
            return await run_steps(steps, self._work, is_remote=True)

    async def call(self, call: Callable[[], _Result]) -> _Result:
        """Call a function that reads the log shortly, and return its result."""
        if not self.is_remote:
            return call()
        async with self._requesting:
            return await self._work.request(call)

    @contextlib.asynccontextmanager
    async def appending(self) -> AsyncIterator[None]:
        """Keep readers from following the log within the block, which appends to it.

        An append that fails leaves batches in the log until it has truncated them. No reader may count these.
        """
        async with self._following:
            self._is_appending = True
            try:
                yield
            finally:
                self._is_appending = self._is_followed = False

    async def follow(self) -> LogTail:
        """Refresh the log and return it. Yields to other tasks during long reads.

        During an append, return the log as it was before. Wait for the append if the log was not followed since the
        one before that, whose records may be confirmed.
        """
        log = self._log
        if log is not None and not self.is_remote:
            if self._is_appending and self._is_followed:
                return log
            if not self._following.locked() and log.is_current():
                self._is_followed = True
                return log
        async with self._following:
            log = self._unread_log() if self._log is None else self._log
            listed_ns = storage_of(self.folder).changed_ns(self.folder) if self.is_remote else 0
            # A remote log is what was listed, so it changes with a new listing alone.
            if not self.is_remote or log is not self._log or listed_ns != self._listed_ns:
                await self.run(log.refresh_steps())
            self._log, self._listed_ns, self._is_followed = log, listed_ns, True
        if len(log.overlaps) > self._overlaps_logged:
            self._overlaps_logged = len(log.overlaps)
            _log.warning(
                "segments overlap earlier segments: each offset is served once",
                partition=str(self.topic_partition),
                segments=len(log.overlaps),
            )
        return log

    async def start_offset(self) -> int:
        """Return the log start offset as of the last `follow`. The first call follows the log."""
        log = await self.follow() if self._log is None else self._log
        return log.start_offset

    def _unread_log(self) -> LogTail:
        return LogTail(
            self.folder,
            self._cache,
            max_decompressed_bytes=self._max_decompressed_bytes,
            from_segment_start=self._from_segment_start,
            is_read=False,
        )

    async def follow_transactions(self) -> None:
        """Load the log's transactions for committed reads. Those that no file records are read from the log, once."""
        if self.log.unread_transactions is not None:
            async with self._reading_transactions:
                while (unread := self.log.unread_transactions) is not None:
                    read = await asyncio.to_thread(unread.read)
                    await self.call(partial(self.log.follow_transactions, unread, read))
        self._log_unreadable_markers(self.log)

    def _log_unreadable_markers(self, log: LogTail) -> None:
        """Log the transaction markers that cannot be read, which keep committed consumers from later records."""
        for marker in log.unreadable_markers:
            if marker.offset >= self._markers_logged:
                self._markers_logged = marker.offset + 1
                _log.warning(
                    "a transaction marker cannot be read: its transaction stays open",
                    partition=str(self.topic_partition),
                    offset=marker.offset,
                    error=str(marker.error),
                )

    def leader_epochs(self) -> list[LeaderEpoch]:
        """Return epochs and their start offsets, ascending, from the broker's checkpoint; empty without a valid one.

        Those of a remote log are as of the last `follow_epochs`.
        """
        return self._epochs[1] if self.is_remote else self._present_epochs()

    async def follow_epochs(self) -> None:
        """Read the leader epochs of a remote log, if they may have changed."""
        if self.is_remote and storage_of(self.folder).stamp(self.folder) != self._epochs[0]:
            await self.call(self._present_epochs)

    def _present_epochs(self) -> list[LeaderEpoch]:
        path = self.folder / LEADER_EPOCH_CHECKPOINT
        try:
            stamp = storage_of(path).stamp(path)
            if stamp != self._epochs[0]:
                self._epochs = stamp, self._read_epochs(path)
        except FileNotFoundError:
            return []
        except OSError as error:  # it may be gone at the next call
            self._log_unusable(path, error)
            return []
        return self._epochs[1]

    def _read_epochs(self, path: StoragePath) -> list[LeaderEpoch]:
        """Read a checkpoint of leader epochs; empty if it is malformed or, in remote storage, missing."""
        try:
            return parse_leader_epochs(read_file(path), str(path))
        except FileNotFoundError:
            return []
        except CheckpointError as error:
            self._log_unusable(path, error)
            return []

    def _log_unusable(self, path: StoragePath, error: Exception) -> None:
        about = {"file": str(path), "error": str(error)}
        self.limited_log.write(_log.warning, str(error), "leader epochs cannot be read", **about)

    @property
    def leader_epoch(self) -> int:
        """Return the last leader epoch; -1 if none is known, as from old brokers. Clients then compare no epochs."""
        epochs = self.leader_epochs()
        return epochs[-1].epoch if epochs else -1
