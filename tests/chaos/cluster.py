"""Kafka's brokers, each on a host and a small disk of its own: three of the source, and one that mirrors write to."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from broker.broker import DEFAULTS, KAFKA_4
from chaos.clocks import Clock
from chaos.disks import MountedDisk
from chaos.network import Network
from chaos.processes import MIB, Process
from chaos.workloads.load import PARTITIONS

if TYPE_CHECKING:
    from typing_extensions import Self

SOURCE = ("b1", "b2", "b3")
TARGET = ("west",)
BROKERS = (*SOURCE, *TARGET)
PORT, CONTROLLER_PORT = 9092, 9093
START_SECONDS = 600
STARTED = "Kafka Server started"
JVM_OPTIONS = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

SETTINGS: dict[str, Any] = {
    **DEFAULTS,
    "log.segment.bytes": 4 * MIB,
    "unclean.leader.election.enable": "false",
    # After that a broker that starts gives up.
    "initial.broker.registration.timeout.ms": 1000 * START_SECONDS,
    "broker.session.timeout.ms": 4000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 6000,
    "controller.quorum.election.timeout.ms": 2000,
    "controller.quorum.fetch.timeout.ms": 4000,
}
FACTORS = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
)
LEAST_IN_SYNC = (
    "min.insync.replicas",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.min.isr",
)


class Broker:
    """One broker, which is a controller of its cluster, too."""

    def __init__(
        self, name: str, peers: Sequence[str], network: Network, folder: Path, clock: Clock, disk: Path
    ) -> None:
        self.name, self.disk_path = name, disk
        address = network.address(name)
        node = peers.index(name) + 1
        voters = (f"{peers.index(peer) + 1}@{network.address(peer)}:{CONTROLLER_PORT}" for peer in peers)
        replicas = len(peers)
        settings = {
            **SETTINGS,
            **dict.fromkeys(FACTORS, replicas),
            **dict.fromkeys(LEAST_IN_SYNC, replicas // 2 + 1),
            "node.id": node,
            "log.dirs": disk / "data",
            "listeners": f"PLAINTEXT://{address}:{PORT},CONTROLLER://{address}:{CONTROLLER_PORT}",
            "controller.quorum.voters": ",".join(voters),
        }
        (disk / "data").mkdir()
        cluster_id = f"chaos-{len(peers)}".ljust(22, "0")  # of the length of Kafka's own
        meta = f"version=1\ncluster.id={cluster_id}\nnode.id={node}\n"
        (disk / "data" / "meta.properties").write_text(meta)
        properties = folder / f"{name}.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [*KAFKA_4.java("log4j.properties", JVM_OPTIONS), "kafka.Kafka", str(properties)]
        self.process = Process(
            name,
            network.command(name, command),
            folder / f"{name}.log",
            clock.environment,
            ends_by_itself_with=(143,),  # Java's status after SIGTERM
        )
        self._seen, self._has_started = 0, False

    def start(self) -> None:
        log = self.process.log
        self._seen, self._has_started = log.stat().st_size if log.exists() else 0, False
        self.process.start()

    @property
    def is_ready(self) -> bool:
        """Whether the broker has said since its start that it has started, and still runs."""
        if not self.process.is_running or self.process.is_paused:
            return False
        if not self._has_started:
            with self.process.log.open("rb") as log:
                log.seek(self._seen)
                self._has_started = STARTED.encode() in log.read()
        return self._has_started


class Cluster:
    """All brokers, with their clocks and disks. A context manager: they run from its beginning to its end."""

    def __init__(self, network: Network, folder: Path, clocks: Mapping[str, Clock], disk_bytes: int) -> None:
        self._network, self._folder, self._clocks = network, folder, clocks
        self._disk_bytes = disk_bytes
        self.brokers: dict[str, Broker] = {}
        self.disks: dict[str, MountedDisk] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for name in BROKERS:
                disk = stack.enter_context(MountedDisk(self._folder / "disks" / name, self._disk_bytes))
                peers = SOURCE if name in SOURCE else TARGET
                broker = Broker(name, peers, self._network, self._folder, self._clocks[name], disk.path)
                self.disks[name], self.brokers[name] = disk, broker
                stack.callback(broker.process.kill)
                broker.start()
            self.wait_until_ready()
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def bootstrap(self, names: Sequence[str]) -> str:
        return ",".join(f"{self._network.address(name)}:{PORT}" for name in names)

    @property
    def is_ready(self) -> bool:
        return all(broker.is_ready for broker in self.brokers.values())

    def wait_until_ready(self) -> None:
        """Raises TimeoutError with the log of a broker that has not started in time."""
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready:
            for broker in self.brokers.values():
                if (status := broker.process.ended_by_itself()) is not None:
                    raise RuntimeError(f"{broker.name} ended with {status}:\n{broker.process.tail()}")
            if time.monotonic() > deadline:
                late = next(broker for broker in self.brokers.values() if not broker.is_ready)
                raise TimeoutError(f"{late.name} did not start:\n{late.process.tail()}")
            time.sleep(0.2)

    def create_topics(self, names: Sequence[str]) -> None:
        """Create topics of three replicas, of which two must be in sync."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap(SOURCE)})
        deadline = time.monotonic() + START_SECONDS
        wanted = set(names)
        while wanted:
            topics = [NewTopic(name, PARTITIONS, len(SOURCE)) for name in wanted]
            for name, future in admin.create_topics(topics, request_timeout=30).items():
                try:
                    future.result()
                    wanted.discard(name)
                except KafkaException as error:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"topic {name} was not created: {error}") from error
            time.sleep(0.2)
