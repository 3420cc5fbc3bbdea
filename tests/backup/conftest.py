"""One broker for all tests of backups. Each test has topics, and a backup, of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.broker import KAFKA_4
from client.cluster import Cluster, named_after

JVM_OPTIONS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(
        tmp_path_factory.mktemp("backup"), KAFKA_4, {"message.max.bytes": 1_048_588}, JVM_OPTIONS
    ) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name for the test alone."""
    return named_after(request.node.name)
