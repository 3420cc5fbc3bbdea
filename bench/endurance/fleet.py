"""The commands under load, the brokers that they need, and the programs that load them.

- `serve` reads the log directory of the source broker, with two workers. Its clients are raw consumers of all versions,
  and a group of Kafka 0.9.
- `serve --allow-produce` has a log directory of all codecs and formats, for raw consumers, and a topic with a producer
  and a group.
- `gateway` is before the target broker, with producers of today and of Kafka 0.10, a group of today and one of Kafka
  0.9, and raw consumers.
- `mirror` copies the topic of the source broker to the target broker, where a consumer follows.

Topics at brokers have small segments and keep little, so that segments are deleted all the time.
"""

from __future__ import annotations

import socket
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.request import urlopen

from confluent_kafka.admin import AdminClient, NewTopic
from tests.broker.broker import KAFKA_3, KAFKA_4, Broker, Kafka
from tests.chaos.processes import Process
from tests.endpoints.endpoint_process import KAFKAFMT, lasting_address

from bench import ROOT
from bench.broker import broker_in
from bench.endurance.load.program import MeasurementReader
from bench.segments import MIB, Segment
from bench.serve.logs import topic_of
from kafkafmt import Codec

if TYPE_CHECKING:
    from typing_extensions import Self

SERVE, GATEWAY, MIRROR = "serve", "gateway", "mirror"
COMMANDS = (SERVE, GATEWAY, MIRROR)
SERVE_PRODUCE = "serve_produce"  # the table of `serve --allow-produce`

# Records of 1 KiB a second.
LIVE_RATE, PRODUCED_RATE, NEW_RATE, OLD_RATE = 800, 60, 300, 300
FETCH_RATE = 16  # fetches of 64 KiB a second, of each command
FETCH_SESSION_SECONDS, SESSION_SECONDS = 1.0, 20.0
LIVE, PRODUCED, NEW, OLD = "live", "produced", "new", "old"
PARTITIONS = 4
ALL_CODECS = "none,gzip,lz4,zstd"
OLD_CODECS = "none,gzip,snappy,lz4"
OLD_PRODUCER, OLD_CONSUMER = "0.10.0.1", "0.9.0.1"
ALL_VERSIONS, PASSED_VERSIONS = "0,1,2,3,4,11", "0,1,2,3,11"
TOPIC_CONFIG = {"segment.bytes": 4 * MIB, "retention.bytes": 16 * MIB}
BROKER_CONFIG = {
    "log.retention.check.interval.ms": 5000,
    "connections.max.idle.ms": 15_000,  # so that the commands connect again, too
}
STATIC_BYTES, STATIC_VALUE_BYTES = 8 * MIB, 1024
STATIC = [
    *((codec, 2) for codec in Codec),
    *((codec, magic) for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4) for magic in (0, 1)),
]
COMMON = ("--log-format", "json", "--log-level", "warning")
STOP_SECONDS = 90.0
START_SECONDS, ANSWER_SECONDS, ARRIVAL_SECONDS = 60.0, 30.0, 120.0


class FleetError(Exception):
    """A command or a load program ended or does not answer, or records are missing."""


class LoadProgram:
    """A running module of `bench.endurance.load`, and what it has measured so far."""

    def __init__(
        self, name: str, folder: Path, module: str, server: str, session_seconds: float, *arguments: str
    ) -> None:
        file = folder / f"{name}.jsonl"
        command = [sys.executable, "-m", f"bench.endurance.load.{module}", str(file), server, *arguments]
        command += ["--session", str(session_seconds)]
        environment = {"PYTHONPATH": str(ROOT)}
        self.process = Process(name, command, folder / f"{name}.log", environment, stop_seconds=STOP_SECONDS)
        self._reader = MeasurementReader(file)
        self.process.start()

    @property
    def totals(self) -> Counter[str]:
        """What it has counted, up to the last call of `new_latencies_ms`."""
        return self._reader.totals

    def new_latencies_ms(self) -> list[float]:
        return self._reader.new_latencies_ms()


@dataclass(frozen=True)
class Command:
    """A command under load. name: of its table. about: what it serves. metrics: the address of its metrics.

    loads: its load programs. clients: those of them whose latencies are the command's.
    """

    name: str
    label: str
    about: str
    process: Process
    metrics: str
    loads: Sequence[LoadProgram]
    clients: Sequence[LoadProgram]

    def scrape(self) -> None:
        """Get its metrics, as Prometheus does, on a connection of its own. Raises FleetError."""
        try:
            with urlopen(f"http://{self.metrics}/metrics", timeout=ANSWER_SECONDS) as response:
                response.read()
        except OSError as error:
            raise FleetError(f"{self.name}: no metrics: {error}") from error


class Flow(NamedTuple):
    """A producer, and the consumers that must get all of its records."""

    producer: LoadProgram
    consumers: Sequence[LoadProgram]


class Fleet:
    """Everything that runs. A context manager that ends all of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._brokers: dict[str, Broker] = {}
        self.commands: list[Command] = []
        self.loads: list[LoadProgram] = []
        self.flows: list[Flow] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, names: Collection[str]) -> None:
        """Start these of `COMMANDS`, with their brokers and load. Raises FleetError."""
        if SERVE in names or MIRROR in names:
            self._start_broker(KAFKA_3, LIVE)
        if GATEWAY in names or MIRROR in names:
            self._start_broker(KAFKA_4, LIVE, NEW, OLD)
        if MIRROR in names:  # first, so that it begins without a lag
            self._start_mirror()
        if SERVE in names:
            self._start_serve()
            self._start_serve_produce()
        if GATEWAY in names:
            self._start_gateway()

    def check(self) -> None:
        """Raise FleetError if a process has ended."""
        for process in (*(each.process for each in self.commands), *(each.process for each in self.loads)):
            if (status := process.ended_by_itself()) is not None:
                raise FleetError(f"{process.name} ended with status {status}:\n{process.tail()}")

    def finish(self) -> None:
        """End all in order. Raises FleetError if a record has not arrived, or a process did not end well."""
        self._stop([flow.producer.process for flow in self.flows])
        for flow in self.flows:
            self._wait_for_arrival(flow)
        self._stop([load.process for load in self.loads])
        for load in self.loads:
            load.new_latencies_ms()  # for the totals of the last second
        self._stop([command.process for command in self.commands])

    @cached_property
    def _live(self) -> LoadProgram:
        """The producer whose records `serve` and `mirror` read. It starts at the first access."""
        server = self._brokers[KAFKA_3.name].bootstrap
        return self._produce("live-producer", server, LIVE, LIVE_RATE, PARTITIONS, ALL_CODECS)

    def _start_broker(self, kafka: Kafka, *topics: str) -> None:
        broker = self._stack.enter_context(broker_in(self._folder, BROKER_CONFIG, kafka))
        for topic in topics:
            broker.create_topic(topic, PARTITIONS, TOPIC_CONFIG)
        self._brokers[kafka.name] = broker

    def _start_serve(self) -> None:
        source = self._brokers[KAFKA_3.name]
        options = "--workers", "2", "--state", str(self._folder / "state"), "--zstd-fallback", "lz4"
        process, server, metrics = self._serve(SERVE, source.log_dir, *options)
        fetching = self._fetch("serve-fetching", server, ALL_VERSIONS, f"{LIVE}:{PARTITIONS}:2")
        group = self._consume(
            "serve-group", server, LIVE, PARTITIONS, "--group", "old", "--release", OLD_CONSUMER
        )
        self.flows.append(Flow(self._live, [group]))
        about = "the log directory of a broker that writes and deletes segments"
        self.commands.append(Command(SERVE, "serve", about, process, metrics, [fetching, group], [fetching]))

    def _start_serve_produce(self) -> None:
        folder = self._folder / "served"
        folder.mkdir()
        topics = []
        for codec, magic in STATIC:
            segment = Segment(codec, STATIC_VALUE_BYTES, magic=magic, size=STATIC_BYTES)
            topics.append(f"{topic_of(segment, 1, folder).name}:1:{magic}")
        options = "--allow-produce", "--zstd-fallback", "lz4"
        process, server, metrics = self._serve(SERVE_PRODUCE, folder, *options)
        admin = AdminClient({"bootstrap.servers": server})
        admin.create_topics([NewTopic(PRODUCED, 2, 1)])[PRODUCED].result()
        fetching = self._fetch("serve-produce-fetching", server, ALL_VERSIONS, *topics)
        producer = self._produce("serve-produce-producer", server, PRODUCED, PRODUCED_RATE, 2, "none,lz4")
        consumer = self._consume("serve-produce-group", server, PRODUCED, 2, "--group", "new")
        self.flows.append(Flow(producer, [consumer]))
        about = "a log directory with all codecs and formats"
        loads = [fetching, producer, consumer]
        self.commands.append(
            Command(SERVE_PRODUCE, "serve --allow-produce", about, process, metrics, loads, [fetching])
        )

    def _start_gateway(self) -> None:
        cluster = f"kafka://{self._brokers[KAFKA_4.name].bootstrap}"
        process, server, metrics = self._server(GATEWAY, cluster, "--zstd-fallback", "lz4")
        new = self._produce("gateway-new-producer", server, NEW, NEW_RATE, PARTITIONS, ALL_CODECS)
        old_arguments = OLD, OLD_RATE, PARTITIONS, OLD_CODECS, "--release", OLD_PRODUCER
        old = self._produce("gateway-old-producer", server, *old_arguments)
        old_group = "--group", "old", "--release", OLD_CONSUMER
        old_consumer = self._consume("gateway-old-group", server, NEW, PARTITIONS, *old_group)
        new_consumer = self._consume("gateway-new-group", server, OLD, PARTITIONS, "--group", "new")
        topics = f"{NEW}:{PARTITIONS}:2", f"{OLD}:{PARTITIONS}:2"
        fetching = self._fetch("gateway-fetching", server, PASSED_VERSIONS, *topics)
        self.flows += [Flow(new, [old_consumer]), Flow(old, [new_consumer])]
        about = "a broker of Kafka 4"
        loads = [new, old, old_consumer, new_consumer, fetching]
        self.commands.append(Command(GATEWAY, "gateway", about, process, metrics, loads, [fetching]))

    def _start_mirror(self) -> None:
        source, target = (self._brokers[kafka.name].bootstrap for kafka in (KAFKA_3, KAFKA_4))
        metrics = lasting_address()
        command = [KAFKAFMT, "mirror", f"kafka://{source}/{LIVE}", f"kafka://{target}", *COMMON]
        command += ["--metrics-port", metrics, "--sync-topics", "--sync-groups", "--sync-interval", "10"]
        process = self._start(MIRROR, command, metrics, "")
        member = self._consume("mirror-source-group", source, LIVE, PARTITIONS, "--group", "synced")
        consumer = self._consume("mirror-consumer", target, LIVE, PARTITIONS, "--lag")
        self.flows.append(Flow(self._live, [member, consumer]))
        about = "from a broker of Kafka 3.9 to one of Kafka 4"
        loads = [self._live, consumer, member]
        self.commands.append(Command(MIRROR, "mirror", about, process, metrics, loads, [consumer]))

    def _serve(self, name: str, folder: Path, *options: str) -> tuple[Process, str, str]:
        return self._server(name, str(folder), *options, command=SERVE)

    def _server(
        self, name: str, source: str, *options: str, command: str = GATEWAY
    ) -> tuple[Process, str, str]:
        """Start a server; return its process, its address and that of its metrics."""
        address, metrics = lasting_address(), lasting_address()
        arguments = [KAFKAFMT, command, source, "--listen", address, "--metrics", metrics, *COMMON, *options]
        return self._start(name, arguments, metrics, "listening on "), address, metrics

    def _start(self, name: str, command: Sequence[str], metrics: str, begins_with: str) -> Process:
        """Start a command, and return once it has begun and serves its metrics. Raises FleetError."""
        log = self._folder / f"{name}.log"
        process = Process(name, command, log, stop_seconds=STOP_SECONDS, begins_with=begins_with)
        process.start()
        self._stack.callback(process.kill)
        deadline = time.monotonic() + START_SECONDS
        while not (process.has_begun and _accepts_connections(metrics)):
            if not process.is_running or time.monotonic() > deadline:
                raise FleetError(f"{name} did not start:\n{process.tail()}")
            time.sleep(0.05)
        return process

    def _fetch(self, name: str, server: str, versions: str, *topics: str) -> LoadProgram:
        options = "--rate", str(FETCH_RATE), "--versions", versions
        return self._load(name, "fetching", server, FETCH_SESSION_SECONDS, *topics, *options)

    def _produce(
        self, name: str, server: str, topic: str, rate: int, partitions: int, codecs: str, *options: str
    ) -> LoadProgram:
        arguments = topic, "--rate", str(rate), "--partitions", str(partitions), "--codecs", codecs, *options
        return self._load(name, "producing", server, SESSION_SECONDS, *arguments)

    def _consume(self, name: str, server: str, topic: str, partitions: int, *options: str) -> LoadProgram:
        arguments = topic, "--partitions", str(partitions), *options
        return self._load(name, "consuming", server, SESSION_SECONDS, *arguments)

    def _load(
        self, name: str, module: str, server: str, session_seconds: float, *arguments: str
    ) -> LoadProgram:
        load = LoadProgram(name, self._folder, module, server, session_seconds, *arguments)
        self._stack.callback(load.process.kill)
        self.loads.append(load)
        return load

    def _stop(self, processes: Sequence[Process]) -> None:
        """End those that still run, all at once. Raises FleetError."""
        running = [process for process in processes if process.is_wanted]
        for process in running:
            process.begin_stop()
        for process in running:
            while (wrong := process.stopped()) is None:
                time.sleep(0.05)
            if wrong:
                raise FleetError(wrong)

    def _wait_for_arrival(self, flow: Flow) -> None:
        """Wait until the consumers have all records of a producer that has ended. Raises FleetError."""
        flow.producer.new_latencies_ms()
        sent, deadline = flow.producer.totals["records"], time.monotonic() + ARRIVAL_SECONDS
        for consumer in flow.consumers:
            while consumer.totals["records"] != sent:
                self.check()
                if time.monotonic() > deadline:
                    got = consumer.totals["records"]
                    raise FleetError(f"{consumer.process.name} has {got} records of {sent}")
                time.sleep(0.2)
                consumer.new_latencies_ms()


def _accepts_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return False
    return True
