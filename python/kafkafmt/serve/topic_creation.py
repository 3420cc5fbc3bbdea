"""Making topics: an empty log for each partition, and a section of `topics.ini`, which is there first.

So a crash leaves a topic that lacks partitions, which are made when the endpoint starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from kafka import errors

from kafkafmt.log.appender import LogAppender
from kafkafmt.log.topic_configs import TopicConfig, is_topic_name, set_topic_config
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.topic_settings import TopicConfigs, topic_settings
from kafkafmt.types import TopicPartition

MOST_PARTITIONS = 10_000


class TopicRefusedError(Exception):
    """A topic that is not made: with Kafka's error for that, and a sentence."""

    def __init__(self, error: type[errors.BrokerResponseError], message: str) -> None:
        super().__init__(message)
        self.error = error


class TopicCreation:
    """Makes topics in a log directory. For the tasks of one event loop."""

    def __init__(self, directory: Path, catalog: Catalog, topics: TopicConfigs) -> None:
        self._directory = directory
        self._catalog = catalog
        self._topics = topics
        self._making = asyncio.Lock()

    def check(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Raise TopicRefusedError for what cannot be made."""
        if not is_topic_name(name):
            message = f"expected 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', found {name[:300]!r}"
            raise TopicRefusedError(errors.InvalidTopicError, message)
        if not 1 <= partitions <= MOST_PARTITIONS:
            message = f"partitions: expected 1 to {MOST_PARTITIONS}, found {partitions}"
            raise TopicRefusedError(errors.InvalidPartitionsError, message)
        if self._catalog.topic(name) is not None:
            raise TopicRefusedError(errors.TopicAlreadyExistsError, f"topic {name!r} exists already")
        try:
            topic_settings(configs)
        except ValueError as error:
            raise TopicRefusedError(errors.InvalidConfigurationError, str(error)) from None

    async def make(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Make a topic, all of it durable. Raises TopicRefusedError."""
        async with self._making:
            self.check(name, partitions, configs)
            try:
                await asyncio.to_thread(self._make, name, TopicConfig(partitions, configs))
            except ValueError as error:
                raise TopicRefusedError(errors.InvalidConfigurationError, str(error)) from None
            except OSError as error:
                raise TopicRefusedError(errors.KafkaStorageError, str(error)) from None
            finally:
                self._catalog.look_anew()

    def topic_id(self, name: str) -> UUID | None:
        """That of a topic that is there."""
        found = self._catalog.topic(name)
        return None if found is None else found.id

    def complete(self) -> None:
        """Make the partitions that `topics.ini` tells of and that are not there; blocks. Raises OSError."""
        for name, count in self._topics.partition_counts().items():
            self._make_partitions(name, min(count, MOST_PARTITIONS))
        self._catalog.look_anew()

    def _make(self, name: str, topic: TopicConfig) -> None:
        set_topic_config(self._directory, name, topic)
        assert topic.partitions is not None
        self._make_partitions(name, topic.partitions)

    def _make_partitions(self, name: str, count: int) -> None:
        found = self._catalog.topic(name)
        there = {} if found is None else found.partitions
        for number in range(count):
            if number not in there:
                LogAppender(self._directory / str(TopicPartition(name, number))).close()
