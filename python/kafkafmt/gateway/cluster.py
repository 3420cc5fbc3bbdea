"""What a gateway knows of its cluster, from the responses that pass: brokers, controller, leaders and coordinators."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from kafka import errors
from kafka.protocol.api_key import ApiKey

from kafkafmt.gateway.broker_versions import VersionsForStrangers
from kafkafmt.gateway.routes import Broker, broker_of
from kafkafmt.server.request import Message
from kafkafmt.server.wire import all_structs

# Values of the field `key_type` of FindCoordinator.
KEY_TYPES = {Broker.GROUP: 0, Broker.TRANSACTION: 1}
_BY_KEY_TYPE = {key_type: broker for broker, key_type in KEY_TYPES.items()}
# So many coordinators are remembered; the oldest are forgotten first.
_MAX_COORDINATORS = 10_000
# So many topics are remembered, or all of the newest metadata if these are more.
_MAX_TOPICS = 10_000


# Error codes of a broker that does not lead the partition, or knows another epoch or id of it.
STALE_LEADER_CODES = frozenset(
    error.errno
    for error in (
        errors.UnknownTopicOrPartitionError,
        errors.LeaderNotAvailableError,
        errors.NotLeaderForPartitionError,
        errors.ReplicaNotAvailableError,
        errors.KafkaStorageError,
        errors.FencedLeaderEpochError,
        errors.UnknownLeaderEpochError,
        errors.UnknownTopicIdError,
        errors.InconsistentTopicIdError,
    )
)
# Error codes of a broker that does not coordinate the group or the transaction.
STALE_COORDINATOR_CODES = frozenset(
    (errors.CoordinatorNotAvailableError.errno, errors.NotCoordinatorError.errno)
)
# The error code of a broker that is not the controller. Brokers of clusters without ZooKeeper pass requests on to it.
NOT_CONTROLLER = int(errors.NotControllerError.errno)
# Error codes of topics in metadata that have no leaders. With other codes the client may not see the topic.
_GONE = (errors.UnknownTopicOrPartitionError.errno, errors.LeaderNotAvailableError.errno)
# DescribeCluster: the type of endpoint of brokers, from the first version that has others (KIP-919, KIP-1073).
_BROKERS, _ENDPOINT_TYPE_VERSION, _FENCED_VERSION = 1, 1, 2


def _are_brokers(response: Message) -> bool:
    return bool(response.API_VERSION < _ENDPOINT_TYPE_VERSION or response.endpoint_type == _BROKERS)


class Address(NamedTuple):
    """The address of a broker."""

    host: str
    port: int


class ClusterView:
    """The brokers of a cluster, from the newest metadata. All clients of a gateway share one.

    It may be out of date. A broker then answers that it is not the leader, or not the coordinator. The client asks
    for the new one, and the view learns from that response. After a broker could not be reached, the view does not use
    what it learned of that broker before.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, Address] = {}
        self.controller_id: int | None = None
        self.versions_for_strangers = VersionsForStrangers()
        self._leaders: dict[str, dict[int, int]] = {}
        self._names: dict[UUID, str] = {}
        self._coordinators: dict[tuple[Broker, str], tuple[int, int]] = {}  # node, and when it was learned
        self._ids: dict[str, UUID] = {}
        # A count of events stands for the time.
        self._now = 0
        # When the leaders of a topic were learned. Those that were learned last are at the end.
        self._learned: dict[str, int] = {}
        self._suspected: dict[int, int] = {}  # when a broker could not be reached

    def learn(self, request: Message, response: Message) -> None:
        """Learn brokers, leaders and coordinators from a response, before addresses in it are replaced."""
        match ApiKey(response.API_KEY):
            case ApiKey.Metadata:
                self._learn_metadata(response)
            case ApiKey.FindCoordinator:
                self._learn_coordinators(request, response)
            case ApiKey.DescribeCluster if not response.error_code and _are_brokers(response):
                self._learn_brokers(
                    (one.broker_id, one.host, one.port)
                    for one in response.brokers
                    if not (response.API_VERSION >= _FENCED_VERSION and one.is_fenced)
                )

    def leader(self, topic: str | UUID, partition: int) -> int | None:
        """Return the node id of the leader of a partition; None if it is not known."""
        name = self._names.get(topic) if isinstance(topic, UUID) else topic
        node_id = None if name is None else self._leaders.get(name, {}).get(partition)
        if name is None or node_id is None or node_id not in self.brokers:
            return None
        return None if self._suspected.get(node_id, 0) > self._learned[name] else node_id

    def missing_leader_code(self, topic: str, partition: int) -> int:
        """Return the error code for a partition that `leader` does not find after the topic was learned."""
        if partition in self._leaders.get(topic, {}):
            return int(errors.NotLeaderForPartitionError.errno)
        return int(errors.UnknownTopicOrPartitionError.errno)

    def forget_leaders(self, topic: str | UUID) -> None:
        """Forget the leaders of a topic: a broker answered that it is not the leader."""
        name = self._names.get(topic) if isinstance(topic, UUID) else topic
        if name is not None:
            self._leaders.pop(name, None)

    def suspect(self, node_id: int) -> None:
        """Stop using what was learned of a broker: it cannot be reached, so it may lead nothing any more."""
        self._now += 1
        self._suspected[node_id] = self._now
        if self.controller_id == node_id:
            self.controller_id = None

    def coordinator(self, broker: Broker, key: str) -> int | None:
        """Return the node id of the coordinator of a group or transactional id; None if it is not known."""
        node_id, learned = self._coordinators.get((broker, key), (None, 0))
        if node_id is None or node_id not in self.brokers:
            return None
        return None if self._suspected.get(node_id, 0) > learned else node_id

    def forget_coordinator(self, broker: Broker, key: str) -> None:
        """Forget a coordinator, which answered that it is not the coordinator."""
        self._coordinators.pop((broker, key), None)

    def forget_controller(self) -> None:
        """Forget the controller: a broker answered that it is not the controller."""
        self.controller_id = None

    def forget_stale(self, request: Message, response: Message) -> None:
        """Forget leaders, a coordinator or the controller, if the error codes of a response say that others are it."""
        if request.API_KEY in (ApiKey.ListOffsets, ApiKey.OffsetForLeaderEpoch):
            for topic in response.topics:
                if any(one.error_code in STALE_LEADER_CODES for one in topic.partitions):
                    self.forget_leaders(topic.topic if hasattr(topic, "topic") else topic.name)
            return
        if broker_of(request.API_KEY) is Broker.CONTROLLER:
            if any(getattr(one, "error_code", None) == NOT_CONTROLLER for one in all_structs(response)):
                self.forget_controller()
            return
        group = getattr(request, "group_id", None)
        if group is None:
            return
        codes = {getattr(response, "error_code", None)}
        for topic in getattr(response, "topics", None) or ():
            codes |= {one.error_code for one in topic.partitions}
        if codes & STALE_COORDINATOR_CODES:
            self.forget_coordinator(Broker.GROUP, group)

    def _learn_brokers(self, brokers: Iterable[tuple[int, str, int]]) -> None:
        # A negative node id stands for none, or for one of the addresses that a gateway starts with.
        found = {node_id: Address(host, port) for node_id, host, port in brokers if node_id >= 0}
        if found:
            self.brokers = found

    def _learn_metadata(self, response: Message) -> None:
        self._learn_brokers((one.node_id, one.host, one.port) for one in response.brokers)
        if response.API_VERSION >= 1 and response.controller_id is not None and response.controller_id >= 0:
            self.controller_id = response.controller_id
        self._now += 1
        for topic in response.topics or ():
            if topic.name is None:
                continue
            if topic.error_code:
                if topic.error_code in _GONE:
                    self._forget(topic.name)
                continue
            # Partitions without a leader are kept, because others do not exist.
            self._leaders[topic.name] = {one.partition_index: one.leader_id for one in topic.partitions}
            self._learned.pop(topic.name, None)
            self._learned[topic.name] = self._now
            topic_id = getattr(topic, "topic_id", None)  # zero: the broker knows none
            if topic_id is not None and topic_id.int:
                self._names.pop(self._ids.get(topic.name, topic_id), None)
                self._names[topic_id], self._ids[topic.name] = topic.name, topic_id
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Forget the topics that were learned first. Those of the newest metadata stay: a request waits for them."""
        excess = max(len(self._learned) - _MAX_TOPICS, 0)
        for topic in list(islice(self._learned, excess)):
            if self._learned[topic] != self._now:
                self._forget(topic)

    def _forget(self, topic: str) -> None:
        self._leaders.pop(topic, None)
        self._learned.pop(topic, None)
        topic_id = self._ids.pop(topic, None)
        if topic_id is not None:
            self._names.pop(topic_id, None)

    def _learn_coordinators(self, request: Message, response: Message) -> None:
        broker = _BY_KEY_TYPE.get(request.key_type if request.API_VERSION >= 1 else 0)
        if broker is None:
            return
        found = (
            [(one.key, one.error_code, one.node_id, one.host, one.port) for one in response.coordinators]
            if response.API_VERSION >= 4
            else [(request.key, response.error_code, response.node_id, response.host, response.port)]
        )
        self._now += 1
        for key, error_code, node_id, host, port in found:
            if error_code or node_id < 0:
                continue
            self._coordinators.pop((broker, key), None)
            self._coordinators[broker, key] = node_id, self._now
            self.brokers[node_id] = Address(host, port)
        while len(self._coordinators) > _MAX_COORDINATORS:
            del self._coordinators[next(iter(self._coordinators))]
