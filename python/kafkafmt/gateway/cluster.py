"""What a gateway knows of its cluster: brokers, leaders and coordinators, learned from the responses that pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from kafka.protocol.api_key import ApiKey

from kafkafmt.gateway.routes import Broker
from kafkafmt.server.request import Message

# Values of the field `key_type` of FindCoordinator.
_KEY_TYPES = {0: Broker.GROUP, 1: Broker.TRANSACTION}
# So many coordinators are remembered; the oldest are forgotten first.
_MAX_COORDINATORS = 10_000


class Address(NamedTuple):
    """The address of a broker."""

    host: str
    port: int


class ClusterView:
    """The brokers of a cluster as the newest metadata tells them. All clients of a gateway share one.

    It may be out of date. A broker then answers that it is not the leader, or not the coordinator, and the client
    asks again for what it needs: that response passes here, too.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, Address] = {}
        self.controller_id: int | None = None
        self._leaders: dict[str, dict[int, int]] = {}
        self._names: dict[UUID, str] = {}
        self._coordinators: dict[tuple[Broker, str], int] = {}

    def learn(self, request: Message, response: Message) -> None:
        """Take over what a response tells, before addresses in it are replaced."""
        match ApiKey(response.API_KEY):
            case ApiKey.Metadata:
                self._learn_metadata(response)
            case ApiKey.FindCoordinator:
                self._learn_coordinators(request, response)
            case ApiKey.DescribeCluster if not response.error_code:
                self._learn_brokers((one.broker_id, one.host, one.port) for one in response.brokers)

    def leader(self, topic: str | UUID, partition: int) -> int | None:
        """Return the node id of the leader of a partition; None if it is not known."""
        name = self._names.get(topic) if isinstance(topic, UUID) else topic
        return None if name is None else self._leaders.get(name, {}).get(partition)

    def coordinator(self, broker: Broker, key: str) -> int | None:
        """Return the node id of the coordinator of a group or transactional id; None if it is not known."""
        return self._coordinators.get((broker, key))

    def forget_coordinator(self, broker: Broker, key: str) -> None:
        """Forget a coordinator, which has answered that it is none."""
        self._coordinators.pop((broker, key), None)

    def _learn_brokers(self, brokers: Iterable[tuple[int, str, int]]) -> None:
        found = {node_id: Address(host, port) for node_id, host, port in brokers}
        if found:
            self.brokers = found

    def _learn_metadata(self, response: Message) -> None:
        self._learn_brokers((one.node_id, one.host, one.port) for one in response.brokers)
        if response.API_VERSION >= 1 and response.controller_id is not None and response.controller_id >= 0:
            self.controller_id = response.controller_id
        for topic in response.topics or ():
            if topic.name is None:
                continue
            if topic.error_code:
                self._leaders.pop(topic.name, None)
                continue
            self._leaders[topic.name] = {
                one.partition_index: one.leader_id for one in topic.partitions if one.leader_id >= 0
            }
            if getattr(topic, "topic_id", None):
                self._names[topic.topic_id] = topic.name

    def _learn_coordinators(self, request: Message, response: Message) -> None:
        broker = _KEY_TYPES.get(request.key_type if request.API_VERSION >= 1 else 0)
        if broker is None:
            return
        found = (
            [(one.key, one.error_code, one.node_id, one.host, one.port) for one in response.coordinators]
            if response.API_VERSION >= 4
            else [(request.key, response.error_code, response.node_id, response.host, response.port)]
        )
        for key, error_code, node_id, host, port in found:
            if error_code:
                continue
            self._coordinators.pop((broker, key), None)
            self._coordinators[broker, key] = node_id
            self.brokers.setdefault(node_id, Address(host, port))
        while len(self._coordinators) > _MAX_COORDINATORS:
            del self._coordinators[next(iter(self._coordinators))]
