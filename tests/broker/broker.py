"""One real Kafka broker in KRaft mode, on loopback, in its own folder. Its controller is in the same JVM or in another.

It is asked whether it is ready, never waited for by the clock alone; it is stopped by its own handle; its
ports come from the system, and a start that loses them to another process is tried again.
"""

from __future__ import annotations

import base64
import ctypes
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka.errors import InvalidReplicationFactorError
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from . import jars

HOST = "127.0.0.1"
START_ATTEMPTS = 5
START_SECONDS = 150
STOP_SECONDS = 60
NODE_ID = 1
ANSWER_SECONDS = 60
PROBE_SECONDS = 2
EARLIEST = -2  # the timestamp of ListOffsets
GROUP = 0  # the key type of FindCoordinator
JVM_OPTIONS = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
PR_SET_PDEATHSIG = 1

DEFAULTS: dict[str, Any] = {
    "process.roles": "broker,controller",
    "node.id": NODE_ID,
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.network.threads": 1,
    "num.io.threads": 2,
    "background.threads": 2,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "transaction.max.timeout.ms": 900000,
    "log.retention.ms": -1,  # records carry timestamps of past years
    "log.index.size.max.bytes": 65536,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.dedupe.buffer.size": 4194304,
    "log.cleaner.io.buffer.size": 65536,
    "log.cleaner.threads": 1,
    "log.segment.delete.delay.ms": 100,
}


@dataclass(frozen=True)
class Kafka:
    """A line of Kafka: its jars, and what differs between the lines in running them."""

    name: str
    jar_set: jars.JarSet
    dump_log: str  # the class of kafka-dump-log

    def java(self, log4j: str, jvm_options: Sequence[str] = JVM_OPTIONS) -> list[str]:
        """The command up to the class to run, which logs as the configuration beside this file says."""
        home = os.environ.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else "java"
        configuration = Path(__file__).with_name(log4j).as_uri()
        logging = (
            f"-Dlog4j.configuration={configuration}",
            "-Dlog4j1.compatibility=true",
        )  # of log4j 1, for 2 too
        return [java, *jvm_options, *logging, "-cp", self.jar_set.classpath()]


KAFKA_3 = Kafka("3.9", jars.KAFKA, "kafka.tools.DumpLogSegments")
KAFKA_4 = Kafka("4.x", jars.KAFKA_4, "org.apache.kafka.tools.DumpLogSegments")
KAFKA_4_0 = Kafka("4.0", jars.KAFKA_4_0, "org.apache.kafka.tools.DumpLogSegments")


# The controller has heard nothing of the broker for `broker.session.timeout.ms`, as on a loaded machine. The next
# heartbeat ends that.
FENCED = InvalidReplicationFactorError.errno


class BrokerError(Exception):
    """The broker did not start, or a tool of it failed; the message ends with the tail of what it logged."""


class BrokerRefusalError(Exception):
    """The broker answered with an error code."""

    def __init__(self, what: str, code: int, message: str | None = None) -> None:
        super().__init__(f"{what}: error code {code}" + (f" ({message})" if message else ""))
        self.code = code


class Broker:
    """A broker in `folder`; `config` overrides the settings above. A context manager; startable again.

    In `advertised.listeners` the name of a listener in braces stands for its port. `log.dirs` may name more folders
    beside `log_dir`.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any] | None = None,
        jvm_options: Sequence[str] = JVM_OPTIONS,
        kafka: Kafka = KAFKA_3,
        listeners: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.ports = dict.fromkeys(listeners, -1)
        """Of further listeners, by the names of their protocols."""
        self.log_dir = folder / "data"
        self.log_file = folder / "broker.log"
        self.port = self._controller_port = -1
        self._config = {**DEFAULTS, "log.dirs": self.log_dir, **(config or {})}
        self.node_id = int(self._config["node.id"])
        self._controller: Broker | None = None
        self._jvm_options = jvm_options
        self.kafka = kafka
        self.pid = -1
        """Of the JVM; a broker that was started again has another."""
        self._process: subprocess.Popen[bytes] | None = None
        self._cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        self._launched_at = 0  # where in the log this process's lines begin

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def log_dirs(self) -> list[Path]:
        """`log_dir`, and those of the configuration."""
        return [Path(name) for name in str(self._config["log.dirs"]).split(",")]

    def join(self, controller: Broker) -> None:
        """Be a broker of the cluster of another one, which is its controller, from the first start on."""
        self._controller, self._cluster_id = controller, controller._cluster_id

    @classmethod
    def running(cls, folder: Path, kafka: Kafka, port: int, pid: int) -> Broker:
        """The broker that another process started in `folder`; only that process can stop it."""
        broker = cls(folder, kafka=kafka)
        broker.port, broker.pid = port, pid
        return broker

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start, and return once the broker answers a metadata request with itself in it."""
        self._format()
        for _ in range(START_ATTEMPTS):
            self._launch()
            if self._wait_until_ready():
                return
            self.kill()
            if not self._lost_its_port():
                break
        raise BrokerError(f"the broker did not start:\n{self.log_tail()}")

    def stop(self) -> None:
        """Stop cleanly, so that every index is trimmed to its entries; kill where that takes too long."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """Stop at once, as a crash would: indexes keep their preallocated size."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def log_tail(self, lines: int = 40) -> str:
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else "(nothing logged)"
        return "\n".join(text.splitlines()[-lines:])

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, Any] | None = None) -> None:
        """Create a topic; it has a leader for each partition when this returns."""
        spec = CreateTopicsRequest.CreatableTopic
        configs = [spec.CreatableTopicConfig(name=k, value=str(v)) for k, v in (config or {}).items()]
        topic = spec(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=configs
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30000, validate_only=False)
        deadline = time.monotonic() + START_SECONDS
        while True:
            (created,) = self.request(request, 5).topics
            if created.error_code != FENCED or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        if created.error_code:
            raise BrokerRefusalError(f"create {name}", created.error_code, created.error_message)
        while not self._has_leaders(name, partitions):
            if time.monotonic() > deadline:
                raise BrokerError(f"topic {name} got no leaders:\n{self.log_tail()}")
            time.sleep(0.02)

    def wait_for_cleaner(self, topic: str, partition: int = 0) -> None:
        """Return once the cleaner has passed over everything before the active segment."""
        folder = self.log_dir / f"{topic}-{partition}"
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            active = max(int(log.stem) for log in folder.glob("*.log"))
            if active and self._cleaned_up_to(topic, partition) >= active:
                return
            time.sleep(0.1)
        raise TimeoutError(f"{topic}-{partition} was not cleaned:\n{self.log_tail()}")

    def wait_for_coordinator(self) -> None:
        """Return once groups find their coordinator; the first that asks for one has the topic of offsets made."""
        asked = FindCoordinatorRequest(key="any", key_type=GROUP)
        deadline = time.monotonic() + START_SECONDS
        while code := self.request(asked, 1).error_code:
            if time.monotonic() > deadline:
                raise BrokerError(f"no coordinator, error code {code}:\n{self.log_tail()}")
            time.sleep(0.02)

    def _cleaned_up_to(self, topic: str, partition: int) -> int:
        checkpoint = (
            self.log_dir / "cleaner-offset-checkpoint"
        )  # version, count, then topic, partition, offset
        lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
        offsets = {(line.split()[0], int(line.split()[1])): int(line.split()[2]) for line in lines}
        return offsets.get((topic, partition), 0)

    def request(self, message: ApiMessage, version: int, seconds: float = ANSWER_SECONDS) -> Any:
        """Send one request on a connection of its own and return the answer, both kafka-python's messages."""
        message.API_VERSION = version
        message.with_header(correlation_id=1, client_id="kafkafmt-tests")
        with socket.create_connection((HOST, self.port), timeout=seconds) as connection:
            connection.sendall(message.encode(version=version, header=True, framed=True))
            (size,) = struct.unpack(">i", _receive(connection, 4))
            answer = _receive(connection, size)
        return message.header.get_response_class().decode(answer, version=version, header=True)

    def dump_log(self, path: Path | list[Path], *options: str) -> str:
        """What `kafka-dump-log` prints about a segment or an index (or several)."""
        files = ",".join(str(p) for p in ([path] if isinstance(path, Path) else path))
        done = subprocess.run(
            [*self.kafka.java("quiet.properties"), self.kafka.dump_log, "--files", files, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise BrokerError(f"kafka-dump-log {files} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def _format(self) -> None:
        """What `kafka-storage format` writes, but for the metadata version: the latest is the default."""
        for log_dir in self.log_dirs:
            log_dir.mkdir(parents=True, exist_ok=True)
            properties = log_dir / "meta.properties"
            if not properties.exists():
                properties.write_text(f"version=1\ncluster.id={self._cluster_id}\nnode.id={self.node_id}\n")

    def _launch(self) -> None:
        controller = self._controller or self
        self.port, self._controller_port, *ports = _free_ports(2 + len(self.ports))
        self.ports = dict(zip(self.ports, ports, strict=True))
        all_ports = {"PLAINTEXT": self.port, **self.ports}
        if controller is self:
            all_ports["CONTROLLER"] = self._controller_port
        settings = {
            **self._config,
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in all_ports.items()),
            "controller.quorum.voters": f"{controller.node_id}@{HOST}:{controller._controller_port}",
        }
        if advertised := settings.get("advertised.listeners"):
            settings["advertised.listeners"] = advertised.format(**all_ports)
        file = self.folder / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        temporary = self.folder / "tmp"  # a JVM that is killed leaves the libraries of its codecs behind
        temporary.mkdir(exist_ok=True)
        java = self.kafka.java("log4j.properties", [*self._jvm_options, f"-Djava.io.tmpdir={temporary}"])
        with self.log_file.open("ab") as log:
            self._launched_at = log.tell()
            self._process = subprocess.Popen(
                [*java, "kafka.Kafka", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        self.pid = self._process.pid

    def _wait_until_ready(self) -> bool:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None and not self._lost_its_port():
            try:
                answer = self._metadata([], PROBE_SECONDS)
                is_ours = answer.cluster_id == self._cluster_id  # not one that took our port
                if is_ours and any(broker.node_id == self.node_id for broker in answer.brokers):
                    return True
            except OSError:
                pass  # not listening yet
            time.sleep(0.05)
        return False

    def _lost_its_port(self) -> bool:
        with self.log_file.open("rb") as log:
            log.seek(self._launched_at)
            return b"Address already in use" in log.read()

    def _metadata(self, topics: list[str], seconds: float = ANSWER_SECONDS) -> Any:
        wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        return self.request(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), 5, seconds)

    def _has_leaders(self, name: str, partitions: int) -> bool:
        (topic,) = self._metadata([name]).topics
        led = [p for p in topic.partitions if p.error_code == 0 and p.leader_id == self.node_id]
        return topic.error_code == 0 and len(led) == partitions and self._leads(name, partitions)

    def _leads(self, name: str, partitions: int) -> bool:
        """Whether this broker answers as the leader: metadata, and the folder, are there before."""
        spec = ListOffsetsRequest.ListOffsetsTopic
        asked = [
            spec.ListOffsetsPartition(partition_index=number, timestamp=EARLIEST)
            for number in range(partitions)
        ]
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[spec(name=name, partitions=asked)]
        )
        (topic,) = self.request(request, 2).topics
        return all(one.error_code == 0 for one in topic.partitions)


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server((HOST, 0)) for _ in range(count)]
    try:
        return [s.getsockname()[1] for s in held]
    finally:
        for s in held:
            s.close()


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return bytes(data)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
