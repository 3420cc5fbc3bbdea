"""Backups of a cluster in a folder, what is made of them, and the endpoint as a target."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.broker import HOST
from cli.logs import flip
from client.cluster import Cluster
from clients.tap import Tap
from endpoints.endpoint_process import EndpointProcess
from mirror.reading import Reader, batches_of, end_of, log_of, records_section
from mirror.running import QUICKLY, SECONDS, Mirror, address, wait_until
from mirror.scenarios import PARTITIONS, SCENARIOS, Direction, Feed

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]

MakeMirror = Callable[..., Mirror]


@pytest.fixture(scope="module")
def backup(direction: Direction, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with every scenario's topic, and the mirror's summary."""
    folder = tmp_path_factory.mktemp("backup")
    source = address(direction.source, direction.pattern)
    with Mirror(source, folder / "logs", "--once", log=folder / "mirror.log") as mirror:
        return folder / "logs", mirror.summary()


@pytest.fixture(scope="module")
def endpoint(backup: tuple[Path, dict[str, Any]]) -> Iterator[str]:
    """The address where the backup is served."""
    with EndpointProcess(backup[0]) as running:
        yield running.address


@pytest.mark.parametrize(("scenario", "partition"), PARTITIONS)
def test_backup_has_the_bytes_of_the_brokers_log(
    direction: Direction, backup: tuple[Path, dict[str, Any]], scenario: str, partition: int
) -> None:
    topic = direction.topic(scenario)
    wanted = log_of(direction.source.broker.log_dir, topic, partition)
    assert log_of(backup[0], topic, partition) == wanted


def test_backup_when_it_ends_then_nothing_was_opened_and_nothing_left(
    backup: tuple[Path, dict[str, Any]],
) -> None:
    folder, summary = backup
    batches = sum(
        len(batches_of(folder, *name.name.rsplit("-", 1)[:1], int(name.name.rsplit("-", 1)[1])))
        for name in folder.iterdir()
        if name.is_dir() and re.fullmatch(r".*-\d+", name.name)
    )
    assert summary["batches"] == batches
    assert not any(summary["opened"].values())
    assert not any(summary["left_out"].values())
    assert not any(summary["lag"].values())


def kcat(bootstrap: str, topic: str) -> list[bytes]:
    """All that kcat can say of each record, but who served it."""
    command = ["kcat", "-C", "-e", "-q", "-b", bootstrap, "-t", topic, "-o", "beginning"]
    command += ["-f", rf"%p %o %T %K %S %k %s %h{BETWEEN}", "-X", "isolation.level=read_committed"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
    return sorted(done.stdout.split(BETWEEN.encode()))


BETWEEN = "<<--712-->>"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_backup_when_it_is_served_then_kcat_gets_what_the_cluster_gives_it(
    direction: Direction, endpoint: str, scenario: str
) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not there")
    topic = direction.topic(scenario)
    assert kcat(endpoint, topic) == kcat(direction.source.bootstrap, topic)


def test_backup_when_it_goes_on_then_has_every_batch_once(
    old: Cluster, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    """From the end of the folder's log, whatever the group says."""
    old.create_topic(topic)
    feed = Feed(old)
    with feed.producer("zstd") as producer:
        for group in ("one", "another", "another"):
            for size in (3, 20):
                feed.send(producer, topic, feed.orders.take(size))
            with mirror(address(old, topic), tmp_path / "logs", "--once", "--group", group) as running:
                assert running.summary()["batches"] == 2
    assert log_of(tmp_path / "logs", topic, 0) == log_of(old.broker.log_dir, topic, 0)


def test_backup_of_a_partition_that_begins_later_then_begins_there(
    old: Cluster, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    """Retention took its first batches; or a user asks for what comes from now on."""
    old.create_topic(topic)
    feed = Feed(old)
    with feed.producer() as producer:
        feed.send(producer, topic, feed.orders.take(10))
        with mirror(address(old, topic), tmp_path / "logs", "--from", "latest", *QUICKLY) as running:
            wait_until(lambda: (tmp_path / "logs" / f"{topic}-0").exists(), running)
            feed.send(producer, topic, feed.orders.take(5))
            wait_until(lambda: end_of(tmp_path / "logs", topic) == 15, running)
            running.stop()
    found = [(batch.base_offset, batch.count) for batch in batches_of(tmp_path / "logs", topic)]
    assert found == [(10, 5)]


# What is made of a folder


def test_copy_of_a_folder_has_its_bytes_and_its_topics(
    direction: Direction, backup: tuple[Path, dict[str, Any]], tmp_path: Path, mirror: MakeMirror
) -> None:
    with mirror(backup[0], tmp_path / "copy") as running:
        assert running.summary()["batches"] == backup[1]["batches"]
    for scenario, partition in PARTITIONS:
        topic = direction.topic(scenario)
        assert log_of(tmp_path / "copy", topic, partition) == log_of(backup[0], topic, partition)
    ini = "topics.ini"
    assert (tmp_path / "copy" / ini).read_text() == (backup[0] / ini).read_text()


@pytest.fixture
def renamed(direction: Direction, backup: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """The backup with topics of other names, which begin with `restored.`, for a cluster that has the first ones."""
    for folder in backup[0].iterdir():
        if folder.is_dir():
            shutil.copytree(folder, tmp_path / "renamed" / f"restored.{folder.name}")
    text = (backup[0] / "topics.ini").read_text()
    (tmp_path / "renamed" / "topics.ini").write_text(re.sub(r"(?m)^\[(.*)\]$", r"[restored.\1]", text))
    return tmp_path / "renamed"


def test_restore_to_a_cluster_gives_what_was_backed_up(
    direction: Direction, renamed: Path, mirror: MakeMirror
) -> None:
    with mirror(renamed, address(direction.target)) as running:
        summary = running.summary()
    assert (summary["skipped"], summary["stopped"]) == ([], [])
    with mirror(renamed, address(direction.target)) as running:
        assert running.summary()["batches"] == 0
    with Reader(direction.source.bootstrap) as source, Reader(direction.target.bootstrap) as target:
        for scenario, partition in PARTITIONS:
            topic = direction.topic(scenario)
            wanted = [read._replace(timestamp_type=1) for read in source.records(topic, partition)]
            assert target.records(f"restored.{topic}", partition) == wanted, (topic, partition)


# The endpoint as a target


@pytest.fixture(scope="module")
def receiving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of an endpoint that takes what is produced, and its folder."""
    folder = tmp_path_factory.mktemp("received")
    with EndpointProcess(folder, "--allow-produce", log=folder.with_suffix(".log")) as running:
        yield running.address, folder


def test_endpoint_when_it_is_the_target_then_has_what_the_source_has(
    direction: Direction, receiving: tuple[str, Path], mirror: MakeMirror
) -> None:
    server, folder = receiving
    with mirror(address(direction.source, direction.pattern), address(server), "--once") as running:
        summary = running.summary()
    assert (summary["skipped"], summary["stopped"], summary["possibly_doubled"]) == ([], [], 0)
    with Reader(direction.source.bootstrap) as source, Reader(server) as target:
        for scenario, partition in PARTITIONS:
            topic = direction.topic(scenario)
            wanted = [read._replace(timestamp_type=1) for read in source.records(topic, partition)]
            assert target.records(topic, partition) == wanted, (topic, partition)
    for partition in range(SCENARIOS["codecs"].partitions):
        topic = direction.topic("codecs")
        sections = [
            [records_section(batch) for batch in batches_of(directory, topic, partition)]
            for directory in (direction.source.broker.log_dir, folder)
        ]
        assert sections[0] == sections[1]


def test_endpoint_when_it_is_the_target_then_gets_many_batches_a_request(
    filled: dict[str, Cluster], tmp_path: Path, mirror: MakeMirror
) -> None:
    (tmp_path / "logs").mkdir()
    topic = "3.9.tiny"
    with Tap((HOST, 0)) as tap:
        options = ("--allow-produce", "--advertise", tap.bootstrap)
        with EndpointProcess(tmp_path / "logs", *options, log=tmp_path / "serve.log") as endpoint:
            tap.upstream = (HOST, endpoint.port)
            with mirror(address(filled["3.9"], topic), address(tap.bootstrap), "--once") as running:
                batches = running.summary()["batches"]
    assert batches == len(batches_of(tmp_path / "logs", topic)) == 400
    assert sum(produce.topic == topic for produce in tap.produces) < batches / 5


# Damage


@pytest.fixture
def damaged(old: Cluster, topic: str, tmp_path: Path) -> Path:
    """A copy of a broker's log of two partitions, of which the first is damaged in its third batch of five."""
    old.create_topic(topic, 2)
    feed = Feed(old)
    with feed.producer("lz4") as producer:
        for size in (10, 20, 30, 40, 50):
            feed.send(producer, topic, [m for p in (0, 1) for m in feed.orders.take(size, partition=p)])
    for partition in (0, 1):
        name = f"{topic}-{partition}"
        shutil.copytree(old.broker.log_dir / name, tmp_path / "damaged" / name)
    sizes = [batch.size_in_bytes for batch in batches_of(tmp_path / "damaged", topic)]
    flip(next((tmp_path / "damaged" / f"{topic}-0").glob("0*.log")), sum(sizes[:2]) + 100)
    return tmp_path / "damaged"


@pytest.mark.parametrize("to", ["folder", "cluster"])
def test_damage_when_it_is_to_stop_then_ends_that_partition_there(
    damaged: Path, new: Cluster, topic: str, tmp_path: Path, mirror: MakeMirror, to: str
) -> None:
    target = tmp_path / "copy" if to == "folder" else address(new)
    with mirror(damaged, target) as running:
        summary = running.summary(status=1)
    (stopped,) = summary["stopped"]
    assert (stopped["topic"], stopped["partition"], stopped["offset"]) == (topic, 0, 30)
    assert summary["skipped"] == []
    directory = tmp_path / "copy" if to == "folder" else new.broker.log_dir
    counts = [[batch.count for batch in batches_of(directory, topic, partition)] for partition in (0, 1)]
    assert counts == [[10, 20], [10, 20, 30, 40, 50]]


@pytest.mark.parametrize("to", ["folder", "cluster"])
def test_damage_when_it_is_to_be_skipped_then_goes_on_behind_it_and_says_so(
    damaged: Path, new: Cluster, topic: str, tmp_path: Path, mirror: MakeMirror, to: str
) -> None:
    target = tmp_path / "copy" if to == "folder" else address(new)
    with mirror(damaged, target, "--on-corrupt", "skip") as running:
        summary = running.summary(status=0)
    (skipped,) = summary["skipped"]
    found = (skipped["topic"], skipped["partition"], skipped["first_offset"], skipped["next_offset"])
    assert found == (topic, 0, 30, 60)
    assert summary["stopped"] == []
    directory = tmp_path / "copy" if to == "folder" else new.broker.log_dir
    counts = [[batch.count for batch in batches_of(directory, topic, partition)] for partition in (0, 1)]
    assert counts == [[10, 20, 40, 50], [10, 20, 30, 40, 50]]


@pytest.mark.parametrize("on_corrupt", ["stop", "skip"])
def test_damage_when_a_broker_serves_it_then_is_met_the_same(
    old: Cluster, damaged: Path, topic: str, tmp_path: Path, mirror: MakeMirror, on_corrupt: str
) -> None:
    """Brokers do not look at what they send."""
    (copy,) = (damaged / f"{topic}-0").glob("0*.log")
    (old.broker.log_dir / f"{topic}-0" / copy.name).write_bytes(copy.read_bytes())
    with mirror(address(old, topic), tmp_path / "copy", "--once", "--on-corrupt", on_corrupt) as running:
        summary = running.summary(status=1 if on_corrupt == "stop" else 0)
    (found,) = summary["stopped" if on_corrupt == "stop" else "skipped"]
    assert (found["topic"], found["partition"]) == (topic, 0)
    assert found["offset" if on_corrupt == "stop" else "first_offset"] == 30
    behind = [40, 50] if on_corrupt == "skip" else []
    counts = [[b.count for b in batches_of(tmp_path / "copy", topic, partition)] for partition in (0, 1)]
    assert counts == [[10, 20, *behind], [10, 20, 30, 40, 50]]


def test_damage_when_an_endpoint_finds_it_then_ends_that_partition_there(
    damaged: Path, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    """It sends nothing damaged, and so nobody knows what is behind."""
    with EndpointProcess(damaged, log=tmp_path / "serve.log") as endpoint:
        options = ("--once", "--on-corrupt", "skip")
        with mirror(address(endpoint.address, topic), tmp_path / "copy", *options) as running:
            summary = running.summary(status=1)
    (stopped,) = summary["stopped"]
    assert (stopped["topic"], stopped["partition"], stopped["offset"]) == (topic, 0, 30)
    counts = [[b.count for b in batches_of(tmp_path / "copy", topic, partition)] for partition in (0, 1)]
    assert counts == [[10, 20], [10, 20, 30, 40, 50]]
