"""The topics and partitions of a log directory as they are served: listed when asked for, each log followed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import structlog

from kafkafmt._util.files import read_regular
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.log.directory import FollowedFolders, LogDirectory
from kafkafmt.log.following import FollowedLog, SegmentCache
from kafkafmt.log.partition_metadata import read_topic_id
from kafkafmt.serve.logs import Seldom
from kafkafmt.serve.turns import by_steps
from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

_EPOCH_FILE = "leader-epoch-checkpoint"
_MAX_EPOCH, _MAX_OFFSET = 2**31 - 1, 2**63 - 1
_CLUSTER_FILE = "meta.properties"
# A log among the others of a broker that is a controller too (KIP-595), but no topic.
METADATA_LOG = "__cluster_metadata"
# Of topics whose folders tell no ID: made of their names, so that it stays the same.
_ID_NAMESPACE = uuid.UUID("5d0c1d1b-6f4e-4f0a-9a52-0c6a6d2f9a11")
# As for the followed logs: what changed just now may change again unseen.
_SETTLED_NS = 100_000_000


class Partition:
    """A partition and its log, which is opened when something of it is asked for first.

    All that asks the log raises KafkaFormatError where damage is in the way, and OSError where files are gone.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        folder: Path,
        cache: SegmentCache,
        max_decompressed_bytes: int,
        *,
        from_segment_start: bool = False,
    ) -> None:
        self.topic_partition = topic_partition
        self.folder = folder
        self._max_decompressed_bytes = max_decompressed_bytes
        self._from_segment_start = from_segment_start
        self.seldom = Seldom()  # for what is to be logged of it, at each fetch else
        self._cache = cache
        self._epochs: tuple[int, list[tuple[int, int]]] = (-1, [])
        self._log: FollowedLog | None = None
        self._overlaps_told = 0
        self._following = asyncio.Lock()
        self._reading_transactions = asyncio.Lock()

    @property
    def log(self) -> FollowedLog:
        """Its offsets are those of the last time that it was followed."""
        if self._log is None:
            self._log = self._unread_log()
            self._log.refresh()
        return self._log

    async def follow(self) -> FollowedLog:
        """The log, with what is new in it; others have their turns while much is read."""
        async with self._following:
            log = self._unread_log() if self._log is None else self._log
            await by_steps(log.refresh_steps())
            self._log = log
        if len(log.overlaps) > self._overlaps_told:
            self._overlaps_told = len(log.overlaps)
            _log.warning(
                "segments have offsets of segments before them: each offset is served once",
                partition=str(self.topic_partition),
                segments=len(log.overlaps),
            )
        return log

    async def start_offset(self) -> int:
        """The log start offset, as it was when the log was followed last."""
        log = await self.follow() if self._log is None else self._log
        return log.start_offset

    def look(self) -> None:
        """Look for what is new in the log, unless a task is at it."""
        if not self._following.locked():
            self.log.refresh()

    def _unread_log(self) -> FollowedLog:
        return FollowedLog(
            self.folder,
            self._cache,
            max_decompressed_bytes=self._max_decompressed_bytes,
            from_segment_start=self._from_segment_start,
            is_read=False,
        )

    async def follow_transactions(self) -> None:
        """Have them at hand for committed reads: what no file tells is read from the log once, in a thread."""
        if self.log.unread_transactions is None:
            return
        async with self._reading_transactions:
            while (unread := self.log.unread_transactions) is not None:
                self.log.follow_transactions(unread, await asyncio.to_thread(unread.read))

    def leader_epochs(self) -> list[tuple[int, int]]:
        """Epochs and their start offsets, ascending, as the broker's checkpoint has them; empty without one."""
        path = self.folder / _EPOCH_FILE
        try:
            changed = path.stat().st_mtime_ns
            if changed != self._epochs[0]:
                self._epochs = changed, _parse_epochs(read_regular(path).decode())
        except (OSError, ValueError):
            return []
        return self._epochs[1]

    @property
    def leader_epoch(self) -> int:
        """The last one; -1 where none is known, as of old brokers: clients then compare none with their batches'."""
        epochs = self.leader_epochs()
        return epochs[-1][0] if epochs else -1


def _parse_epochs(text: str) -> list[tuple[int, int]]:
    """Kafka's LeaderEpochCheckpointFile: version, count, and a line an epoch. Raises ValueError for what is none."""
    version, count, *lines = text.split("\n")
    if int(version) != 0:
        raise ValueError(f"version: expected 0, found {version}")
    pairs = [(int(epoch), int(offset)) for epoch, offset in map(str.split, lines[: int(count)])]
    for epoch, offset in pairs:
        if not (0 <= epoch <= _MAX_EPOCH and 0 <= offset <= _MAX_OFFSET):
            raise ValueError(f"epoch {epoch} from offset {offset} on: expected numbers of 31 and 63 bits")
    return pairs


@dataclass(frozen=True)
class Topic:
    """A topic; its ID is that of the broker that wrote it, where its folders tell that."""

    name: str
    partitions: dict[int, Partition] = field(default_factory=dict)

    @cached_property
    def id(self) -> uuid.UUID:
        for partition in self.partitions.values():
            topic_id = read_topic_id(partition.folder)
            if topic_id is not None:
                return topic_id
        return uuid.uuid5(_ID_NAMESPACE, self.name)


class Catalog:
    """What a log directory holds now. Raises FileNotFoundError or NotADirectoryError for another `path`.

    max_decompressed_bytes: of one batch of these logs, where it is converted. from_segment_start: as `FollowedLog`.
    """

    def __init__(
        self,
        path: Path,
        *,
        most_open_segments: int = 512,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        from_segment_start: bool = False,
    ) -> None:
        self._max_decompressed_bytes = max_decompressed_bytes
        self._from_segment_start = from_segment_start
        self._directory = LogDirectory(path)
        self._folders = FollowedFolders(self._directory)
        self._cache = SegmentCache(most_open_segments)
        self._stamp: tuple[int, int] | None = None
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._hidden: set[str] = set()
        self._new: dict[str, int] = {}
        self._seldom = Seldom()
        self._refresh()

    def hide(self, names: Iterable[str]) -> None:
        """Leave topics out until `show`: those that are being made. A client must not see some of their partitions."""
        self._hidden.update(names)

    def show(self, names: Iterable[str]) -> None:
        """Have topics seen, with all partitions that are there now."""
        self._hidden.difference_update(names)
        self._stamp = None

    def topics(self) -> list[Topic]:
        """All topics, by name."""
        self._refresh()
        return [self._topics[name] for name in sorted(self._topics) if name not in self._hidden]

    def topic(self, name: str) -> Topic | None:
        if self._stamp is None or name not in self._topics:
            self._refresh()
        return None if name in self._hidden else self._topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        if self._stamp is None or topic_id not in self._by_id:
            self._refresh()
        found = self._by_id.get(topic_id)
        return None if found is None or found.name in self._hidden else found

    def partition(self, topic: str, number: int) -> Partition | None:
        found = self.topic(topic)
        if found is not None and number not in found.partitions:
            self._refresh()
            found = self.topic(topic)
        return None if found is None else found.partitions.get(number)

    def look_anew(self) -> None:
        """List the folders, and look into each, when asked next, as files were found to be gone."""
        self._stamp = None
        self._folders.look_anew()

    @cached_property
    def cluster_id(self) -> str:
        """That of the broker, where its file tells it; else one made of the folder's path."""
        with contextlib.suppress(OSError, ValueError):
            for line in read_regular(self._directory.path / _CLUSTER_FILE).decode().splitlines():
                key, _, value = line.partition("=")
                if key == "cluster.id" and value.strip():
                    return value.strip()
        made = uuid.uuid5(_ID_NAMESPACE, str(self._directory.path.absolute()))
        return base64.urlsafe_b64encode(made.bytes).decode().rstrip("=")

    def _denied(self, error: PermissionError) -> None:
        if times := self._seldom.times(error.filename):
            _log.warning(
                "a folder may not be read, its partition is not served", error=str(error), times=times
            )

    def _refresh(self) -> None:
        """List the folders, if the directory has changed; topics whose folders are what they were stay as they are."""
        changed, now = self._directory.path.stat().st_mtime_ns, time.time_ns()
        if self._stamp is not None:
            known, listed_at = self._stamp
            if changed == known and listed_at - changed > _SETTLED_NS:
                return
        self._stamp = changed, now
        numbers: dict[str, set[int]] = {}
        for name, number in self._folders.refresh(on_denied=self._denied):
            if name != METADATA_LOG:
                numbers.setdefault(name, set()).add(number)
        for name in self._new:  # a broker writes the topic's ID after it made the folder
            numbers.setdefault(name, set())
        for name in sorted(numbers):
            is_new = name not in self._topics
            self._replace(name, numbers[name])
            if is_new and name in self._topics:
                self._new[name] = now
        self._new = {name: since for name, since in self._new.items() if now - since <= _SETTLED_NS}

    def _replace(self, name: str, changed: set[int]) -> None:
        """Have a topic anew, some of whose partitions came or went; what is known of the logs of others is kept."""
        before = self._topics.pop(name, None)
        partitions = {} if before is None else dict(before.partitions)
        if before is not None and self._by_id.get(before.id) is before:
            del self._by_id[before.id]
        for number in changed:
            topic_partition = TopicPartition(name, number)
            folder = self._folders.folders.get(topic_partition)
            if folder is None:
                partitions.pop(number, None)
            elif number not in partitions:
                most = self._max_decompressed_bytes
                partitions[number] = Partition(
                    topic_partition, folder, self._cache, most, from_segment_start=self._from_segment_start
                )
        if partitions:
            topic = Topic(name, dict(sorted(partitions.items())))
            self._topics[name] = self._by_id[topic.id] = topic
