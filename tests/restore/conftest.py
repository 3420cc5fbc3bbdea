"""Brokers of both lines of Kafka. Each test has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from broker.broker import KAFKA_3, KAFKA_4
from client.cluster import Cluster, named_after

JVM_OPTIONS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
CONFIG = {"message.max.bytes": 1_048_588}


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Cluster]]:
    """A cluster of 3.9, and two of 4.x."""
    lines = {"3.9": KAFKA_3, "4.x": KAFKA_4, "other 4.x": KAFKA_4}
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Cluster(tmp_path_factory.mktemp("restore"), kafka, CONFIG, JVM_OPTIONS))
            for name, kafka in lines.items()
        }


@pytest.fixture
def old(clusters: dict[str, Cluster]) -> Cluster:
    return clusters["4.x"]


@pytest.fixture
def new(clusters: dict[str, Cluster]) -> Cluster:
    return clusters["other 4.x"]


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name for the test alone."""
    return named_after(request.node.name)
