"""A gateway to three real brokers of Kafka 4, whose groups and transactions have coordinators on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kafka.protocol.metadata import FindCoordinatorRequest

from broker.broker import KAFKA_4
from broker.three_brokers import NODES, ThreeBrokers
from endpoints.endpoint_process import EndpointProcess, gateway_process
from endpoints.raw_client import RawClient

CONFIG = {
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "group.share.enable": "true",
    "share.coordinator.state.topic.num.partitions": 3,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
}
GROUP, TRANSACTION = 0, 1


class Several(NamedTuple):
    """A cluster and the gateway to it."""

    brokers: ThreeBrokers
    gateway: EndpointProcess

    def client(self) -> RawClient:
        return RawClient((self.gateway.host, self.gateway.port))

    def keys_by_node(self, key_type: int, prefix: str) -> dict[int, str]:
        """A group or transactional id for each broker that coordinates it."""
        found: dict[int, str] = {}
        number = 0
        with self.client() as client:
            while len(found) < len(NODES):
                key = f"{prefix}-{number}"
                node = client.ask(FindCoordinatorRequest(key=key, key_type=key_type), 3)
                if not node.error_code:
                    found.setdefault(node.node_id, key)
                    number += 1
        return found


@contextmanager
def several_brokers(folder: Path, *options: str) -> Iterator[Several]:
    with ExitStack() as stack:
        configs: dict[int, dict[str, Any]] = dict.fromkeys(NODES, CONFIG)
        brokers = stack.enter_context(ThreeBrokers(folder, KAFKA_4, configs))
        gateway = stack.enter_context(
            gateway_process(brokers.bootstrap, *options, log=folder / "gateway.log")
        )
        yield Several(brokers, gateway)
