"""Two clusters of one broker, of both lines of Kafka, each with every scenario's topic under a name of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from broker.broker import KAFKA_3, KAFKA_4
from client.cluster import Cluster, named_after
from mirror.running import Mirror, address
from mirror.scenarios import MIB, Direction, fill

JVM_OPTIONS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
CONFIG = {"message.max.bytes": MIB + 12}
LINES = {kafka.name: kafka for kafka in (KAFKA_3, KAFKA_4)}


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Cluster]]:
    """By name of the line, without a topic."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                Cluster(tmp_path_factory.mktemp(f"mirror-{name}"), kafka, CONFIG, JVM_OPTIONS)
            )
            for name, kafka in LINES.items()
        }


@pytest.fixture(scope="session")
def filled(clusters: dict[str, Cluster]) -> dict[str, Cluster]:
    """The same, with every scenario's topic."""
    for name, cluster in clusters.items():
        fill(cluster, name)
    return clusters


@pytest.fixture(scope="session", params=[("3.9", "4.x"), ("4.x", "3.9")], ids=["3.9-to-4.x", "4.x-to-3.9"])
def direction(request: pytest.FixtureRequest, filled: dict[str, Cluster]) -> Direction:
    source, target = request.param
    return Direction(filled[source], filled[target], source)


@pytest.fixture(scope="session")
def mirrored(direction: Direction, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The summary of a mirror that was told to carry every scenario's topic once."""
    log = tmp_path_factory.mktemp("clusters") / "mirror.log"
    source, target = address(direction.source, direction.pattern), address(direction.target)
    with Mirror(source, target, "--once", "--use-raw-bytes", log=log) as mirror:
        return mirror.summary()


@pytest.fixture
def old(clusters: dict[str, Cluster]) -> Cluster:
    """A source, where one direction is enough."""
    return clusters["3.9"]


@pytest.fixture
def new(clusters: dict[str, Cluster]) -> Cluster:
    """Its target."""
    return clusters["4.x"]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name for the test alone."""
    return named_after(request.node.name)


@pytest.fixture
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Mirror]:
    """Makes mirrors that are not started yet."""

    def make(source: object, target: object, *options: object, **limits: int) -> Mirror:
        return Mirror(source, target, *options, log=tmp_path_factory.mktemp("run") / "mirror.log", **limits)

    return make
