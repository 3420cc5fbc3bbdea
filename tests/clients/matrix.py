"""The clients of the matrix: how each is started, what it does, and which versions it sends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from kafka.protocol.api_key import ApiKey

from broker.jars import KAFKA_4, java_clients
from clients.install import site
from clients.install_go_node import GO, GO_DRIVER, NODE, NODE_ENVIRONMENT, Toolchain
from clients.java_drivers import consuming, producing, simple
from clients.programs import DRIVERS

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

Command = Callable[[], list[str]]
# The first versions that brokers of Kafka 4 take of the APIs that the clients here use.
FIRST_TAKEN = {
    ApiKey.Produce: 3,
    ApiKey.Fetch: 4,
    ApiKey.ListOffsets: 1,
    ApiKey.OffsetCommit: 2,
    ApiKey.OffsetFetch: 1,
}
GROUP_MEMBERS, GROUP_OFFSETS = "members", "offsets"


@dataclass(frozen=True)
class Client:
    """A client of some age.

    produces, consumes: the commands of its drivers, up to the address; None: it has none.
    version: of the broker that it is told it speaks to.
    versions: what it sends, by API key, if that is known. group_versions: what the members of its groups send instead.
    codecs: those that it produces, and more options for its driver.
    group: how it has groups: with members that share partitions, or only offsets that are committed; None: neither.
    has_times: it seeks by time. without_offset: what it does if ListOffsets v0 has no offset for that time: the text
        of its error, or where it begins to read; None: it sends a later version.
    is_short: `make test` runs it, a client of each family.
    drops_below_start: it leaves out what a wrapper holds before the offset that was asked for.
    """

    name: str
    produces: Command | None = None
    consumes: Command | None = None
    version: str | None = None
    versions: Mapping[int, int] = field(default_factory=dict)
    group_versions: Mapping[int, int] = field(default_factory=dict)
    codecs: Sequence[tuple[str, ...]] = ()
    group: str | None = None
    has_times: bool = False
    without_offset: str | int | None = None
    is_short: bool = False
    drops_below_start: bool = True
    site: str | None = None
    toolchain: Toolchain | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def is_old(self) -> bool:
        """Whether it sends versions that Kafka 4 has dropped."""
        return any(version < FIRST_TAKEN[ApiKey(key)] for key, version in self.versions.items())

    @property
    def asks_versions(self) -> bool:
        """Whether it is a consumer that asks which versions there are, and then sends none that it lacks."""
        return self.name == "java-0.10.2.2"

    def producer(self, bootstrap: str, topic: str, count: int, options: Sequence[str]) -> list[str]:
        """The command that sends records, as producer_driver.py says."""
        assert self.produces is not None
        return [*self.produces(), bootstrap, topic, str(count), self.version or "-", *options]

    def consumer(self, bootstrap: str, ranges: Sequence[object], *options: str) -> list[str]:
        """The command that reads ranges, as driver.py says."""
        assert self.consumes is not None
        told = () if self.version is None else ("--version", self.version)
        return [*self.consumes(), bootstrap, *map(str, ranges), *told, *self.options, *options]

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        if self.toolchain is not None and self.toolchain.missing:
            pytest.skip(f"{self.toolchain.missing} is not on this machine")
        assert self.toolchain is None or self.toolchain.is_installed, "run tests/clients/install_go_node.py"
        environment = {**os.environ, "PYTHONWARNINGS": "ignore::SyntaxWarning", **self.environment}
        if self.site is not None:
            environment["PYTHONPATH"] = str(site(self.site))
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that what the driver started ends with it
        )


def python(driver: str) -> Command:
    return lambda: [sys.executable, str(DRIVERS / f"{driver}.py")]


def sent(produce: int, fetch: int) -> dict[int, int]:
    return {ApiKey.Produce: produce, ApiKey.Fetch: fetch}


GZIP, SNAPPY, LZ4, ZSTD, NONE = ("gzip",), ("snappy",), ("lz4",), ("zstd",), ("none",)
UP_TO_SNAPPY, UP_TO_LZ4 = (NONE, GZIP, SNAPPY), (NONE, GZIP, SNAPPY, LZ4)
ALL = (*UP_TO_LZ4, ZSTD)

OLD_JAVA = [
    Client(
        f"java-{version}",
        partial(lambda version: producing(java_clients(version)).command(), version),
        None
        if version == "0.8.2.2"
        else partial(lambda version: consuming(java_clients(version)).command(), version),
        versions=versions,
        codecs=codecs,
        group=None if version == "0.8.2.2" else GROUP_MEMBERS,
        has_times=has_times,
        is_short=version == "0.10.2.2",
    )
    for version, versions, codecs, has_times in (
        ("0.8.2.2", {ApiKey.Produce: 0}, UP_TO_LZ4, False),
        ("0.9.0.1", sent(1, 1), UP_TO_LZ4, False),
        ("0.10.0.1", sent(2, 2), UP_TO_LZ4, False),
        ("0.10.2.2", sent(2, 3), UP_TO_LZ4, True),
        ("0.11.0.3", sent(3, 5), (*UP_TO_LZ4, ("gzip", "idempotent"), ("lz4", "transactional")), True),
        ("1.1.1", sent(5, 7), (SNAPPY, ("lz4", "transactional")), True),
        ("2.0.1", sent(6, 8), (SNAPPY, ("lz4", "transactional")), True),
    )
]
JAVA = [
    Client(
        "java-4",
        lambda: producing(KAFKA_4).command(),
        lambda: consuming(KAFKA_4).command(),
        codecs=(*ALL, ("zstd", "transactional")),
        group=GROUP_MEMBERS,
        has_times=True,
        is_short=True,
    ),
]
# Only brokers of Kafka 4 have the groups of KIP-848.
JAVA_KIP_848 = Client(
    "java-4-kip-848",
    None,
    lambda: consuming(KAFKA_4).command(),
    group=GROUP_MEMBERS,
    is_short=True,
    options=("--protocol", "consumer"),
)
SCALA = [
    Client(
        f"scala-0.8.2.2-v{version}",
        None,
        lambda: simple().command(),
        version=str(version),
        versions={ApiKey.Fetch: 0, ApiKey.OffsetCommit: version, ApiKey.OffsetFetch: version},
        group=GROUP_OFFSETS,
        has_times=True,
        without_offset="ArrayIndexOutOfBoundsException: Index 0 out of bounds for length 0",
        drops_below_start=True,
    )
    for version in (0, 1)
]
OLD_KAFKA_PYTHON = [
    Client(
        f"kafka-python-1.3.5-{version}",
        python("produce_kafka_python"),
        python("old_kafka_python"),
        version=version,
        versions=versions,
        codecs=UP_TO_LZ4,
        group=group,
        has_times=version == "0.10.1",
        is_short=version == "0.10.1",
        site="kafka-python-1.3.5",
    )
    for version, versions, group in (
        ("0.8.2", sent(0, 0), GROUP_OFFSETS),
        ("0.9", sent(1, 1), GROUP_MEMBERS),
        ("0.10", sent(2, 2), GROUP_MEMBERS),
        ("0.10.1", sent(2, 3), GROUP_MEMBERS),
    )
]
PYKAFKA = [
    Client(
        f"pykafka-2.8.0-{version}",
        python("produce_pykafka"),
        python("pykafka_"),
        version=version,
        versions=versions,
        codecs=(NONE, GZIP),
        has_times=True,
        without_offset="IndexError: list index out of range",
        is_short=version == "0.10.0",
        site="pykafka-2.8.0",
    )
    for version, versions in (("0.8.2", sent(0, 0)), ("0.9.0", sent(0, 1)), ("0.10.0", sent(0, 2)))
]
LIBRDKAFKA = [
    Client(
        f"{name}-{version or 'current'}",
        python(f"produce_{name}"),
        python(name),
        version=version,
        versions=versions,
        codecs=UP_TO_LZ4 if versions else ALL,
        group=None if version == "0.8.2.2" else GROUP_MEMBERS,
        has_times=version is None,
        is_short=name == "kcat" and version == "0.8.2.2",
    )
    for name in ("kcat", "confluent")
    for version, versions in (("0.8.2.2", sent(0, 0)), ("0.9.0.1", sent(1, 1)), ("0.10.0.1", {}), (None, {}))
    if not (name == "confluent" and version)
]
CURRENT_PYTHON = [
    Client(
        "kafka-python-current",
        python("produce_kafka_python"),
        python("kafka_python"),
        codecs=ALL,
        group=GROUP_MEMBERS,
        has_times=True,
    ),
    Client(
        "aiokafka-current",
        python("produce_aiokafka"),
        python("aiokafka_"),
        codecs=ALL,
        group=GROUP_MEMBERS,
        has_times=True,
    ),
]
OUT_OF_RANGE = "The requested offset is outside the range of offsets"
SARAMA = [
    Client(
        f"sarama-{version}",
        lambda: [str(GO_DRIVER), "produce", "sarama"],
        lambda: [str(GO_DRIVER), "sarama"],
        version=version,
        versions=versions,
        codecs=codecs,
        group=GROUP_MEMBERS if version in ("0.10.2.0", "0.11.0.0") else None,
        has_times=True,
        without_offset=OUT_OF_RANGE if version in ("0.8.2.0", "0.9.0.1", "0.10.0.0") else None,
        is_short=version == "0.10.2.0",
        toolchain=GO,
    )
    for version, versions, codecs in (
        ("0.8.2.0", sent(0, 0), UP_TO_SNAPPY),
        ("0.9.0.1", sent(0, 1), UP_TO_SNAPPY),
        ("0.10.0.0", sent(2, 2), UP_TO_LZ4),
        ("0.10.2.0", sent(2, 3), UP_TO_LZ4),
        ("0.11.0.0", sent(3, 4), UP_TO_LZ4),
    )
]
KAFKA_GO = [
    Client(
        "kafka-go-0.2",
        lambda: [str(GO_DRIVER), "produce", "kafka-go"],
        lambda: [str(GO_DRIVER), "kafka-go"],
        versions=sent(2, 2),
        codecs=UP_TO_LZ4,
        group=GROUP_MEMBERS,
        has_times=True,
        is_short=True,
        toolchain=GO,
    )
]


def node(program: str, versions: Mapping[int, int], version: str | None = None, **known: Any) -> Client:
    told = [] if version is None else ["--version", version]
    command = ["node", str(DRIVERS / "node" / f"{program}.js"), *told]
    return Client(
        version or program,
        lambda: [*command, "produce"],
        lambda: command,
        versions=versions,
        group=GROUP_MEMBERS,
        toolchain=NODE,
        environment=NODE_ENVIRONMENT,
        **known,
    )


NODE_CLIENTS = [
    node(
        "kafka_node",
        {ApiKey.Fetch: 0},
        group_versions={ApiKey.Fetch: 2, ApiKey.OffsetCommit: 2},
        codecs=UP_TO_SNAPPY,
        has_times=True,
        without_offset=0,
        drops_below_start=False,
    ),
    node(
        "no_kafka",
        {ApiKey.Produce: 1, ApiKey.Fetch: 0},
        codecs=UP_TO_SNAPPY,
        has_times=True,
        without_offset="FetchRequestTopicItem",  # it fails to encode the offset that it did not get
        is_short=True,
        drops_below_start=False,
    ),
    node("kafkajs", {}, "kafkajs-old", codecs=UP_TO_LZ4),
    # The codec that the tests bring makes frames of LZ4 that brokers refuse.
    node("kafkajs", {}, "kafkajs", codecs=UP_TO_SNAPPY, has_times=True, is_short=True),
]
CLIENTS = [
    *OLD_JAVA,
    *JAVA,
    *SCALA,
    *OLD_KAFKA_PYTHON,
    *PYKAFKA,
    *LIBRDKAFKA,
    *CURRENT_PYTHON,
    *SARAMA,
    *KAFKA_GO,
    *NODE_CLIENTS,
]


def parameters(clients: Sequence[Client], short: Collection[str] | None = None) -> list[ParameterSet]:
    """Mark clients that are not of the short run: `make test-all` runs them. short: other names than usual."""
    return [
        pytest.param(
            one,
            id=one.name,
            marks=[] if (one.is_short if short is None else one.name in short) else pytest.mark.full,
        )
        for one in clients
    ]
