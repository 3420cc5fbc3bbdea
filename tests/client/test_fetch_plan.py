"""When and where a partition is fetched, by the metadata that a client has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.cluster import ClusterMetadata

from client.fetch_config import FETCH_CONFIG
from client.metadata import TOPIC, metadata
from kafkafmt.client.broker_fetches import FetchSettings
from kafkafmt.client.fetch_plan import FetchPlan
from kafkafmt.client.fetch_targets import Target
from kafkafmt.client.io_thread import IoLoop
from kafkafmt.types import TopicPartition

PARTITION = TopicPartition(TOPIC, 0)
BACKOFF_SECONDS = 3600
CONFIG = {
    **FETCH_CONFIG,
    "enable_incremental_fetch_sessions": True,
    "retry_backoff_ms": BACKOFF_SECONDS * 1000,
}


@pytest.fixture
def cluster() -> ClusterMetadata:
    """Metadata that does not have the topic yet."""
    cluster = ClusterMetadata()
    cluster.update_metadata(metadata([]))
    return cluster


@pytest.fixture
def plan(cluster: ClusterMetadata) -> Iterator[FetchPlan]:
    """A plan that has to fetch the partition from its first offset on."""
    loop = asyncio.new_event_loop()
    control: Any = SimpleNamespace(config=CONFIG, cluster=cluster)
    io: Any = IoLoop(loop)
    plan = FetchPlan(io, control, FetchSettings.of_config(CONFIG), lambda: None)
    plan.set_targets({PARTITION: Target(offset=0, leader_epoch=-1, generation=1)})
    yield plan
    loop.close()


def take_metadata(plan: FetchPlan, cluster: ClusterMetadata, leader: int, now: float) -> None:
    """As a client does when it receives metadata."""
    cluster.update_metadata(metadata([leader]))
    plan.touch_all()
    plan.update_sessions(now)


def test_partition_when_the_metadata_names_its_leader_later_then_it_is_fetched_without_a_backoff(
    plan: FetchPlan, cluster: ClusterMetadata
) -> None:
    now = time.monotonic()
    plan.update_sessions(now)
    assert cluster.need_update
    assert not plan.brokers
    take_metadata(plan, cluster, 1, now)
    assert plan.brokers[1].session.topics() == {TOPIC}


def test_partition_when_it_has_no_leader_then_the_metadata_is_requested_once_in_each_backoff(
    plan: FetchPlan, cluster: ClusterMetadata
) -> None:
    now = time.monotonic()
    plan.update_sessions(now)
    take_metadata(plan, cluster, -1, now)
    assert not cluster.need_update
    plan.touch(PARTITION)
    plan.update_sessions(now + BACKOFF_SECONDS)
    assert cluster.need_update
