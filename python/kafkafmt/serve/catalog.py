"""The topics and partitions that an endpoint serves. The log directory is listed when requests need it."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import structlog

from kafkafmt._util.uuids import uuid_text
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.log.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    CheckpointError,
    LeaderEpoch,
    parse_leader_epochs,
)
from kafkafmt.log.directory import FollowedFolders, LogDirectory
from kafkafmt.log.partition_metadata import read_topic_id
from kafkafmt.log.segment_files import SegmentCache
from kafkafmt.log.tail import LogTail
from kafkafmt.log.topics import METADATA_TOPIC
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.structured_logging import RateLimitedLog
from kafkafmt.server.yielding import run_steps
from kafkafmt.storage import RemotePath, StoragePath, read_file, side_by_side, storage_of
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt._util.steps import Steps

_Result = TypeVar("_Result")

_log = structlog.get_logger()

_CLUSTER_FILE = "meta.properties"
# The namespace of derived IDs: of topics whose folders contain no ID, from their names, and of clusters.
_ID_NAMESPACE = uuid.UUID("5d0c1d1b-6f4e-4f0a-9a52-0c6a6d2f9a11")
# A directory that was modified so recently may change again and keep its modification time.
_RECENT_NS = 100_000_000
# A search for the IDs of topics without one is of so many topics at most, as other requests wait for it.
_IDS_AT_ONCE = 100
# The next search for IDs, or for segments in empty folders, is due after a pause that is so many times as long as the
# last one took.
_SEARCH_PAUSE = 100


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
        self._overlaps_logged = 0
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
        if self.log.unread_transactions is None:
            return
        async with self._reading_transactions:
            while (unread := self.log.unread_transactions) is not None:
                read = await asyncio.to_thread(unread.read)
                await self.call(partial(self.log.follow_transactions, unread, read))

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


@dataclass(frozen=True)
class Topic:
    """A topic. written_id: the ID that a broker wrote to its folders; None without one."""

    name: str
    partitions: dict[int, Partition] = field(default_factory=dict)
    written_id: uuid.UUID | None = None

    @cached_property
    def id(self) -> uuid.UUID:
        """The topic ID: the one that a broker wrote, else one that is derived from the name."""
        return self.written_id or uuid.uuid5(_ID_NAMESPACE, self.name)

    def read_id(self) -> uuid.UUID | None:
        """Read the ID from the first `partition.metadata`; None if no folder has one."""
        found = (read_topic_id(partition.folder) for partition in self.partitions.values())
        return next((topic_id for topic_id in found if topic_id is not None), None)


class Catalog:
    """The topics that a log directory holds now.

    max_decompressed_bytes: the limit for one batch that is converted. from_segment_start: as for `LogTail`.
    work: its threads do large reads. Raises FileNotFoundError or NotADirectoryError if `path` is not a directory, and
    OSError if it cannot be listed. If a later listing fails, the topics stay as they are, and an error is logged.
    """

    def __init__(
        self,
        path: StoragePath,
        *,
        max_open_segments: int = 512,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        from_segment_start: bool = False,
        work: BatchWork | None = None,
    ) -> None:
        self._max_decompressed_bytes = max_decompressed_bytes
        self._work = BatchWork() if work is None else work
        self._from_segment_start = from_segment_start
        self._directory = LogDirectory(path)
        self._folders = FollowedFolders(self._directory)
        self._cache = SegmentCache(max_open_segments)
        self._stamp: tuple[int, int] | None = None
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._hidden: set[str] = set()
        self._without_id: dict[str, None] = {}  # names; those searched last are at the end
        self._ids_due_ns = 0
        self._empty_due_ns = self._retry_due_ns = 0
        self._limited_log = RateLimitedLog()
        self._is_remote = isinstance(path, RemotePath)
        self._listing = asyncio.Lock()
        self._list_if_due()

    def hide(self, names: Iterable[str]) -> None:
        """Hide topics until `show`, while they are created: no client may see only some of their partitions."""
        self._hidden.update(names)

    def show(self, names: Iterable[str]) -> None:
        """End `hide` for these topics, and list the directory again before the next answer."""
        self._hidden.difference_update(names)
        self._stamp = None

    async def update(self, *wanted: str | uuid.UUID | None) -> None:
        """List a remote directory in a thread, if that is due. Lookups list local directories alone.

        wanted: names or IDs of topics. If all are known, the directory is not listed.
        """
        if not self._is_remote or (
            wanted and all(one in self._topics or one in self._by_id for one in wanted)
        ):
            return
        async with self._listing:
            with self._keeping_topics():
                stamp = self._due()
                if stamp is not None:
                    self._apply(await self._work.request(partial(self._list, stamp)))

    def topics(self) -> list[Topic]:
        """Return all topics that are not hidden, sorted by name."""
        self._refresh()
        return [self._topics[name] for name in sorted(self._topics) if name not in self._hidden]

    def topic(self, name: str) -> Topic | None:
        """Return the topic of this name; None if it is hidden or does not exist. Lists the folder again if needed."""
        if self._stamp is None or name not in self._topics:
            self._refresh()
        return None if name in self._hidden else self._topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        """Return the topic with this id; None if it is hidden or does not exist. Lists the folder again if needed."""
        if self._stamp is None or topic_id not in self._by_id:
            self._refresh()
        found = self._by_id.get(topic_id)
        return None if found is None or found.name in self._hidden else found

    def partition(self, topic: str, number: int) -> Partition | None:
        """Return a partition of a topic; None if there is none. Lists the folder again if needed."""
        found = self.topic(topic)
        if found is not None and number not in found.partitions:
            self._refresh()
            found = self.topic(topic)
        return None if found is None else found.partitions.get(number)

    def invalidate(self) -> None:
        """List the folders and look into each of them at the next call. Called when files were found missing.

        A remote directory is listed no earlier than without this call, as clients may repeat what fails.
        """
        if not self._is_remote:
            self._stamp = None
        self._folders.invalidate()

    def release_deleted_segments(self) -> None:
        """Close the segments whose files are deleted, also of logs that no client reads any more.

        What is known of the segments of deleted logs is forgotten. Waits for the file system. A thread may call it.
        """
        self._cache.forget_replaced()
        folders = self._folders.folders.values()
        self._cache.segment_ends.keep(
            {one.unlisted() if isinstance(one, RemotePath) else one for one in folders}
        )

    @cached_property
    def cluster_id(self) -> str:
        """Return the cluster ID from the broker's `meta.properties`, else one derived from the directory's path."""
        with contextlib.suppress(OSError, ValueError):
            for line in read_file(self._directory.path / _CLUSTER_FILE).decode().splitlines():
                key, _, value = line.partition("=")
                if key == "cluster.id" and value.strip():
                    return value.strip()
        return uuid_text(uuid.uuid5(_ID_NAMESPACE, str(self._directory.path.absolute())))

    def _denied(self, error: PermissionError) -> None:
        event = "no permission to read a folder: its partition is not served"
        self._limited_log.write(_log.warning, error.filename, event, error=str(error))

    def _refresh(self) -> None:
        """List the folders if the directory has changed. `update` does that for a remote one, except at first."""
        if (self._stamp is None or not self._is_remote) and time.monotonic_ns() >= self._retry_due_ns:
            with self._keeping_topics():
                self._list_if_due()

    def _list_if_due(self) -> None:
        stamp = self._due()
        self._apply(self._found_ids() if stamp is None else self._list(stamp))

    @contextlib.contextmanager
    def _keeping_topics(self) -> Iterator[None]:
        """Log an OSError of a listing. The next one is due after a pause."""
        begun = time.monotonic_ns()
        try:
            yield
        except OSError as error:
            ended = time.monotonic_ns()
            self._retry_due_ns = ended + (ended - begun) * _SEARCH_PAUSE
            event = "the log directory cannot be listed: only the topics known so far are served"
            self._limited_log.write(_log.error, str(error), event, error=str(error))

    def _due(self) -> tuple[int, int] | None:
        """Return the present stamp if the directory may have changed since it was listed; else None.

        Empty folders are looked into from time to time: a segment in them changes only the folder.
        """
        path = self._directory.path
        changed, now = storage_of(path).changed_ns(path), time.time_ns()
        if self._stamp is not None:
            known, listed_at = self._stamp
            is_current = changed == known and listed_at - changed > _RECENT_NS
            looks_again = self._folders.has_empty and not self._is_remote
            if is_current and not (looks_again and time.monotonic_ns() >= self._empty_due_ns):
                return None
        return changed, now

    def _list(self, stamp: tuple[int, int]) -> dict[str, Topic | None]:
        """List the folders. Return the topics that may have changed; None: it is gone. Others are kept."""
        if self._is_remote:  # a listing that fails is not repeated until the next one is due, in some seconds
            self._stamp = stamp
        numbers: dict[str, set[int]] = {}
        begun = time.monotonic_ns()
        changed = self._folders.refresh(on_denied=self._denied)
        ended = time.monotonic_ns()
        self._stamp, self._empty_due_ns = stamp, ended + (ended - begun) * _SEARCH_PAUSE
        for name, number in changed:
            if name != METADATA_TOPIC:
                numbers.setdefault(name, set()).add(number)
        listed = {name: self._listed(name, numbers[name]) for name in sorted(numbers)}
        return {**self._found_ids(listed), **listed}

    def _found_ids(self, listed: Collection[str] = ()) -> dict[str, Topic | None]:
        """Look for the IDs of topics without one, if that is due. Return the topics that have one now.

        A broker writes the ID after it creates the folder, and a copy of a folder may have any order. After the ID has
        changed, no topic has the derived one: clients get UNKNOWN_TOPIC_ID for it, and ask for the topic's metadata.

        listed: topics whose folders were read just now.
        """
        begun = time.monotonic_ns()
        if begun < self._ids_due_ns:
            return {}
        names = [*islice((name for name in self._without_id if name not in listed), _IDS_AT_ONCE)]
        if not names:
            return {}
        for name in names:
            self._without_id[name] = self._without_id.pop(name)
        wanted = [self._topics[name] for name in names]
        found = side_by_side(Topic.read_id, wanted, in_parallel=self._is_remote)
        ended = time.monotonic_ns()
        self._ids_due_ns = ended + (ended - begun) * _SEARCH_PAUSE
        return {
            topic.name: replace(topic, written_id=topic_id)
            for topic, topic_id in zip(wanted, found, strict=True)
            if topic_id is not None
        }

    def _apply(self, listed: dict[str, Topic | None]) -> None:
        for name, topic in listed.items():
            before = self._topics.pop(name, None)
            self._without_id.pop(name, None)
            if before is not None and self._by_id.get(before.id) is before:
                del self._by_id[before.id]
            if topic is not None:
                self._topics[name] = self._by_id[topic.id] = topic
                if topic.written_id is None:
                    self._without_id[name] = None

    def _listed(self, name: str, changed: set[int]) -> Topic | None:
        """Return a topic after its partitions in `changed` came or went. Its other partitions keep their logs."""
        before = self._topics.get(name)
        partitions = {} if before is None else dict(before.partitions)
        for number in changed:
            topic_partition = TopicPartition(name, number)
            folder = self._folders.folders.get(topic_partition)
            if folder is None:
                partitions.pop(number, None)
            elif number not in partitions:
                most = self._max_decompressed_bytes
                partitions[number] = Partition(
                    topic_partition,
                    folder,
                    self._cache,
                    most,
                    self._work,
                    from_segment_start=self._from_segment_start,
                )
        if not partitions:
            return None
        topic = Topic(name, dict(sorted(partitions.items())))
        written_id = topic.read_id()
        if written_id is None and before is not None and before.partitions.keys() - changed:
            written_id = before.written_id  # a file that cannot be read for a moment must not change the ID
        return replace(topic, written_id=written_id)
