"""Reading the topic of an offset map to its end: within a time that is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, cast

import kafka.errors as kafka_errors
import pytest

from client.cluster import Cluster
from kafkafmt.mirror import map_topic
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.map_topic import MapTopic
from kafkafmt.mirror.offset_stores import TopicOffsetMapStore
from kafkafmt.mirror.provenance_topic import TopicProvenanceStore
from kafkafmt.types import TopicPartition
from mirror.scenarios import Feed

READS = {
    "provenances": lambda cluster: TopicProvenanceStore("map", cluster).provenances(),
    "ranges": lambda cluster: TopicOffsetMapStore("map", "east", cluster).load(TopicPartition("t", 0)),
}


class Leaderless:
    """A cluster with a topic of three records, and a consumer of it. The partition has lost its leader."""

    address = "kafka://east:9092"

    def __init__(self) -> None:
        self.seconds = 0.0

    def has_topic(self, name: str) -> bool:
        return True

    def end_offset(self, topic_partition: TopicPartition) -> int:
        return 3

    def config_of(self, client: object) -> dict[str, Any]:
        return {}

    def __call__(self, **config: object) -> Leaderless:
        return self

    def assign(self, partitions: object) -> None:
        """There is one."""

    def seek_to_beginning(self, partition: object) -> None:
        """The broker is not asked yet."""

    def position(self, partition: object, timeout_ms: float) -> None:
        self.seconds += timeout_ms / 1000

    def end_offsets(self, partitions: Iterable[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 3)

    def poll(self, timeout_ms: float) -> dict[object, object]:
        self.seconds += timeout_ms / 1000
        assert self.seconds < 100, "it waits without end"
        return {}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_read_when_the_partition_has_no_leader_then_ends_with_an_error(
    read: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Leaderless()
    monkeypatch.setattr(map_topic, "KafkaConsumer", cluster)
    monkeypatch.setattr(map_topic, "monotonic", lambda: cluster.seconds)
    with pytest.raises(kafka_errors.KafkaTimeoutError, match=r"map: .* up to offset 3, .* no leader"):
        read(cast("Any", cluster))
    assert 30 <= cluster.seconds <= 35


class ClusterWithTopic:
    """A cluster that has the topic. Its user lacks the right Create."""

    def has_topic(self, name: str) -> bool:
        return True

    def create_topic(self, name: str, topic: object) -> None:
        raise MirrorError(f"topic {name} could not be created")


def test_topic_when_it_exists_then_needs_no_right_to_create_it() -> None:
    MapTopic("map", cast("Any", ClusterWithTopic()), "read_committed").create()


@pytest.fixture
def cluster(new: Cluster) -> Iterator[MirrorCluster]:
    with closing(MirrorCluster(ClusterAddress((new.bootstrap,)), {})) as cluster:
        yield cluster


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
def test_read_when_a_transaction_stays_open_then_ends_with_an_error_and_continues_once_it_has_ended(
    cluster: MirrorCluster, new: Cluster, topic: str
) -> None:
    with closing(MapTopic(topic, cluster, "read_committed")) as committed:
        assert list(committed.read_on()) == [], "the topic does not exist"
        committed.write([(b"a", b"1"), (b"b", None)])
        producer = Feed(new).open_producer("none", transactional_id=topic)
        producer.begin_transaction()
        producer.produce(topic, key=b"c", value=b"3", partition=0)
        producer.flush()
        keys = []
        with pytest.raises(kafka_errors.KafkaTimeoutError, match="from offset 2 up to offset 3"):
            keys.extend(record.key for record in committed.read_on(0.1))
        assert keys == [b"a", b"b"]
        assert keys_of(committed.uncommitted()) == [b"c"]
        with closing(MapTopic(topic, cluster, "read_uncommitted")) as uncommitted:
            assert keys_of(uncommitted.read_on()) == [b"a", b"b", b"c"]
        producer.commit_transaction()
        assert keys_of(committed.read_on()) == [b"c"]
        assert keys_of(committed.read_on()) == []


def keys_of(records: Iterable[Any]) -> list[bytes]:
    return [record.key for record in records]
