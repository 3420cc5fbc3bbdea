"""The topics and partitions that an endpoint serves. The log directory is listed when requests need it."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice

import structlog

from kafkafmt._util.uuids import uuid_text
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.log.directory import FollowedFolders, LogDirectory
from kafkafmt.log.partition_metadata import read_topic_id
from kafkafmt.log.segment_files import SegmentCache
from kafkafmt.log.topics import METADATA_TOPIC
from kafkafmt.serve.partition import Partition
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.structured_logging import RateLimitedLog
from kafkafmt.storage import RemotePath, StoragePath, read_file, side_by_side, storage_of
from kafkafmt.types import TopicPartition

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
