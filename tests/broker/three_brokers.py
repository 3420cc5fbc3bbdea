"""A cluster of three real brokers. The first is also the controller, and stays; the others may die and come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka.errors import UnknownTopicOrPartitionError
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    CreateTopicsRequest,
    ElectLeadersRequest,
)
from kafka.protocol.metadata import MetadataRequest

import kafkafmt as kf
from broker.broker import Broker, BrokerRefusalError, Kafka
from kafkafmt.log import LogDirectory

if TYPE_CHECKING:
    from typing_extensions import Self

NODES = (1, 2, 3)
CONTROLLER = 1
PREFERRED = 0  # the type of an election
WAIT_SECONDS = 60
TIMEOUT_MS = 30_000

DEFAULTS: dict[str, Any] = {
    "min.insync.replicas": 2,
    # After that much silence a broker is given up, and others lead its partitions: soon after a kill, and not because a
    # busy machine lets a broker wait.
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 300,
}


class ThreeBrokers:
    """Brokers 1, 2 and 3 in `folder`. A context manager.

    configs: what one of them has beside the settings of all.
    listeners: what one of them has beside PLAINTEXT.
    """

    def __init__(
        self,
        folder: Path,
        kafka: Kafka,
        configs: Mapping[int, Mapping[str, Any]] | None = None,
        listeners: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        self._folder, self._kafka = folder, kafka
        self._configs, self._listeners = configs or {}, listeners or {}
        self.nodes: dict[int, Broker] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for number in NODES:
                roles = "broker,controller" if number == CONTROLLER else "broker"
                config = {"node.id": number, "process.roles": roles, **DEFAULTS}
                folder = self._folder / str(number)
                folder.mkdir()
                self.nodes[number] = Broker(
                    folder,
                    {**config, **self._configs.get(number, {})},
                    kafka=self._kafka,
                    listeners=self._listeners.get(number, ()),
                )
                if number != CONTROLLER:
                    self.nodes[number].join(self.nodes[CONTROLLER])
                stack.callback(self.nodes[number].kill)
                self.nodes[number].start()
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    @property
    def bootstrap(self) -> str:
        """Of all three, as their addresses are now; a broker that comes back has another."""
        return ",".join(broker.bootstrap for broker in self.nodes.values())

    def log_tail(self) -> str:
        return "\n".join(broker.log_tail() for broker in self.nodes.values())

    def create_topic(
        self,
        name: str,
        leaders: Sequence[int] = NODES,
        config: Mapping[str, Any] | None = None,
        *,
        is_replicated: bool = True,
    ) -> str:
        """Create a topic of a partition for each leader, on all brokers or on that one.

        All replicas are in sync then, and all brokers that have one know the leaders.
        """
        spec = CreateTopicsRequest.CreatableTopic
        configs = [spec.CreatableTopicConfig(name=k, value=str(v)) for k, v in (config or {}).items()]
        assignments = [
            spec.CreatableReplicaAssignment(
                partition_index=number, broker_ids=_replicas(leader) if is_replicated else [leader]
            )
            for number, leader in enumerate(leaders)
        ]
        topic = spec(
            name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=configs
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=False)
        (created,) = self._ask(request, 5).topics
        if created.error_code:
            raise BrokerRefusalError(f"create {name}", created.error_code, created.error_message)
        self.wait_until(lambda: len(self._partitions(name)) == len(leaders))
        for number, leader in enumerate(leaders):
            if is_replicated:  # another one leads if the cluster has given this one up for a moment
                self.elect(name, number, leader)
            else:
                self.wait_until(lambda n=number, wanted=leader: self.leader(name, n) == wanted)  # type: ignore[misc]
        if is_replicated:
            self.wait_until(lambda: all(len(p.isr_nodes) == len(NODES) for p in self._partitions(name)))
            for node in NODES:
                self.wait_until(
                    lambda node=node: [p.leader_id for p in self._partitions(name, node)] == list(leaders)  # type: ignore[misc]
                )
        return name

    def place(self, topic: str, node: int, log_dir: Path) -> None:
        """Let a broker create its replica of the only partition of a topic in one of its log directories."""
        spec = AlterReplicaLogDirsRequest.AlterReplicaLogDir
        wanted = spec(path=str(log_dir), topics=[spec.AlterReplicaLogDirTopic(name=topic, partitions=[0])])
        answer = self.nodes[node].request(AlterReplicaLogDirsRequest(dirs=[wanted]), 2)
        ((placed,),) = [one.partitions for one in answer.results]
        if placed.error_code != UnknownTopicOrPartitionError.errno:  # as of any topic to come
            raise BrokerRefusalError(f"place {topic}", placed.error_code)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Of the partition as the controller's broker knows it; -1 for none."""
        found = [p.leader_id for p in self._partitions(topic) if p.partition_index == partition]
        return int(found[0]) if found else -1

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Make another broker the preferred leader, and elect it; it leads when this returns."""
        self.reassign(topic, partition, _replicas(to))
        self.elect(topic, partition, to)

    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Let these brokers have the partition, and no others; that is so when this returns."""
        spec = AlterPartitionReassignmentsRequest.ReassignableTopic
        wanted = spec.ReassignablePartition(partition_index=partition, replicas=list(replicas))
        request = AlterPartitionReassignmentsRequest(
            topics=[spec(name=topic, partitions=[wanted])], timeout_ms=TIMEOUT_MS
        )
        answer = self._ask(request, 0)
        if answer.error_code:
            raise BrokerRefusalError(f"reassign {topic}", answer.error_code, answer.error_message)
        self.wait_until(lambda: self._partitions(topic)[partition].replica_nodes == list(replicas))

    def elect(self, topic: str, partition: int, preferred: int) -> None:
        """Elect the preferred leader once it is in sync; it leads when this returns."""
        self.wait_until(lambda: preferred in self._partitions(topic)[partition].isr_nodes)
        named = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[partition])
        request = ElectLeadersRequest(
            election_type=PREFERRED, topic_partitions=[named], timeout_ms=TIMEOUT_MS
        )
        self._ask(request, 2)
        self.wait_until(lambda: self.leader(topic, partition) == preferred)

    def kill(self, node: int) -> None:
        """At once, as a crash; `start` follows."""
        self.nodes[node].kill()

    def start(self, node: int) -> None:
        self.nodes[node].start()

    def batches(self, topic: str, partition: int = 0) -> list[kf.RecordBatch]:
        """Those of the leader's log as kafkafmt reads it, without markers."""
        broker = self.nodes[self.leader(topic, partition)]
        folder = f"{topic}-{partition}"
        (log_dir,) = (path for path in broker.log_dirs if (path / folder).is_dir())
        return [
            batch
            for batch in LogDirectory(log_dir).partition((topic, partition)).batches()
            if not batch.is_control
        ]

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Raises TimeoutError if that takes too long."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not so within {WAIT_SECONDS} s:\n{self.log_tail()}")
            time.sleep(0.05)

    def _partitions(self, topic: str, node: int = CONTROLLER) -> list[Any]:
        wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        (found,) = self.nodes[node].request(request, 5).topics
        return sorted(found.partitions, key=lambda one: one.partition_index)

    def _ask(self, request: Any, version: int) -> Any:
        return self.nodes[CONTROLLER].request(request, version)


def _replicas(leader: int) -> list[int]:
    return [leader, *(node for node in NODES if node != leader)]
