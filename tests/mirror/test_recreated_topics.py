"""A topic that was deleted and made again at the source is another one: its records never follow those of the old."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.errors import NotLeaderForPartitionError

from client.cluster import Cluster
from endpoints.endpoint_process import EndpointProcess
from kafkafmt.log.partition_metadata import read_topic_id, write_topic_id
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.offset_map import MappedRange
from kafkafmt.mirror.offset_stores import FileOffsetMapStore
from kafkafmt.types import TopicPartition
from mirror.folders import batches, log_bytes, mirror, put_log, stopped
from mirror.reading import Reader, end_of
from mirror.running import LASTING, QUICKLY, Mirror, address, wait_until
from mirror.scenarios import Feed

pytestmark = pytest.mark.slow

MakeMirror = Callable[..., Mirror]
OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


def topic_of(folder: Path, topic_id: uuid.UUID | None, end: int) -> Path:
    """A source with one partition, in place of what was there."""
    return topic_with_partitions(folder, topic_id, [end])


def topic_with_partitions(folder: Path, topic_id: uuid.UUID | None, ends: Sequence[int]) -> Path:
    for number, end in enumerate(ends):
        partition = folder / f"t-{number}"
        shutil.rmtree(partition, ignore_errors=True)
        put_log(partition, batches(0, end))
        if topic_id is not None:
            write_topic_id(partition, topic_id)
    return folder


def test_recreated_topic_when_a_folder_has_the_old_one_then_stops_its_partition_alone(tmp_path: Path) -> None:
    source, target = topic_of(tmp_path / "source", OLD, 100), tmp_path / "target"
    put_log(source / "u-0", batches(0, 50))
    assert mirror(source, target).status == 0
    assert read_topic_id(target / "t-0") == OLD
    before = log_bytes(target / "t-0")
    topic_of(source, NEW, 300)
    put_log(source / "v-0", batches(0, 50))
    ended = mirror(source, target)
    assert (ended.status, list(stopped(ended.summary))) == (1, ["t-0"])
    assert "the topic was deleted and created again at the source" in ended.summary["stopped"][0]["message"]
    assert ended.errors.count("deleted and created again") == 1
    assert log_bytes(target / "t-0") == before
    assert log_bytes(target / "v-0") == log_bytes(source / "v-0")


def test_recreated_topic_when_it_is_restarted_in_a_folder_then_the_old_log_is_kept_aside(
    tmp_path: Path,
) -> None:
    source, target = topic_of(tmp_path / "source", OLD, 100), tmp_path / "target"
    mirror(source, target)
    before = log_bytes(target / "t-0")
    topic_of(source, NEW, 300)
    ended = mirror(source, target, "--restart-recreated")
    assert (ended.status, ended.summary["records"]) == (0, 300)
    assert log_bytes(target / "t-0") == log_bytes(source / "t-0")
    assert read_topic_id(target / "t-0") == NEW
    assert log_bytes(target / f"t-0.{OLD.hex}-stray") == before
    assert mirror(source, target).summary["records"] == 0


def test_topic_id_when_the_folder_has_none_then_is_that_of_the_source_from_now_on(tmp_path: Path) -> None:
    """As in a folder that an earlier version wrote."""
    source, target = topic_of(tmp_path / "source", None, 100), tmp_path / "target"
    mirror(source, target)
    topic_of(source, OLD, 200)
    assert mirror(source, target).status == 0
    assert read_topic_id(target / "t-0") == OLD
    topic_of(source, NEW, 300)
    assert mirror(source, target).status == 1


@pytest.mark.clients
@pytest.mark.parametrize("kept_in", ["a topic", "a file"])
def test_recreated_topic_when_a_cluster_has_the_old_one_then_stops_until_it_is_restarted(
    tmp_path: Path, kept_in: str
) -> None:
    source, target = topic_of(tmp_path / "source", OLD, 100), tmp_path / "target"
    target.mkdir()
    options = ("--offset-map", tmp_path / "offsets.db") if kept_in == "a file" else ()
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        assert mirror(source, address(endpoint.address), *options).status == 0
        topic_of(source, NEW, 300)
        ended = mirror(source, address(endpoint.address), *options)
        assert (ended.status, stopped(ended.summary)) == (1, {"t-0": 0})
        assert f"expected topic id {OLD}" in ended.summary["stopped"][0]["message"]
        assert end_of(target, "t") == 100
        restarted = mirror(source, address(endpoint.address), *options, "--restart-recreated")
        assert (restarted.status, restarted.summary["records"]) == (0, 300)
        again = mirror(source, address(endpoint.address), *options)
        assert (again.status, again.summary["records"]) == (0, 0)
        assert end_of(target, "t") == 400


@pytest.mark.full
@pytest.mark.clients
@pytest.mark.parametrize("kept_in", ["a topic", "a file"])
def test_topic_of_the_target_when_it_is_recreated_then_is_mirrored_again_unless_it_has_records(
    tmp_path: Path, kept_in: str
) -> None:
    source, target = topic_of(tmp_path / "source", OLD, 100), tmp_path / "target"
    target.mkdir()
    options = ("--offset-map", tmp_path / "offsets.db") if kept_in == "a file" else ()
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        assert mirror(source, address(endpoint.address), *options).status == 0
    topic_of(target, NEW, 150)  # records of something else, beyond where the mirror ended
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        for _ in range(2):
            ended = mirror(source, address(endpoint.address), *options)
            assert (ended.status, stopped(ended.summary)) == (1, {"t-0": 0})
            message = ended.summary["stopped"][0]["message"]
            assert (
                "t-0 has offsets 0 to 149 at the target, whose topic was deleted and created again" in message
            )
            assert f"found {NEW}, or --append" in message
        appended = mirror(source, address(endpoint.address), *options, "--append")
        assert (appended.status, appended.summary["records"]) == (0, 100)
        assert mirror(source, address(endpoint.address), *options).summary["records"] == 0
    assert end_of(target, "t") == 250
    topic_of(target, OLD, 0)
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        again = mirror(source, address(endpoint.address), *options)
        assert (again.status, again.summary["records"]) == (0, 100)
        assert again.errors.count("created again at the target") == 1


@pytest.mark.full
@pytest.mark.clients
@pytest.mark.parametrize("beginning", ["earliest", "latest"])
def test_topic_of_the_target_when_its_partitions_are_others_then_is_mirrored_again_unless_it_has_records_in_any(
    tmp_path: Path, beginning: str
) -> None:
    """With --repartition the map of a partition does not have the target's offsets."""
    source, target = topic_with_partitions(tmp_path / "source", OLD, [100, 100]), tmp_path / "target"
    target.mkdir()
    options = ("--deep", "--repartition")
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        assert mirror(source, address(endpoint.address), *options).summary["records"] == 200
    topic_with_partitions(target, NEW, [0, 150])
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        arguments = (source, address(endpoint.address), *options, "--from", beginning)
        ended = mirror(*arguments)
        assert (ended.status, stopped(ended.summary)) == (1, {"t-0": 0, "t-1": 0})
        for one in ended.summary["stopped"]:
            assert "t-1 has offsets 0 to 149 at the target, whose topic was deleted and" in one["message"]
        assert mirror(*arguments, "--append").summary["records"] == 200
        assert mirror(*arguments).summary["records"] == 0
    topic_with_partitions(target, OLD, [0, 0])
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        again = mirror(source, address(endpoint.address), *options, "--from", beginning)
    assert (again.status, again.summary["records"], again.summary["gone"]) == (0, 200, [])
    assert again.errors.count("created again at the target") == 2
    assert end_of(target, "t", 0) + end_of(target, "t", 1) == 200


@pytest.mark.clients
def test_topic_of_the_target_when_its_partitions_are_others_then_they_are_looked_at_once_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each map is loaded to begin the partition, and once to see whether the topic has records of this source."""
    source, target = topic_with_partitions(tmp_path / "source", OLD, [100] * 5), tmp_path / "target"
    target.mkdir()
    load, loads = FileOffsetMapStore.load, Counter[TopicPartition]()

    def counting(store: FileOffsetMapStore, topic_partition: TopicPartition) -> list[MappedRange]:
        loads[topic_partition] += 1
        return load(store, topic_partition)

    bounds, asked = MirrorCluster.bounds, list[int]()

    def noting(cluster: MirrorCluster, topic_partitions: Collection[TopicPartition], **options: bool) -> Any:
        asked.append(len(topic_partitions))
        return bounds(cluster, topic_partitions, **options)

    monkeypatch.setattr(FileOffsetMapStore, "load", counting)
    monkeypatch.setattr(MirrorCluster, "bounds", noting)
    options = ("--deep", "--repartition", "--offset-map", tmp_path / "offsets.db")
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        assert mirror(source, address(endpoint.address), *options).summary["records"] == 500
    assert asked.count(5) == 1
    topic_with_partitions(target, NEW, [0, 0, 150, 0, 0])
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        arguments = (source, address(endpoint.address), *options)
        loads.clear()
        asked.clear()
        assert len(stopped(mirror(*arguments).summary)) == len(loads) == 5
        assert max(loads.values()) <= 2
        assert asked.count(5) == 1
        for number in range(1, 5):
            (source / f"t-{number}").rename(tmp_path / f"t-{number}")
        assert mirror(*arguments, "--append").summary["records"] == 100
        for number in range(1, 5):
            (tmp_path / f"t-{number}").rename(source / f"t-{number}")
        loads.clear()
        ended = mirror(*arguments)
    assert (ended.status, ended.summary["records"]) == (0, 400), "the new topic has records of this source"
    assert max(loads.values()) <= 2


@pytest.mark.clients
def test_topic_of_the_target_when_its_id_could_not_be_read_at_first_then_its_id_is_known_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = topic_of(tmp_path / "source", OLD, 100), tmp_path / "target"
    target.mkdir()
    topic_ids, failures = MirrorCluster.topic_ids, [NotLeaderForPartitionError()]

    def failing_at_first(cluster: MirrorCluster, names: Sequence[str]) -> dict[str, uuid.UUID]:
        if failures:
            raise failures.pop()
        return topic_ids(cluster, names)

    monkeypatch.setattr(MirrorCluster, "topic_ids", failing_at_first)
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        assert mirror(source, address(endpoint.address)).summary["records"] == 100
    assert not failures
    topic_of(target, NEW, 150)
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        ended = mirror(source, address(endpoint.address))
    assert "whose topic was deleted and created again" in ended.summary["stopped"][0]["message"]


@pytest.mark.clients
@pytest.mark.parametrize("to", ["folder", "cluster"])
def test_recreated_topic_when_it_is_restarted_from_latest_then_has_its_first_records_too(
    tmp_path: Path, to: str
) -> None:
    """What --from says is for partitions that were never mirrored."""
    source, target = topic_of(tmp_path / "source", OLD, 100), tmp_path / "target"
    target.mkdir()
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "serve.log") as endpoint:
        arguments = (source, address(endpoint.address) if to == "cluster" else tmp_path / "logs")
        mirror(*arguments)
        topic_of(source, NEW, 300)
        restarted = mirror(*arguments, "--restart-recreated", "--from", "latest")
    assert (restarted.status, restarted.summary["records"]) == (0, 300)


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
@pytest.mark.parametrize("line", ["3.9", "4.x"])
@pytest.mark.parametrize("to", ["folder", "cluster"])
def test_recreated_topic_when_brokers_have_it_then_is_never_spliced(
    clusters: dict[str, Cluster], line: str, to: str, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    source, other = clusters[line], clusters["4.x" if line == "3.9" else "3.9"]
    target = tmp_path / "logs" if to == "folder" else address(other)
    combined_into = int(to == "cluster")
    fill(source, topic, 5, batches=2)
    with mirror(address(source, topic), target, "--once") as running:
        summary = running.summary()
    assert (summary["records"], summary["combined_into"]) == (10, combined_into)
    delete(source, topic)
    fill(source, topic, 10, batches=3)
    with mirror(address(source, topic), target, "--once") as running:
        summary = running.summary(status=1)
    assert (summary["records"], stopped(summary)) == (0, {f"{topic}-0": 0})
    with mirror(address(source, topic), target, "--once", "--restart-recreated") as running:
        summary = running.summary()
    assert (summary["records"], summary["combined_into"]) == (30, combined_into)
    if to == "folder":
        assert end_of(tmp_path / "logs", topic) == 30
    else:
        with Reader(source.bootstrap) as new, Reader(other.bootstrap) as both:
            assert both.records(topic)[10:] == new.records(topic)


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
def test_recreated_topic_when_a_mirror_follows_then_is_never_spliced(
    old: Cluster, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    fill(old, topic, 10)
    with mirror(address(old, topic), tmp_path / "logs", *QUICKLY) as running:
        wait_until(lambda: end_of(tmp_path / "logs", topic) == 10, running)
        delete(old, topic)
        fill(old, topic, 5)
        running.summary(status=1)
    assert end_of(tmp_path / "logs", topic) == 10


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
@pytest.mark.parametrize("fetches_by", ["topic id", "topic name"])
@pytest.mark.parametrize("line", ["3.9", "4.x"])
def test_recreated_topic_when_it_was_filled_past_the_position_between_two_fetches_then_is_never_spliced(
    clusters: dict[str, Cluster], line: str, fetches_by: str, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    """To a client of 2.8 a broker offers ids in Metadata, and none in Fetch."""
    source, target = clusters[line], tmp_path / "logs"
    fill(source, topic, 10)
    config = () if fetches_by == "topic id" else ("--source-config", "api_version=2.8")
    with mirror(address(source, topic), target, *QUICKLY, *LASTING, *config) as running:
        wait_until(lambda: end_of(target, topic) == 10, running)
        before = log_bytes(target / f"{topic}-0")
        with running.frozen():
            delete(source, topic)
            fill(source, topic, 40)
        summary = running.summary(status=1)
        assert running.said.count("deleted and created again") == 1
    assert stopped(summary) == {f"{topic}-0": 10}
    assert log_bytes(target / f"{topic}-0") == before


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
@pytest.mark.parametrize("fetches_by", ["topic id", "topic name"])
def test_deleted_topic_when_the_mirror_does_not_follow_then_stops_its_partition_and_ends(
    old: Cluster,
    fetches_by: str,
    topic: str,
    tmp_path: Path,
    mirror: MakeMirror,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(old, topic, 50, batches=20)
    target, may_go_on = tmp_path / "logs", tmp_path / "may go on"
    monkeypatch.setenv("MAY_GO_ON", str(may_go_on))
    config = () if fetches_by == "topic id" else ("--source-config", "api_version=2.8")
    one_batch = ("--source-config", "max_partition_fetch_bytes=1", "--source-config", "fetch_max_bytes=1")
    options = ("--once", "--handler", "mirror.handlers:wait_at_200", *QUICKLY, *config, *one_batch)
    with mirror(address(old, topic), target, *options) as running:
        wait_until(lambda: end_of(target, topic) > 0, running)
        delete(old, topic)
        may_go_on.touch()
        summary = running.summary(status=1)
    assert stopped(summary) == {f"{topic}-0": end_of(target, topic)}
    assert end_of(target, topic) < 1000
    assert summary["stopped"][0]["message"] == "the topic was deleted at the source while it was mirrored"


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
@pytest.mark.parametrize("options", [(), ("--exactly-once",)], ids=["at least once", "exactly once"])
def test_topic_of_the_target_when_it_is_recreated_while_a_mirror_follows_then_gets_all_records_again(
    options: Sequence[str], old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    fill(old, topic, 200)
    arguments = (address(old, topic), address(new), *QUICKLY, *options)
    with mirror(*arguments) as running:
        wait_until(lambda: topic in names(new), running)
        new.wait_for_end(topic, 200)
        delete(new, topic)
        new.create_topic(topic)
        add(old, topic, 100)
        expected = values(old, topic)
        wait_until(lambda: values(new, topic) >= expected, running)
        running.stop()
    assert "the target has lost records while they were mirrored" in running.said
    assert "created again at the target, and is mirrored again from its start" in running.said
    with mirror(*arguments, "--once") as again:
        assert again.summary()["records"] == 0


def names(cluster: Cluster) -> list[str]:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    found: list[str] = admin.list_topics()
    admin.close()
    return found


def values(cluster: Cluster, topic: str) -> Counter[bytes | None]:
    with Reader(cluster.bootstrap) as reader:
        return Counter(one.value for one in reader.records(topic))


def fill(cluster: Cluster, topic: str, records: int, *, batches: int = 1) -> None:
    cluster.create_topic(topic)
    add(cluster, topic, records, batches=batches)


def add(cluster: Cluster, topic: str, records: int, *, batches: int = 1) -> None:
    feed = Feed(cluster)
    with feed.producer() as producer:
        for _ in range(batches):
            feed.send(producer, topic, feed.orders.take(records))


def delete(cluster: Cluster, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics())
    admin.close()
