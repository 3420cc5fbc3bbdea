"""Partitions are chosen as kafka-python's DefaultPartitioner chooses them, from metadata that is looked up once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.cluster import ClusterMetadata
from kafka.partitioner import DefaultPartitioner
from kafka.partitioner import murmur2 as kafka_murmur2

from _kafkafmt.client.murmur2 import murmur2
from client.metadata import TOPIC, metadata
from kafkafmt.client.limits import TopicLimits
from kafkafmt.client.partitions import PartitionsByTopic


@pytest.fixture
def cluster() -> ClusterMetadata:
    cluster = ClusterMetadata()
    cluster.update_metadata(metadata([1, 1, -1, 1, 1]))
    return cluster


@pytest.fixture
def partitions(cluster: ClusterMetadata) -> PartitionsByTopic:
    limits = TopicLimits(None, is_asked_for=False, max_age_ms=0, retry_backoff_ms=0)
    looked_up = PartitionsByTopic(cluster, limits, DefaultPartitioner())
    cluster.add_listener(looked_up)
    return looked_up


@given(st.binary(max_size=40))
def test_murmur2_is_that_of_kafka_python(data: bytes) -> None:
    assert murmur2(data) == kafka_murmur2(data) & 0xFFFFFFFF


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_key_goes_where_kafka_pythons_partitioner_sends_it(
    cluster: ClusterMetadata, partitions: PartitionsByTopic, kind: type
) -> None:
    for number in range(100):
        key = kind(b"key-%d" % number)
        expected = DefaultPartitioner().partition(TOPIC, key, key, None, None, cluster)
        found = partitions.get(TOPIC)
        assert found is not None
        assert found.of_key(key) == (TOPIC, expected)


def test_a_record_without_key_goes_to_any_partition_that_has_a_leader(partitions: PartitionsByTopic) -> None:
    found = partitions.get(TOPIC)
    assert found is not None
    assert {found.of_key(None).partition for _ in range(200)} == {0, 1, 3, 4}


def test_partitions_are_looked_up_again_after_metadata_was_updated(
    cluster: ClusterMetadata, partitions: PartitionsByTopic
) -> None:
    before = partitions.get(TOPIC)
    assert partitions.get(TOPIC) is before
    cluster.update_metadata(metadata([1] * 6))
    after = partitions.get(TOPIC)
    assert before is not None
    assert after is not None
    assert (before.get(5), after.get(5)) == (None, (TOPIC, 5))


def test_a_topic_that_the_metadata_lacks_has_no_partitions(partitions: PartitionsByTopic) -> None:
    assert partitions.get("another") is None
