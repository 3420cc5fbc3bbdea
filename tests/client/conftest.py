"""What the tests of the producer share: a broker with a small limit, of one version after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.broker import KAFKA_3, KAFKA_4
from client.cluster import Cluster, named_after
from client.sending import ANSWER_SECONDS
from kafkafmt.client import limits


@pytest.fixture(scope="module", autouse=True)
def _waits_for_limits() -> Iterator[None]:
    """What a producer sends waits until its broker has told the limit of the topic, however loaded that broker is."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits, "MAX_PAUSE_MS", ANSWER_SECONDS * 1000)
        yield


@pytest.fixture(
    scope="session",
    params=[pytest.param(KAFKA_3, id="3.9", marks=pytest.mark.full), pytest.param(KAFKA_4, id="4.x")],
)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), request.param) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic for the test alone, that takes what the broker takes."""
    return cluster.create_topic(named_after(request.node.name))
