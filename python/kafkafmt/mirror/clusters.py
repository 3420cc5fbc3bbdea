"""What the mirror asks a cluster, and has it do: topics, configuration, offsets of groups (kafka-python's admin)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar
from uuid import UUID

import kafka.errors as kafka_errors
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.protocol.consumer import IsolationLevel, OffsetSpec
from kafka.structs import OffsetAndMetadata

from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.net.client_config import parse_client_config
from kafkafmt.net.producer import Producer
from kafkafmt.net.raw_consumer import RawConsumer
from kafkafmt.types import TopicPartition

# A mirror whose cluster is not there when it starts says so, and does not wait.
_BOOTSTRAP_MS = 5000
_T = TypeVar("_T")

_OWN_CONFIG = "DYNAMIC_TOPIC_CONFIG"
# A cluster that no group has used makes the topic of their offsets when it is first asked, which takes it that long.
_COORDINATOR_SECONDS = 30.0
_RETRY_SECONDS = 0.2
# What the mirror's own options say, or what it relies on.
_RESERVED = frozenset(
    {
        "acks",
        "auto_offset_reset",
        "bootstrap_servers",
        "check_crcs",  # of what was not checked damage would get a CRC that holds
        "enable_auto_commit",
        "enable_idempotence",
        "fetch_raw_bytes",
        "group_id",
        "isolation_level",
        "keep_control_batches",
        "send_raw_bytes",
        "transactional_id",
        "trim_first_batch",
    }
)


class _AnyClient:
    """What any of the clients can be told."""

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = {
        **KafkaAdminClient.DEFAULT_CONFIG,
        **RawConsumer.DEFAULT_CONFIG,
        **Producer.DEFAULT_CONFIG,
    }


class _FirstError(logging.Handler):
    """Keeps the first error that a library logs, which logs many where nobody answers."""

    message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = self.message or record.getMessage()

    @contextmanager
    def in_place_of(self, name: str) -> Iterator[None]:
        """The logs of `name` come here within; where those of DEBUG are wanted, there as well."""
        logger = logging.getLogger(name)
        self.setLevel(logging.ERROR)
        propagates, logger.propagate = logger.propagate, logger.isEnabledFor(logging.DEBUG)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.propagate = propagates


class Cluster:
    """Asks a cluster. config: options of kafka-python's clients, as text. Raises MirrorError where none answers."""

    def __init__(self, address: ClusterAddress, config: Mapping[str, str]) -> None:
        self.address = address
        try:
            self._config = parse_client_config(config, _AnyClient)
        except ValueError as error:
            raise MirrorError(str(error)) from None
        reserved = sorted(_RESERVED.intersection(self._config))
        if reserved:
            raise MirrorError(f"{reserved[0]} is not an option of clients here: the mirror sets it")
        self._config.setdefault("bootstrap_timeout_ms", _BOOTSTRAP_MS)
        self._config["bootstrap_servers"] = list(address.servers)
        errors = _FirstError()
        try:
            with errors.in_place_of("kafka"):
                self._admin = KafkaAdminClient(**self.config_of(KafkaAdminClient))
            described = self._admin.describe_cluster()
            self.id = str(described["cluster_id"])
            self.brokers = max(len(described["brokers"]), 1)
        except (kafka_errors.KafkaError, ValueError, OSError) as error:
            cause = f" ({errors.message})" if errors.message else ""
            raise MirrorError(f"{address}: no broker answers: {error}{cause}") from None

    def config_of(self, client: Any) -> dict[str, Any]:
        """The arguments for a client of kafka-python, or one derived from it."""
        return {name: value for name, value in self._config.items() if name in client.DEFAULT_CONFIG}

    def topic_names(self) -> list[str]:
        names: list[str] = self._admin.list_topics()
        return names

    def topic_ids(self, names: Iterable[str]) -> dict[str, UUID]:
        """Return the ids of those topics of these names that exist and have one: brokers before 2.8 keep none."""
        asked = sorted(names)
        found = self._admin.describe_topics(asked) if asked else ()
        ids = {one["name"]: one.get("topic_id") for one in found if not one["error_code"]}
        return {
            name: UUID(str(topic_id))
            for name, topic_id in ids.items()
            if topic_id and UUID(str(topic_id)).int
        }

    def partitions(self, names: Iterable[str]) -> list[TopicPartition]:
        """Return all partitions of those topics of these names that exist."""
        asked = sorted(names)
        return [
            TopicPartition(found["name"], partition["partition_index"])
            for found in (self._admin.describe_topics(asked) if asked else ())
            if not found["error_code"]
            for partition in found["partitions"]
        ]

    def describe_topics(self, names: Iterable[str], *, own: bool = True) -> dict[str, TopicConfig]:
        """Those topics of these names that are there, with their configuration.

        own: what was set for the topic itself; else all that holds for it, defaults included.
        """
        asked = sorted(names)
        if not asked:
            return {}
        there = {
            found["name"]: len(found["partitions"])
            for found in self._admin.describe_topics(asked)
            if not found["error_code"]
        }
        if not there:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in there]
        configs = self._admin.describe_configs(resources, config_filter="modified" if own else "all")["topic"]
        return {
            name: TopicConfig(
                count,
                {
                    key: config["value"]
                    for key, config in configs.get(name, {}).items()
                    if config["value"] is not None and (not own or config["config_source"] == _OWN_CONFIG)
                },
            )
            for name, count in there.items()
        }

    def create_topic(self, name: str, topic: TopicConfig, *, replication_factor: int = -1) -> None:
        """Have a topic be there; one that is already stays as it is."""
        request = {
            name: {
                "num_partitions": topic.partitions or -1,
                "replication_factor": replication_factor,
                "configs": dict(topic.configs),
            }
        }
        try:
            self._admin.create_topics(request, wait_for_metadata=True)
        except kafka_errors.TopicAlreadyExistsError:
            return
        except kafka_errors.KafkaError as error:
            raise MirrorError(f"{self.address}: topic {name} could not be made: {error}") from None

    def grow_topic(self, name: str, partitions: int) -> None:
        """Have a topic have so many partitions."""
        try:
            self._admin.create_partitions({name: partitions})
            self._admin.wait_for_topics([name])
        except kafka_errors.InvalidPartitionsError:  # it has them by now
            return
        except kafka_errors.KafkaError as error:
            raise MirrorError(
                f"{self.address}: topic {name} could not be given {partitions} partitions: {error}"
            ) from None

    def bounds(
        self, topic_partitions: Iterable[TopicPartition], *, is_committed: bool = False
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset of each partition, and the one behind the last that a consumer can read.

        Raises MirrorError if a partition has no leader that answers.
        """
        asked = [KafkaTopicPartition(*one) for one in topic_partitions]
        if not asked:
            return {}
        isolation = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        try:
            starts, ends = (
                self._admin.list_partition_offsets(dict.fromkeys(asked, at), isolation)
                for at in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
            )
        except kafka_errors.KafkaError as error:
            raise MirrorError(f"{self.address}: the ends of partitions are not known: {error}") from None
        return {TopicPartition(*one): (int(starts[one].offset), int(ends[one].offset)) for one in asked}

    def end_offset(self, topic_partition: TopicPartition) -> int | None:
        """The offset behind the last record; None where there is no such partition."""
        asked = KafkaTopicPartition(*topic_partition)
        try:
            found = self._admin.list_partition_offsets({asked: OffsetSpec.LATEST})
        except kafka_errors.UnknownTopicOrPartitionError:
            return None
        return int(found[asked].offset)

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """What a group has committed."""
        found = _asked_again(lambda: self._admin.list_group_offsets({group: None})[group])
        return {
            TopicPartition(*one): int(committed.offset)
            for one, committed in found.items()
            if committed.offset >= 0
        }

    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit for a group, which has no members. Raises MirrorError."""
        commits = {KafkaTopicPartition(*one): OffsetAndMetadata(at, "", -1) for one, at in offsets.items()}
        errors = _asked_again(lambda: self._admin.alter_group_offsets(group, commits))
        for topic_partition, error in errors.items():
            if error is not kafka_errors.NoError:
                name = TopicPartition(*topic_partition)
                raise MirrorError(f"{self.address}: {name} of group {group}: {error.message}")

    def close(self) -> None:
        self._admin.close()


def _asked_again(ask: Callable[[], _T]) -> _T:
    """What a group's coordinator answers, which is asked again while it is not there yet."""
    deadline = time.monotonic() + _COORDINATOR_SECONDS
    while True:
        try:
            return ask()
        except kafka_errors.RetriableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
