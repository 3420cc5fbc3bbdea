"""A topic that was deleted and made again at the source is another one: its records never follow those of the old."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from kafkafmt.log.partition_metadata import read_topic_id, write_topic_id
from mirror.folders import batches, log_bytes, mirror, put_log, stopped
from mirror.reading import Reader, end_of
from mirror.running import QUICKLY, Mirror, address, wait_until
from mirror.scenarios import Feed
from net.cluster import Cluster
from serve.endpoint_process import EndpointProcess

MakeMirror = Callable[..., Mirror]
OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


def topic_of(folder: Path, topic_id: uuid.UUID | None, end: int) -> Path:
    """A source with one partition, in place of what was there."""
    shutil.rmtree(folder / "t-0", ignore_errors=True)
    put_log(folder / "t-0", batches(0, end))
    if topic_id is not None:
        write_topic_id(folder / "t-0", topic_id)
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
@pytest.mark.xdist_group("net")
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


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
@pytest.mark.parametrize("line", ["3.9", "4.x"])
@pytest.mark.parametrize("to", ["folder", "cluster"])
def test_recreated_topic_when_brokers_have_it_then_is_never_spliced(
    clusters: dict[str, Cluster], line: str, to: str, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    source, other = clusters[line], clusters["4.x" if line == "3.9" else "3.9"]
    target = tmp_path / "logs" if to == "folder" else address(other)
    fill(source, topic, 10)
    with mirror(address(source, topic), target, "--once") as running:
        assert running.summary()["records"] == 10
    delete(source, topic)
    fill(source, topic, 30)
    with mirror(address(source, topic), target, "--once") as running:
        summary = running.summary(status=1)
    assert (summary["records"], stopped(summary)) == (0, {f"{topic}-0": 0})
    with mirror(address(source, topic), target, "--once", "--restart-recreated") as running:
        assert running.summary()["records"] == 30
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


def fill(cluster: Cluster, topic: str, records: int) -> None:
    cluster.create_topic(topic)
    feed = Feed(cluster)
    with feed.producer() as producer:
        feed.send(producer, topic, feed.orders.take(records))


def delete(cluster: Cluster, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    admin.delete_topics([topic])
    deadline = time.monotonic() + 30
    while topic in admin.list_topics() and time.monotonic() < deadline:
        time.sleep(0.05)
    admin.close()
