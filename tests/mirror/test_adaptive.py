"""Small batches are combined on the way to a cluster, and large ones pass as they are: readers see no difference."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from client.cluster import Cluster
from mirror.folders import batches, put_log
from mirror.folders import mirror as run_mirror
from mirror.reading import Reader, batches_of, end_of, records_section
from mirror.running import QUICKLY, Mirror, address, wait_until
from mirror.scenarios import CODECS, PARTITIONS, Direction, Feed, end
from mirror.test_offsets import assert_same_place, commit, look_up

pytestmark = pytest.mark.slow

MakeMirror = Callable[..., Mirror]
SIZES = (30, 40, 25, 50, 22)  # enough that librdkafka compresses each of the batches


def of_way(summary: dict[str, Any], way: str) -> int:
    batches: int = summary["ways"][way]["batches"]
    return batches


def assert_ways_add_up(summary: dict[str, Any]) -> None:
    for what in ("batches", "records", "bytes"):
        assert sum(way[what] for way in summary["ways"].values()) == summary[what]


def same_records(source: Reader, target: Reader, topic: str, partition: int = 0) -> bool:
    wanted = [read._replace(timestamp_type=1) for read in source.records(topic, partition)]
    return target.records(topic, partition) == wanted


# Every kind of batch


@pytest.fixture(scope="module")
def renamed(direction: Direction, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of every scenario's topic, whose names begin with `adaptive.`: the target has the others."""
    folder = tmp_path_factory.mktemp("renamed")
    source = address(direction.source, direction.pattern)
    with Mirror(source, folder / "logs", "--once", log=folder / "mirror.log") as mirror:
        mirror.summary()
    for path in list((folder / "logs").iterdir()):
        if path.is_dir():
            path.rename(path.with_name(f"adaptive.{path.name}"))
    ini = folder / "logs" / "topics.ini"
    ini.write_text(re.sub(r"(?m)^\[(.*)\]$", r"[adaptive.\1]", ini.read_text()))
    return folder / "logs"


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
def test_consume_when_small_batches_were_combined_then_gives_what_the_source_gives(
    direction: Direction, renamed: Path, mirror: MakeMirror
) -> None:
    with mirror(renamed, address(direction.target), "--adaptive", "--batch-size", "256K") as running:
        summary = running.summary()
    assert (summary["skipped"], summary["stopped"]) == ([], [])
    assert_ways_add_up(summary)
    assert summary["opened"].keys() == {"gaps", "timestamp type"}
    assert 0 < summary["combined_into"] < of_way(summary, "combined")
    assert of_way(summary, "raw") > 0
    with Reader(direction.source.bootstrap) as source, Reader(direction.target.bootstrap) as target:
        for scenario, partition in PARTITIONS:
            topic = direction.topic(scenario)
            wanted = [read._replace(timestamp_type=1) for read in source.records(topic, partition)]
            assert target.records(f"adaptive.{topic}", partition) == wanted, (topic, partition)
    (tiny,) = batches_of(direction.target.broker.log_dir, f"adaptive.{direction.topic('tiny')}")
    assert tiny.count == 400


# Between clusters


@pytest.fixture
def source(old: Cluster, topic: str) -> Cluster:
    """With the topic: a partition a codec, of small batches and a large one between them."""
    old.create_topic(topic, len(CODECS))
    feed = Feed(old)
    for partition, codec in enumerate(CODECS):
        with feed.producer(codec, enable_idempotence=True) as producer:
            for size in SIZES:
                feed.send(producer, topic, feed.orders.take(size, partition=partition))
            feed.send(producer, topic, [feed.orders.noise(70_000, partition=partition)])
            for size in SIZES:
                feed.send(producer, topic, feed.orders.take(size, partition=partition))
    return old


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
def test_mirror_when_both_are_clusters_then_combines_small_batches_and_copies_large_ones(
    source: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    with mirror(address(source, topic), address(new), "--once") as running:
        summary = running.summary()
    assert_ways_add_up(summary)
    each = len(CODECS)
    assert (of_way(summary, "combined"), summary["combined_into"]) == (2 * len(SIZES) * each, 2 * each)
    assert of_way(summary, "raw") == each
    with Reader(source.bootstrap) as before, Reader(new.bootstrap) as after:
        for partition, codec in enumerate(CODECS):
            assert same_records(before, after, topic, partition)
            found = batches_of(new.broker.log_dir, topic, partition)
            assert [batch.count for batch in found] == [sum(SIZES), 1, sum(SIZES)]
            assert {batch.codec.name.lower() for batch in (found[0], found[2])} == {codec}
            (large,) = [batch for batch in source.batches(topic, partition) if batch.size_in_bytes > 60_000]
            assert records_section(found[1]) == records_section(large)


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
def test_mirror_when_raw_bytes_are_asked_for_then_combines_nothing(
    source: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    with mirror(address(source, topic), address(new), "--once", "--use-raw-bytes") as running:
        summary = running.summary()
    assert of_way(summary, "raw") == summary["batches"]
    for partition in range(len(CODECS)):
        sections = [
            list(map(records_section, batches_of(cluster.broker.log_dir, topic, partition)))
            for cluster in (source, new)
        ]
        assert sections[0] == sections[1]


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
def test_offsets_when_batches_were_combined_then_each_record_has_its_place(
    source: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    new.create_topic(topic, len(CODECS))
    feed = Feed(new)
    with feed.producer() as producer:
        feed.send(producer, topic, feed.orders.take(17))
    with mirror(address(source, topic), address(new), "--once", "--append") as running:
        running.summary()
    for offset in (0, 1, 29, 30, 166, 167, 168, 300):
        commit(source, topic, [TopicPartition(topic, partition, offset) for partition in (0, 1)])
        positions = look_up(address(source, topic), address(new), topic)
        assert [(one.partition, one.target_offset) for one in positions] == [(0, offset + 17), (1, offset)]


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
def test_mirror_when_transactions_lie_between_then_combines_across_them(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(topic)
    fill_transactions(old, topic)
    with mirror(address(old, topic), address(new), "--once") as running:
        summary = running.summary()
    (batch,) = new.batches(topic)
    assert (batch.count, batch.is_transactional, summary["combined_into"]) == (20, False, 1)
    commit(old, topic, [TopicPartition(topic, 0, 14)])
    (position,) = look_up(address(old, topic), address(new), topic)
    with Reader(old.bootstrap) as before, Reader(new.bootstrap) as after:
        assert same_records(before, after, topic)
        assert_same_place(before, after, position)


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
def test_mirror_when_it_reads_open_transactions_then_no_batch_has_records_of_two(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(topic)
    fill_transactions(old, topic)
    with mirror(address(old, topic), address(new), "--once", "--isolation", "read_uncommitted") as running:
        summary = running.summary()
    assert [batch.count for batch in new.batches(topic)] == [6, 6, 4, 6, 4]
    assert summary["combined_into"] == 5


def fill_transactions(cluster: Cluster, topic: str) -> None:
    """Three transactions of small batches, of which the second is aborted, and others without one between them."""
    feed = Feed(cluster)
    transactional = feed.open_producer("none", transactional_id=topic)
    with feed.producer("none") as plain:
        for number in range(3):
            transactional.begin_transaction()
            for size in (1, 2, 3):
                feed.send(transactional, topic, feed.orders.take(size))
            end(transactional, is_commit=number != 1)
            if number:
                for size in (1, 3):
                    feed.send(plain, topic, feed.orders.take(size))


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
def test_follow_when_small_batches_come_one_by_one_then_each_is_sent_at_once(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    """Nothing waits for a further batch; what came while the mirror was down is combined."""
    old.create_topic(topic)
    feed = Feed(old)
    with feed.producer("lz4") as producer, mirror(address(old, topic), address(new), *QUICKLY) as running:
        for number in range(1, 4):
            feed.send(producer, topic, feed.orders.take(5))
            wait_until(lambda n=number: end_of(new.broker.log_dir, topic) == 5 * n, running)
        first = running.stop()
        for _ in range(6):
            feed.send(producer, topic, feed.orders.take(5))
        running.start()
        wait_until(lambda: end_of(new.broker.log_dir, topic) == 45, running)
        second = running.stop()
    assert (of_way(first, "raw"), first["combined_into"]) == (3, 0)
    assert second["batches"] == 6
    assert first["possibly_doubled"] == second["possibly_doubled"] == 0
    with Reader(old.bootstrap) as before, Reader(new.bootstrap) as after:
        assert after.by_offset(topic) == before.by_offset(topic)


# Options and metrics


@pytest.mark.parametrize(
    "options",
    [("--adaptive",), ("--adaptive", "--handler", "mirror.handlers:keep_large_batches")],
)
def test_adaptive_when_it_is_not_possible_then_is_one_line(tmp_path: Path, options: tuple[str, ...]) -> None:
    put_log(tmp_path / "source" / "t-0", batches(0, 10))
    target = tmp_path / "target" if len(options) == 1 else "kafka://localhost:1"
    ended = run_mirror(tmp_path / "source", target, *options)
    assert ended.status == 2
    (line,) = ended.errors.splitlines()
    assert line.startswith("kafkafmt: --adaptive needs a cluster as target, and no --handler")


def test_summary_when_the_target_is_a_folder_then_all_is_raw(tmp_path: Path) -> None:
    put_log(tmp_path / "source" / "t-0", batches(0, 100))
    raw = run_mirror(tmp_path / "source", tmp_path / "target").summary
    assert_ways_add_up(raw)
    assert (of_way(raw, "raw"), raw["combined_into"]) == (10, 0)
    deep = run_mirror(tmp_path / "source", tmp_path / "deep", "--deep", "--codec", "lz4").summary
    assert_ways_add_up(deep)
    assert of_way(deep, "deep") == 10
