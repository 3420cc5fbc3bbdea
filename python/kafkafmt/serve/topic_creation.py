"""Creates topics: first a section of `topics.ini` for each topic, then an empty log for each partition.

All topics of a request are one change: `topics.ini` is written and flushed once. After a crash topics may lack
partitions, which the endpoint creates at its next start. Clients see a topic once all its partitions exist: before,
they would place keys by too few partitions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from kafka import errors

from kafkafmt._util.files import sync_path
from kafkafmt._util.ini import IniError
from kafkafmt.log.appender import create_log
from kafkafmt.log.topic_configs import TopicConfig, is_topic_name
from kafkafmt.log.topics import METADATA_TOPIC
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.topic_settings import TopicConfigs, ensure_valid
from kafkafmt.server.yielding import yielding_between
from kafkafmt.types import TopicPartition

# The most partitions of all topics of a request, as in Kafka 4 (`ReplicationControlManager.MAX_PARTITIONS_PER_BATCH`).
MAX_PARTITIONS = 10_000


class TopicRefusedError(Exception):
    """A topic is not created. error: Kafka's error for the client, beside the message."""

    def __init__(self, error: type[errors.BrokerResponseError], message: str) -> None:
        super().__init__(message)
        self.error = error


class _StoppedError(Exception):
    """The endpoint ends before all partitions exist."""


@dataclass(frozen=True)
class NewTopic:
    """A topic to create. configs: values by Kafka's property names."""

    name: str
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)


class TopicCreation:
    """Creates topics in a log directory. For the tasks of one event loop."""

    def __init__(self, directory: Path, catalog: Catalog, configs: TopicConfigs) -> None:
        self._directory = directory
        self._catalog = catalog
        self._configs = configs
        self._making = asyncio.Lock()
        self._stopping = threading.Event()
        self._under_way: set[asyncio.Task[dict[str, TopicRefusedError]]] = set()

    async def make(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicRefusedError]:
        """Create topics of different names durably. Return the errors of those that are not created, by name.

        validate_only: only check them. Creation continues if the caller is cancelled.
        """
        task = asyncio.create_task(self._make(topics, validate_only=validate_only))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    def topic_id(self, name: str) -> UUID | None:
        """Return the ID of a topic; None if it does not exist."""
        found = self._catalog.topic(name)
        return None if found is None else found.id

    def complete(self) -> None:
        """Create the missing partitions of topics in `topics.ini`. Blocks. Raises OSError."""
        there = {topic.name: topic.partitions for topic in self._catalog.topics()}
        for name, count in self._configs.partition_counts().items():
            for number in range(min(count, MAX_PARTITIONS)):
                if number not in there.get(name, ()):
                    create_log(self._folder(name, number))
        sync_path(self._directory)
        self._catalog.invalidate()

    def stop(self) -> None:
        """Stop before the next partition; the next start creates the rest."""
        self._stopping.set()

    async def close(self) -> None:
        """Stop, and wait for the creation in progress."""
        self.stop()
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _make(self, topics: Sequence[NewTopic], *, validate_only: bool) -> dict[str, TopicRefusedError]:
        async with self._making:
            accepted, refused = await self._checked(topics)
            if accepted and not validate_only:
                try:
                    await self._make_accepted(accepted)
                except (IniError, OSError, _StoppedError) as error:
                    reason = TopicRefusedError(errors.KafkaStorageError, str(error))
                    refused.update({topic.name: reason for topic in accepted})
            return refused

    async def _make_accepted(self, topics: Sequence[NewTopic]) -> None:
        """Create topics. After a failure they stay hidden; another request, or the next start, creates the rest."""
        await asyncio.to_thread(self._add, topics)
        names = [topic.name for topic in topics]
        self._catalog.hide(names)
        await asyncio.to_thread(self._make_logs, topics)
        await self._configs.reload()
        self._catalog.show(names)

    async def _checked(
        self, topics: Sequence[NewTopic]
    ) -> tuple[list[NewTopic], dict[str, TopicRefusedError]]:
        if sum(max(topic.partitions, 0) for topic in topics) > MAX_PARTITIONS:
            message = f"Excessively large number of partitions per request: expected {MAX_PARTITIONS} at most"
            refusal = TopicRefusedError(errors.PolicyViolationError, message)
            return [], {topic.name: refusal for topic in topics}
        accepted, refused = [], {}
        collisions = {_metric_name(topic.name): topic.name for topic in self._catalog.topics()}
        async for topic in yielding_between(topics):
            try:
                self._check(topic, collisions)
            except TopicRefusedError as error:
                refused[topic.name] = error
            else:
                accepted.append(topic)
                collisions[_metric_name(topic.name)] = topic.name
        return accepted, refused

    def _check(self, topic: NewTopic, collisions: Mapping[str, str]) -> None:
        """Raise TopicRefusedError if the topic cannot be created. collisions: topics by their names in metrics."""
        name = topic.name
        if name == METADATA_TOPIC:
            message = f"Creation of internal topic {name} is prohibited."
            raise TopicRefusedError(errors.InvalidRequestError, message)
        if not is_topic_name(name):
            message = f"expected 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', found {name[:300]!r}"
            raise TopicRefusedError(errors.InvalidTopicError, message)
        if self._catalog.topic(name) is not None:
            raise TopicRefusedError(errors.TopicAlreadyExistsError, f"Topic {name!r} already exists.")
        if (other := collisions.get(_metric_name(name))) is not None:
            message = f"Topic {name!r} collides with existing topic: {other}"
            raise TopicRefusedError(errors.InvalidTopicError, message)
        if topic.partitions < 1:
            message = f"partitions: expected 1 to {MAX_PARTITIONS}, found {topic.partitions}"
            raise TopicRefusedError(errors.InvalidPartitionsError, message)
        try:
            ensure_valid(name, TopicConfig(topic.partitions, topic.configs))
        except ValueError as error:
            raise TopicRefusedError(errors.InvalidConfigurationError, str(error)) from None

    def _add(self, topics: Sequence[NewTopic]) -> None:
        """Add topics to `topics.ini`. Raises IniError and OSError; the file is unchanged then."""
        new = {topic.name: TopicConfig(topic.partitions, topic.configs) for topic in topics}
        self._configs.file.update(lambda known: {**known, **new})

    def _make_logs(self, topics: Sequence[NewTopic]) -> None:
        """Create all partitions. Raises OSError and _StoppedError."""
        for topic in topics:
            for number in range(topic.partitions):
                if self._stopping.is_set():
                    raise _StoppedError("the endpoint is shutting down; its next start creates the topic")
                create_log(self._folder(topic.name, number))
        sync_path(self._directory)

    def _folder(self, name: str, number: int) -> Path:
        return self._directory / str(TopicPartition(name, number))


def _metric_name(name: str) -> str:
    """Return a topic's name in metrics, where '.' and '_' are the same. No two topics may share it."""
    return name.replace(".", "_")
