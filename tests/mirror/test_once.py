"""`mirror --once` brings every partition of the topics to the source's end, or says which it did not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.errors import CoordinatorNotAvailableError

from client.cluster import Cluster
from endpoints.endpoint_process import EndpointProcess
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.opening import open_mirror
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.sources.cluster import ClusterSource
from kafkafmt.types import TopicPartition as Partition
from mirror.folders import batches, log_bytes, mirror, put_log
from mirror.reading import end_of, log_of
from mirror.running import LASTING, QUICKLY, SECONDS, Mirror, address, wait_until
from mirror.scenarios import Feed

pytestmark = pytest.mark.slow

on_endpoints = pytest.mark.clients
on_brokers = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]
MakeMirror = Callable[..., Mirror]
PARTITIONS = 4
RECORDS = 100
# The shortest that an endpoint and a broker take, so that a mirror soon gives up members that do nothing.
SHORT = ("--source-config", "session_timeout_ms=6000", "--source-config", "heartbeat_interval_ms=500")


@pytest.fixture
def east(tmp_path: Path) -> Iterator[str]:
    """The address of an endpoint with a topic of some partitions."""
    for number in range(PARTITIONS):
        put_log(tmp_path / "east" / f"t-{number}", batches(0, RECORDS))
    with EndpointProcess(tmp_path / "east", log=tmp_path / "east.log") as running:
        yield running.address


@pytest.fixture
def west(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "west").mkdir()
    with EndpointProcess(tmp_path / "west", "--allow-produce", log=tmp_path / "west.log") as running:
        yield running.address


@contextmanager
def member(server: str, group: str, commits_up_to: int | None = None) -> Iterator[None]:
    """A member of a group that keeps its partitions; commits_up_to: an offset that it commits once for all of them."""
    settings = {"bootstrap.servers": server, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "heartbeat.interval.ms": 200})
    has_ended, is_member = Event(), Event()

    def poll() -> None:
        while not has_ended.is_set():
            consumer.poll(0.1)
            mine = consumer.assignment()
            if mine and not is_member.is_set():
                if commits_up_to is not None:
                    at = [TopicPartition(one.topic, one.partition, commits_up_to) for one in mine]
                    consumer.commit(offsets=at, asynchronous=False)
                is_member.set()

    consumer.subscribe(["t"])
    polling = Thread(target=poll, daemon=True)
    polling.start()
    try:
        assert is_member.wait(SECONDS)
        yield
    finally:
        has_ended.set()
        polling.join(SECONDS)
        consumer.close()


@on_endpoints
def test_once_when_the_group_has_another_member_then_a_folder_gets_all_partitions(
    east: str, tmp_path: Path
) -> None:
    with member(east, "g"):
        ended = mirror(address(east, "t"), tmp_path / "target", "--once", "--group", "g")
    assert ended.status == 0
    assert ended.summary["lag"] == {f"t-{number}": 0 for number in range(PARTITIONS)}
    for number in range(PARTITIONS):
        assert log_bytes(tmp_path / "target" / f"t-{number}") == log_bytes(tmp_path / "east" / f"t-{number}")


@pytest.mark.full
@on_endpoints
def test_once_when_another_member_keeps_partitions_then_says_which_were_not_reached(
    east: str, west: str
) -> None:
    with member(east, "g"):
        ended = mirror(address(east, "t"), address(west), "--once", "--group", "g", *SHORT)
    assert ended.status == 1
    unreached = {one["partition"]: one for one in ended.summary["unreached"]}
    assert 0 < len(unreached) < PARTITIONS
    for number, one in unreached.items():
        assert one == {"topic": "t", "partition": number, "from_offset": 0, "to_offset": RECORDS}
        (line,) = [line for line in ended.errors.splitlines() if f'"partition": "t-{number}", "from' in line]
        assert f'"from_offset": 0, "to_offset": {RECORDS}' in line
    expected = {f"t-{number}": RECORDS if number in unreached else 0 for number in range(PARTITIONS)}
    assert ended.summary["lag"] == expected
    assert ended.summary["records"] == RECORDS * (PARTITIONS - len(unreached))


@on_endpoints
def test_once_when_other_members_have_reached_their_ends_then_is_done(east: str, west: str) -> None:
    with member(east, "g", commits_up_to=RECORDS):
        ended = mirror(address(east, "t"), address(west), "--once", "--group", "g", *SHORT)
    assert (ended.status, ended.summary["unreached"]) == (0, [])


@on_endpoints
def test_once_when_the_coordinator_is_not_available_then_does_not_wait_for_it(
    east: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look asks again. Meanwhile the others are where they were at the start."""
    asked = []

    def not_available(_: KafkaAdminClient, groups: Any) -> None:
        asked.append(groups)
        raise CoordinatorNotAvailableError

    monkeypatch.setattr(KafkaAdminClient, "list_group_offsets", not_available)
    options = MirrorOptions(parse_address(address(east, "t")), tmp_path / "target", follows=False)
    with (
        closing(MirrorCluster(options.source, {})) as cluster,
        closing(ClusterSource(cluster, options.source, options, "g")) as source,
    ):
        assert source.reached_by_others(source.goals()) == dict.fromkeys(source.goals(), 0)
    assert len(asked) == 1


@on_endpoints
def test_once_when_a_topic_is_deleted_before_it_is_begun_then_stops_its_partitions_and_mirrors_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.sources.cluster._MISSING_SECONDS", 0.2)
    monkeypatch.setattr("kafkafmt.mirror.sources.cluster._METADATA_MAX_AGE_MS", 200)
    for topic in ("t", "u"):
        put_log(tmp_path / "east" / f"{topic}-0", batches(0, RECORDS))
    with EndpointProcess(tmp_path / "east", log=tmp_path / "east.log") as endpoint:
        options = MirrorOptions(
            parse_address(address(endpoint.address, "t", "u")),
            tmp_path / "target",
            follows=False,
            source_config={"request_timeout_ms": "1000"},
            commit_interval=0.2,
        )
        with open_mirror(options, lambda _: None) as mirror:
            shutil.rmtree(tmp_path / "east" / "u-0")
            limit = Timer(SECONDS, mirror.end)
            limit.start()
            mirror.run()
            limit.cancel()
    (stopped,) = mirror.statistics.stopped.values()
    assert (stopped.topic_partition, stopped.offset) == (Partition("u", 0), 0)
    assert stopped.message == "the topic was deleted at the source while it was mirrored"
    assert log_bytes(tmp_path / "target" / "t-0") == b"".join(batches(0, RECORDS))


@on_endpoints
def test_mirrors_when_they_have_no_group_named_then_each_target_gets_all_partitions(
    east: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    folders = tmp_path / "one", tmp_path / "other"
    one, other = (mirror(address(east, "t"), folder, *QUICKLY) for folder in folders)
    with one, other:
        for folder, running in zip(folders, (one, other), strict=True):
            for number in range(PARTITIONS):
                wait_until(lambda f=folder, n=number: end_of(f, "t", n) == RECORDS, running)
        one.stop()
        other.stop()
    admin = KafkaAdminClient(bootstrap_servers=east)
    groups = sorted(group["group_id"] for group in admin.list_groups())
    admin.close()
    assert len(groups) == 2
    assert all(group.startswith("kafkafmt-mirror-") for group in groups)


@pytest.mark.parametrize("line", [pytest.param(name, marks=on_brokers) for name in ("3.9", "4.x")])
@pytest.mark.parametrize("to", ["folder", "cluster"])
def test_once_when_the_last_mirror_was_killed_then_brings_all_of_it(
    clusters: dict[str, Cluster], line: str, to: str, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    source, other = clusters[line], clusters["4.x" if line == "3.9" else "3.9"]
    source.create_topic(topic, PARTITIONS)
    feed = Feed(source)
    with feed.producer("lz4") as producer:
        feed.send(producer, topic, [m for p in range(PARTITIONS) for m in feed.orders.take(20, partition=p)])
        arguments = (address(source, topic), tmp_path / "logs" if to == "folder" else address(other))
        directory = tmp_path / "logs" if to == "folder" else other.broker.log_dir
        group = ("--group", topic)
        killed = mirror(*arguments, *QUICKLY, *group, *(SHORT if to == "cluster" else LASTING))
        with killed:
            wait_until(lambda: all(end_of(directory, topic, p) == 20 for p in range(PARTITIONS)), killed)
            killed.kill()
        feed.send(producer, topic, [m for p in range(PARTITIONS) for m in feed.orders.take(30, partition=p)])
    with mirror(*arguments, "--once", *group) as running:
        summary = running.summary()
    assert summary["lag"] == {f"{topic}-{p}": 0 for p in range(PARTITIONS)}
    ends = sum(end_of(directory, topic, partition) for partition in range(PARTITIONS))
    assert ends == PARTITIONS * 50 + summary["possibly_doubled"]
    if to == "folder":
        for partition in range(PARTITIONS):
            assert log_of(directory, topic, partition) == log_of(source.broker.log_dir, topic, partition)
        admin = AdminClient({"bootstrap.servers": source.bootstrap})
        found = admin.describe_consumer_groups([topic])[topic].result(SECONDS)
        assert found.state != ConsumerGroupState.EMPTY, (
            "who was killed is not given up, and nobody waited for it"
        )
