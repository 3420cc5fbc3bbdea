"""Metadata and DescribeCluster: the topics, their partitions, and the one broker."""

from __future__ import annotations

import asyncio
import base64
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import (
    InvalidRequestError,
    InvalidTopicError,
    LeaderNotAvailableError,
    MismatchedEndpointTypeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.admin import DescribeClusterRequest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import MetadataRequest

from data.real_logs import LOGS, NAMES
from kafkafmt.serve.catalog import Catalog
from kafkafmt.server.request import Handler
from kafkafmt.server.wire import SUPPORTED
from serve.apis.asking import ask
from serve.apis.samples import NODE
from server.yielding import answer_yielding

TOPICS = sorted({name.rpartition("-")[0] for name in NAMES})
VERSIONS = SUPPORTED[ApiKey.Metadata]


def topic_id(folder: str) -> uuid.UUID:
    text = (LOGS / folder / "partition.metadata").read_text().split("topic_id: ")[1].strip()
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def request(version: int, *topics: str | uuid.UUID) -> Any:
    topic_class = MetadataRequest.MetadataRequestTopic
    wanted = [
        topic_class(version=version, name=None, topic_id=topic)
        if isinstance(topic, uuid.UUID)
        else topic_class(version=version, name=topic)
        for topic in topics
    ]
    return MetadataRequest(version=version, topics=wanted)


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata_of_all_topics(apis: dict[int, Handler], version: int) -> None:
    metadata = ask(apis, MetadataRequest(version=version, topics=[] if version == 0 else None))

    assert [topic.name for topic in metadata.topics] == TOPICS
    assert {topic.error_code for topic in metadata.topics} == {0}
    (broker,) = metadata.brokers
    assert (broker.node_id, broker.host, broker.port) == (NODE.id, NODE.host, NODE.port)
    if version >= 1:
        assert metadata.controller_id == NODE.id
    if version >= 2:
        assert metadata.cluster_id == NODE.cluster_id
    if version >= 10:
        assert metadata.topics[TOPICS.index("none")].topic_id == topic_id("none-0")


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata_of_one_topic_has_leader_and_epoch_of_each_partition(
    apis: dict[int, Handler], version: int
) -> None:
    (topic,) = ask(apis, request(version, "partitions")).topics

    assert (topic.error_code, topic.name) == (0, "partitions")
    assert [partition.partition_index for partition in topic.partitions] == [0, 1, 2]
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id) == (0, NODE.id)
        assert set(partition.replica_nodes) == set(partition.isr_nodes) == {NODE.id}
        if version >= 7:
            assert partition.leader_epoch == 2


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_metadata_of_no_topic_has_the_broker_alone(apis: dict[int, Handler], version: int) -> None:
    metadata = ask(apis, request(version))
    assert (metadata.topics, len(metadata.brokers)) == ([], 1)


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("not-there", UnknownTopicOrPartitionError),
        ("a" * 249, UnknownTopicOrPartitionError),
        ("...", UnknownTopicOrPartitionError),
        ("", InvalidTopicError),
        (".", InvalidTopicError),
        ("..", InvalidTopicError),
        ("a" * 250, InvalidTopicError),
        ("../etc", InvalidTopicError),
        ("naïve", InvalidTopicError),
        ("none\n", InvalidTopicError),
    ],
)
def test_metadata_of_a_topic_that_is_not_there(
    apis: dict[int, Handler], version: int, name: str, error: Any
) -> None:
    missing, found = ask(apis, request(version, name, "none")).topics
    assert (missing.error_code, missing.name, missing.partitions) == (error.errno, name, [])
    assert (found.error_code, found.name) == (0, "none")


@pytest.mark.parametrize("version", [12, 13])
def test_metadata_by_topic_id(apis: dict[int, Handler], version: int) -> None:
    unknown = uuid.UUID(int=1)
    found, missing = ask(apis, request(version, topic_id("none-0"), unknown)).topics
    assert (found.error_code, found.name, found.topic_id) == (0, "none", topic_id("none-0"))
    assert (missing.error_code, missing.name, missing.topic_id) == (UnknownTopicIdError.errno, None, unknown)


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_by_topic_id_before_that_was_allowed_is_refused(
    apis: dict[int, Handler], version: int
) -> None:
    (topic,) = ask(apis, request(version, topic_id("none-0"))).topics
    assert topic.error_code == InvalidRequestError.errno


def test_metadata_has_a_topic_once_however_often_it_is_asked_for(apis: dict[int, Handler]) -> None:
    topics = ask(apis, request(1, *["none", "not-there"] * 100)).topics
    assert [topic.name for topic in topics] == ["none", "not-there"]


def test_metadata_of_many_topics_leaves_others_their_turn(apis: dict[int, Handler]) -> None:
    wanted = request(1, *(f"topic-{number}" for number in range(30_000)))
    assert len(asyncio.run(answer_yielding(apis, wanted))) > 30_000


def test_metadata_follows_topics_that_come_and_go(
    changing_apis: dict[int, Handler], log_directory: Path
) -> None:
    shutil.copytree(LOGS / "none-0", log_directory / "none-1")
    shutil.copytree(LOGS / "none-0", log_directory / "new-0")
    shutil.rmtree(log_directory / "segments-0")

    none, new, segments = ask(changing_apis, request(1, "none", "new", "segments")).topics

    assert [partition.partition_index for partition in none.partitions] == [0, 1]
    assert new.error_code == 0
    assert segments.error_code == UnknownTopicOrPartitionError.errno


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata_of_a_topic_with_missing_partitions_has_no_leader_for_them(
    changing_apis: dict[int, Handler], log_directory: Path, version: int
) -> None:
    (log_directory / "none-0").rename(log_directory / "none-1")
    shutil.copytree(LOGS / "none-0", log_directory / "none-3")

    (topic,) = ask(changing_apis, request(version, "none")).topics

    assert topic.error_code == 0
    told = {
        partition.partition_index: (partition.error_code, partition.leader_id)
        for partition in topic.partitions
    }
    there, missing = (0, NODE.id), (LeaderNotAvailableError.errno, -1)
    if version < 4:
        assert told == {1: there, 3: there}
        return
    assert told == {0: missing, 1: there, 2: missing, 3: there}
    if version >= 5:
        offline = [partition.offline_replicas for partition in topic.partitions]
        assert offline == [[NODE.id], [], [NODE.id], []]


def test_metadata_of_a_topic_with_a_number_out_of_all_proportion_stays_small(
    changing_apis: dict[int, Handler], log_directory: Path
) -> None:
    (log_directory / "none-0").rename(log_directory / "none-2147483647")
    (topic,) = ask(changing_apis, request(13, "none")).topics
    assert [topic.partitions[0].leader_id, topic.partitions[-1].leader_id] == [-1, NODE.id]
    assert topic.partitions[-1].partition_index == 2147483647
    assert len(topic.partitions) == 10_001


def test_metadata_of_a_log_without_checkpoint_has_no_leader_epoch(
    changing_apis: dict[int, Handler], log_directory: Path
) -> None:
    (log_directory / "none-0" / "leader-epoch-checkpoint").unlink()
    (topic,) = ask(changing_apis, request(9, "none")).topics
    assert [partition.leader_epoch for partition in topic.partitions] == [-1]


@pytest.mark.parametrize(
    "line",
    ["2147483648 0", "0 9223372036854775808", "-1 0", "0 -1", "0", "0 0 0", "none 0"],
)
def test_metadata_of_a_log_with_a_checkpoint_of_nonsense_has_no_leader_epoch(
    changing_apis: dict[int, Handler], log_directory: Path, line: str
) -> None:
    (log_directory / "none-0" / "leader-epoch-checkpoint").write_text(f"0\n1\n{line}\n")
    none, segments = ask(changing_apis, request(9, "none", "segments")).topics
    assert [partition.leader_epoch for partition in none.partitions] == [-1]
    assert [partition.leader_epoch for partition in segments.partitions] != [-1]


@pytest.mark.parametrize(
    "text",
    ["0\n3\n0 0", "0\n-1\n0 0\n", "0\n1\n0 0\n1 5\n", "0\n2\n1 0\n0 5\n", "0\n2\n0 5\n1 0\n"],
    ids=[
        "too few entries",
        "a negative count",
        "too many entries",
        "descending epochs",
        "descending offsets",
    ],
)
def test_metadata_when_brokers_would_not_read_the_checkpoint_then_has_no_leader_epoch(
    changing_apis: dict[int, Handler], log_directory: Path, text: str
) -> None:
    (log_directory / "none-0" / "leader-epoch-checkpoint").write_text(text)
    (topic,) = ask(changing_apis, request(9, "none")).topics
    assert [partition.leader_epoch for partition in topic.partitions] == [-1]


@pytest.mark.parametrize("version", SUPPORTED[ApiKey.DescribeCluster])
def test_cluster_is_one_broker(apis: dict[int, Handler], version: int) -> None:
    cluster = ask(apis, DescribeClusterRequest(version=version))
    assert (cluster.error_code, cluster.cluster_id) == (0, NODE.cluster_id)
    assert cluster.controller_id == NODE.id
    (broker,) = cluster.brokers
    assert (broker.broker_id, broker.host, broker.port, broker.rack) == (NODE.id, NODE.host, NODE.port, None)


def test_cluster_id_is_that_of_the_broker_or_made_where_its_file_is_not_text(log_directory: Path) -> None:
    made = Catalog(log_directory).cluster_id
    (log_directory / "meta.properties").write_bytes(b"version=1\ncluster.id=Some\xe9\n")
    assert Catalog(log_directory).cluster_id == made
    (log_directory / "meta.properties").write_bytes(b"version=1\ncluster.id=Some\n")
    assert Catalog(log_directory).cluster_id == "Some"


def test_cluster_of_controllers_is_refused(apis: dict[int, Handler]) -> None:
    cluster = ask(apis, DescribeClusterRequest(version=1, endpoint_type=2))
    assert cluster.error_code == MismatchedEndpointTypeError.errno
    assert cluster.error_message == "endpoint type 2: this is a broker, of type 1"
