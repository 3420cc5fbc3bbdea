"""A gateway to three real brokers of Kafka 4, whose groups and transactions have coordinators on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kafka.protocol.admin import UpdateFeaturesRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest

from broker.broker import KAFKA_4, Broker
from broker.three_brokers import NODES, TIMEOUT_MS, ThreeBrokers
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
# Of consumer groups of KIP-848, share groups, and transactions of KIP-890, by name.
FEATURES = {"group.version": 1, "share.version": 1, "transaction.version": 2}
UPGRADE = 1


class Several(NamedTuple):
    """A cluster and the gateway to it."""

    brokers: ThreeBrokers
    gateway: EndpointProcess

    def client(self) -> RawClient:
        return RawClient((self.gateway.host, self.gateway.port))

    def enable(self, features: Mapping[str, int]) -> None:
        """Let the cluster have these versions of features; all brokers have them when this returns."""
        spec = UpdateFeaturesRequest.FeatureUpdateKey
        request = UpdateFeaturesRequest(
            timeout_ms=TIMEOUT_MS,
            feature_updates=[
                spec(feature=name, max_version_level=version, upgrade_type=UPGRADE)
                for name, version in features.items()
            ],
            validate_only=False,
        )
        with self.client() as client:
            updated = client.ask(request, 1)
        assert not updated.error_code, updated
        wanted = set(features.items())
        for broker in self.brokers.nodes.values():
            self.brokers.wait_until(lambda one=broker: wanted <= finalized(one))  # type: ignore[misc]

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


def finalized(broker: Broker) -> set[tuple[str, int]]:
    """The features of a broker's cluster, with their versions."""
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    found = broker.request(request, 4).finalized_features
    return {(one.name, one.max_version_level) for one in found}


@contextmanager
def several_brokers(folder: Path, *options: str) -> Iterator[Several]:
    with ExitStack() as stack:
        configs: dict[int, dict[str, Any]] = dict.fromkeys(NODES, CONFIG)
        brokers = stack.enter_context(ThreeBrokers(folder, KAFKA_4, configs))
        gateway = stack.enter_context(
            gateway_process(brokers.bootstrap, *options, log=folder / "gateway.log")
        )
        several = Several(brokers, gateway)
        several.enable(FEATURES)
        yield several
