"""Read and change the topics, configuration and group offsets of a cluster, with kafka-python's admin client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar
from uuid import UUID

import kafka.errors as kafka_errors
import structlog
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaTopicPartition
from kafka.protocol.consumer import IsolationLevel, OffsetSpec
from kafka.structs import OffsetAndMetadata

from kafkafmt._util.names import some_names
from kafkafmt.client.client_config import parse_client_config, underscored
from kafkafmt.client.control_plane import check_credentials
from kafkafmt.client.logged_errors import LoggedError
from kafkafmt.client.producer import Producer
from kafkafmt.client.raw_consumer import RawConsumer
from kafkafmt.client.tls import check_tls_files
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.admin_client import AdminClient, UnansweredError, UnreachableError
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.refusals import RefusedError, Right, naming_refusals
from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

# A mirror fails after this time if its cluster does not answer at the start.
_BOOTSTRAP_MS = 5000
_READ_ONLY_HINT = " (kafkafmt serve takes records only with --allow-produce)"
# The protocol types of groups that commit offsets: of consumers, and of Kafka Streams (KIP-1071). A group that only
# commits offsets has none.
_OFFSET_PROTOCOLS = frozenset({"", "consumer", "streams"})
# Options that the mirror itself sets from its own options, or relies on.
_RESERVED = frozenset(
    {
        "acks",
        "auto_offset_reset",
        "batch_size",
        "bootstrap_servers",
        "check_crcs",  # an unchecked damaged batch would get a valid CRC at the target
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


# What brokers answer to a commit of a client that is no member, if the group has members.
_ACTIVE_GROUP_ERRORS = (
    kafka_errors.UnknownMemberIdError,
    kafka_errors.IllegalGenerationError,
    kafka_errors.RebalanceInProgressError,
    kafka_errors.StaleMemberEpochError,
)


class ActiveGroupError(MirrorError):
    """Offsets were not committed for a group, because it has members."""


class ConfigRefusedError(MirrorError):
    """A topic was not created or not configured, because a broker refuses its configuration."""


class _AnyClient:
    """The options of all clients together."""

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = {
        **KafkaAdminClient.DEFAULT_CONFIG,
        **RawConsumer.DEFAULT_CONFIG,
        **Producer.DEFAULT_CONFIG,
    }


class MirrorCluster:
    """A cluster and its admin client.

    config: options of kafka-python's clients, as text.

    Raises MirrorError if no broker answers, or an option is not valid or one of the mirror's.
    """

    def __init__(self, address: ClusterAddress, config: Mapping[str, str]) -> None:
        self.address = address
        try:
            self._config = parse_client_config(config, _AnyClient)
            check_tls_files(self._config)
        except ValueError as error:
            raise MirrorError(str(error)) from None
        reserved = sorted(name for name in config if underscored(name) in _RESERVED)
        if reserved:
            raise MirrorError(f"{reserved[0]} is not an option of clients here: the mirror sets it")
        self._config.setdefault("bootstrap_timeout_ms", _BOOTSTRAP_MS)
        self._config["bootstrap_servers"] = list(address.servers)
        logged = LoggedError()
        try:
            with logged.kept():
                check_credentials({**RawConsumer.DEFAULT_CONFIG, **self.config_of(RawConsumer)})
                self._admin = AdminClient(address, self.config_of(KafkaAdminClient))
        except (kafka_errors.KafkaError, ValueError, OSError) as error:
            raise MirrorError(f"{address}: {logged.explain(error, self._config)}") from None
        # `describe_cluster` raises KeyError for DescribeCluster 0, which brokers of 2.8 to 3.6 have.
        self.id = str(self._admin.cluster.cluster_id)
        self.brokers = max(len(self._admin.cluster.brokers()), 1)
        # Topics that a warning named, as their configuration cannot be read.
        self._undescribed: set[str] = set()

    def config_of(self, client: Any) -> dict[str, Any]:
        """Return the keyword arguments for a client class of kafka-python, or a subclass of one."""
        return {name: value for name, value in self._config.items() if name in client.DEFAULT_CONFIG}

    def topic_names(self) -> list[str]:
        """Return the names of all topics."""
        names: list[str] = self._admin.list_topics()
        return names

    def topic_ids(self, names: Iterable[str]) -> dict[str, UUID | None]:
        """Return the topic ids by name, without topics that the broker does not know. None: a broker before 2.8."""
        asked = sorted(names)
        found = self._admin.describe_topics(asked) if asked else ()
        ids = {one["name"]: _topic_id(one) for one in found}
        known = {one["name"] for one in found if not one["error_code"]}
        # A topic without a leader yet has an error and an id.
        return {name: topic_id for name, topic_id in ids.items() if topic_id is not None or name in known}

    def replication_factors(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of replicas that each partition of a topic has, of topics that exist."""
        asked = sorted(names)
        return {
            found["name"]: min(len(one["replica_nodes"]) for one in found["partitions"])
            for found in (self._admin.describe_topics(asked) if asked else ())
            if not found["error_code"] and found["partitions"]
        }

    def partitions(self, names: Iterable[str]) -> list[TopicPartition]:
        """Return all partitions of the topics of these names. Topics that do not exist have none."""
        asked = sorted(names)
        return [
            TopicPartition(found["name"], partition["partition_index"])
            for found in (self._admin.describe_topics(asked) if asked else ())
            if not found["error_code"]
            for partition in found["partitions"]
        ]

    def has_topic(self, name: str) -> bool:
        """Return whether a broker knows a topic. One that has just started may not know all topics, so all are asked.

        Brokers that do not answer are left out. Raises UnansweredError if none answers.
        """
        return bool(self.partition_counts([name])) or any(
            error in (kafka_errors.NoError, kafka_errors.LeaderNotAvailableError)
            for error in self._admin.topic_errors(name)
        )

    def ensure_describable(self, names: Iterable[str]) -> None:
        """Raise RefusedError if the user lacks the right Describe on one of these names. The topics need not exist."""
        asked = sorted(names)
        refused = [
            found["name"]
            for found in (self._admin.describe_topics(asked) if asked else ())
            if found["error_code"] == kafka_errors.TopicAuthorizationFailedError.errno
        ]
        if refused:
            raise RefusedError(f"{self.address}: this user needs the right Describe on {some_names(refused)}")

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions by name, without topics that the broker does not know."""
        asked = sorted(names)
        return {
            found["name"]: len(found["partitions"])
            for found in (self._admin.describe_topics(asked) if asked else ())
            if not found["error_code"]
        }

    def describe_topics(self, counts: Mapping[str, int], *, own: bool = True) -> dict[str, TopicConfig]:
        """Return the configuration of topics that exist.

        A topic without the right DescribeConfigs is left out: its configuration is not known. A warning names it once.
        Raises UnansweredError if a broker cannot answer now, or does not know a topic yet, and MirrorError for another
        failure.

        counts: as `partition_counts` has just returned them.
        own: only properties that were set for the topic itself; else all properties, defaults included.
        """
        described = {}
        refused: dict[str, kafka_errors.KafkaError] = {}
        for name, found in (self._admin.describe_topic_configs(counts, own=own) if counts else {}).items():
            if not isinstance(found, kafka_errors.KafkaError):
                described[name] = TopicConfig(counts[name], found)
            elif isinstance(found, kafka_errors.AuthorizationError):
                refused[name] = found
            else:
                raise _refusal(found)(
                    f"{self.address}: the configuration of topic {name} could not be read: {found}"
                )
        if new := sorted(refused.keys() - self._undescribed):
            self._undescribed.update(new)
            _log.warning(
                "the configuration of topics is not known: DescribeConfigs was refused",
                cluster=str(self.address),
                topics=new,
                error=str(refused[new[0]]),
            )
        return described

    def create_topic(
        self, name: str, topic: TopicConfig, *, replication_factor: int = -1, only_checks: bool = False
    ) -> int:
        """Create a topic. One that exists stays as it is. Returns its number of replicas; -1 if brokers do not say.

        Raises MirrorError if that fails, and its subclass UnansweredError if it may succeed later.

        replication_factor: -1 for the default of the cluster.
        only_checks: only check that it could be created. Raises ConfigRefusedError if its configuration is refused.
        """
        request = {
            name: {
                "num_partitions": topic.partitions or -1,
                "replication_factor": replication_factor,
                "configs": dict(topic.configs),
            }
        }
        try:
            with self._naming(f"creating topic {name}", "Create", name):
                answer = self._admin.create_topics(
                    request, validate_only=only_checks, wait_for_metadata=False, raise_errors=False
                )
                _raise_for(answer["topics"])
            if not only_checks:
                self._admin.wait_for_topics([name])
            return int(answer["topics"][0].get("replication_factor", -1))
        except kafka_errors.TopicAlreadyExistsError:
            return -1
        except RefusedError:
            raise
        except kafka_errors.KafkaError as error:
            is_config = isinstance(error, kafka_errors.InvalidConfigurationError)
            refusal = ConfigRefusedError if is_config else _refusal(error)
            hint = _READ_ONLY_HINT if isinstance(error, kafka_errors.IncompatibleBrokerVersion) else ""
            raise refusal(
                f"{self.address}: topic {name} could not be created: {_text(error)}{hint}"
            ) from None

    def add_partitions(self, name: str, partitions: int) -> None:
        """Increase the number of partitions of a topic. Raises as `create_topic` does."""
        try:
            with self._naming(f"adding partitions to topic {name}", "Alter", name):
                self._admin.create_partitions({name: partitions})
            self._admin.wait_for_topics([name])
        except kafka_errors.InvalidPartitionsError:  # another client has added them
            return
        except RefusedError:
            raise
        except kafka_errors.KafkaError as error:
            raise _refusal(error)(
                f"{self.address}: topic {name} could not be extended to {partitions} partitions: {_text(error)}"
            ) from None

    def alter_topic(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Set properties of a topic, or reset those that are None (KIP-339).

        Raises ConfigRefusedError if a broker refuses that, RefusedError if the right AlterConfigs is missing, and
        UnansweredError if it may succeed later.
        """
        try:
            with self._naming(f"configuring topic {name}", "AlterConfigs", name):
                for error in self._admin.alter_topic_configs({name: changes}).values():
                    raise error
        except RefusedError:
            raise
        except kafka_errors.KafkaError as error:
            found = _refusal(error)
            refusal = found if issubclass(found, UnansweredError) else ConfigRefusedError
            raise refusal(f"{self.address}: topic {name} could not be configured: {_text(error)}") from None

    def ensure_alterable(self, names: Iterable[str]) -> None:
        """Raise MirrorError if the user may not set properties of topics with these names. They may be missing.

        Brokers before 2.3 are not asked: they have no IncrementalAlterConfigs.
        """
        changes = {name: {"retention.ms": "-1"} for name in names}
        if not changes:
            return
        try:
            errors = self._admin.alter_topic_configs(changes, only_checks=True)
        except kafka_errors.IncompatibleBrokerVersion:
            return
        denied = (one for one, error in errors.items() if isinstance(error, kafka_errors.AuthorizationError))
        if refused := sorted(denied):
            raise RefusedError(
                f"{self.address}: this user needs the right AlterConfigs on {some_names(refused)}"
            )

    def bounds(
        self, topic_partitions: Iterable[TopicPartition], *, is_committed: bool = False
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the first offset of each partition, and the offset after the last one that a consumer can read.

        is_committed: with isolation level read_committed, which ends at the first open transaction.

        Raises UnansweredError if the leader of a partition does not answer now, and MirrorError for another failure.
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
            raise _refusal(error)(
                f"{self.address}: the offsets of partitions could not be read: {_text(error)}"
            ) from None
        return {TopicPartition(*one): (int(starts[one].offset), int(ends[one].offset)) for one in asked}

    def offsets_at(
        self, topic_partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record of each partition with a timestamp or a later one; None without any.

        Raises as `bounds` does.
        """
        asked = {KafkaTopicPartition(*one): timestamp_ms for one in topic_partitions}
        try:
            found = self._admin.list_partition_offsets(asked) if asked else {}
        except kafka_errors.KafkaError as error:
            raise _refusal(error)(
                f"{self.address}: offsets could not be found by time: {_text(error)}"
            ) from None
        offsets = {TopicPartition(*one): int(at.offset) for one, at in found.items()}
        return {one: None if at < 0 else at for one, at in offsets.items()}

    def end_offset(self, topic_partition: TopicPartition) -> int:
        """Return the offset after the last record. Raises UnansweredError if the broker does not know the partition."""
        asked = KafkaTopicPartition(*topic_partition)
        tried = f"reading the end of partition {topic_partition}"
        try:
            with self._naming(tried, "Describe", topic_partition.topic):
                found = self._admin.list_partition_offsets({asked: OffsetSpec.LATEST})
        except kafka_errors.UnknownTopicOrPartitionError:
            raise UnansweredError(
                f"{self.address}: partition {topic_partition} is not known: its topic was deleted, or the broker does "
                "not know it yet"
            ) from None
        return int(found[asked].offset)

    def consumer_groups(self) -> list[str]:
        """Return the names of all groups of consumers and of Kafka Streams. Raises KafkaError.

        Brokers leave out groups on which the user lacks the right Describe.
        """
        with naming_refusals(self.address, "listing the groups", Right("Describe", "cluster")):
            found = self._admin.list_groups()
        return sorted(one["group_id"] for one in found if one["protocol_type"] in _OFFSET_PROTOCOLS)

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group, by partition. Raises KafkaError."""
        return {one: int(committed.offset) for one, committed in self.committed_offsets(group).items()}

    def committed_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what a group has committed, by partition. Raises KafkaError."""
        tried = f"reading the offsets of group {group}"
        with naming_refusals(
            self.address, tried, Right("Describe", "group", group), Right("Describe", "topic")
        ):
            found = self._admin.list_group_offsets({group: None})[group]
        return {TopicPartition(*one): committed for one, committed in found.items() if committed.offset >= 0}

    def group_members(self, group: str) -> set[str]:
        """Return the ids of the members that a group has now. Raises KafkaError."""
        with naming_refusals(
            self.address, "reading the members of the group", Right("Describe", "group", group)
        ):
            found = self._admin.describe_groups([group])[group]
        return {member["member_id"] for member in found["members"]}

    def commit_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        metadata: Mapping[TopicPartition, str] | None = None,
    ) -> None:
        """Commit offsets for a group, which must have no members, with metadata of the consumers.

        Raises ActiveGroupError if it has members, MirrorError for another refusal, and KafkaError.
        """
        texts = {} if metadata is None else metadata
        commits = {
            KafkaTopicPartition(*one): OffsetAndMetadata(at, texts.get(one, ""), -1)
            for one, at in offsets.items()
        }
        with naming_refusals(
            self.address, "committing the offsets of the group", Right("Read", "group", group)
        ):
            errors = self._admin.alter_group_offsets(group, commits)
        for topic_partition, error in errors.items():
            if error is not kafka_errors.NoError:
                name = TopicPartition(*topic_partition)
                if error in _ACTIVE_GROUP_ERRORS:
                    raise ActiveGroupError(f"{self.address}: group {group} has members")
                if issubclass(error, kafka_errors.RetriableError):
                    raise error(f"{self.address}: {name} of group {group}")
                is_denied = error is kafka_errors.TopicAuthorizationFailedError
                hint = f": this user needs the right Read on topic {name.topic}" if is_denied else ""
                raise MirrorError(f"{self.address}: {name} of group {group}: {error.message}{hint}")

    def _naming(self, tried: str, operation: str, topic: str) -> AbstractContextManager[None]:
        return naming_refusals(self.address, tried, Right(operation, "topic", topic))

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()


def _topic_id(described: Mapping[str, Any]) -> UUID | None:
    """Return the id of a topic; None for the id of zeros, which stands for none."""
    found = UUID(str(described.get("topic_id") or UUID(int=0)))
    return found if found.int else None


def _raise_for(topics: Iterable[Mapping[str, Any]]) -> None:
    """Raise the error of the first topic that a broker refuses. kafka-python's own has the whole request."""
    for topic in topics:
        error = kafka_errors.for_code(topic["error_code"])
        if error is not kafka_errors.NoError:
            raise error(topic.get("error_message") or "")


def _refusal(error: kafka_errors.KafkaError) -> type[MirrorError]:
    """Return the class for a failed request: one that may succeed later can be tried again."""
    return UnansweredError if isinstance(error, kafka_errors.RetriableError) else MirrorError


def _text(error: Exception) -> str:
    """Return the text of an error for a message that begins with the address of the cluster."""
    return error.reason if isinstance(error, UnreachableError) else str(error)
