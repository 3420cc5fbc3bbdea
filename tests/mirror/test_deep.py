"""Mirrors that open every batch, and mirrors with a handler."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import kafkafmt as kf
from client.cluster import Cluster
from endpoints.endpoint_process import EndpointProcess
from mirror.reading import Reader, batches_of
from mirror.running import Mirror, address, metrics_of, wait_until
from mirror.scenarios import PARTITIONS, Direction, Feed

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]

MakeMirror = Callable[..., Mirror]


def test_deep_when_a_codec_is_wanted_then_every_batch_has_it_and_the_records_are_the_same(
    direction: Direction, tmp_path: Path, mirror: MakeMirror
) -> None:
    """To an endpoint, which has no topics of these names yet."""
    (tmp_path / "logs").mkdir()
    with (
        EndpointProcess(tmp_path / "logs", "--allow-produce", log=tmp_path / "serve.log") as endpoint,
        Reader(direction.source.bootstrap) as source,
        Reader(endpoint.address) as target,
    ):
        options = ("--once", "--deep", "--codec", "zstd")
        with mirror(address(direction.source, direction.pattern), address(endpoint.address), *options) as run:
            summary = run.summary()
        count = 0
        for scenario, partition in PARTITIONS:
            topic = direction.topic(scenario)
            wanted = [read._replace(timestamp_type=1) for read in source.records(topic, partition)]
            assert target.records(topic, partition) == wanted, (topic, partition)
            codecs = {batch.codec for batch in batches_of(tmp_path / "logs", topic, partition)}
            assert codecs <= {kf.Codec.ZSTD}
            count += len(wanted)
    assert summary["records"] == count


@pytest.fixture
def source(old: Cluster, topic: str) -> Cluster:
    """With the topic: batches of one record and of many, with keys, in one partition."""
    old.create_topic(topic)
    feed = Feed(old)
    with feed.producer("lz4") as producer:
        for size in (1, 100, 1, 99, 50, 1):
            feed.send(producer, topic, feed.orders.take(size))
    return old


def test_repartition_when_the_target_has_more_partitions_then_each_key_keeps_its_order(
    source: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    new.create_topic(topic, 3)
    with mirror(address(source, topic), address(new), "--once", "--deep", "--repartition") as running:
        assert running.summary()["records"] == 252
    with Reader(source.bootstrap) as before, Reader(new.bootstrap) as after:
        wanted = before.records(topic)
        found = [after.records(topic, partition) for partition in range(3)]
    assert all(found)
    for key in {read.key for read in wanted}:
        (partition,) = [number for number in range(3) if any(read.key == key for read in found[number])]
        of_key = [read for read in found[partition] if read.key == key]
        assert of_key == [read for read in wanted if read.key == key]


@pytest.mark.parametrize("is_known", [True, False], ids=["limit known", "limit hidden"])
def test_kip_126_motivation_when_ratios_of_a_mirrored_topic_change_then_its_splits_are_counted(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror, is_known: bool
) -> None:
    """KIP-126, "Motivation": batches that were small at the source are too large once they were recompressed."""
    old.create_topic(topic)
    new.create_topic(topic, config={"max.message.bytes": 20_000})
    feed = Feed(old)
    noise = random.Random(126)
    values = [bytes(1000)] * 600 + [noise.randbytes(1000) for _ in range(300)]
    with feed.producer("lz4") as producer:
        for value in values:
            producer.produce(topic, value)
            producer.poll(0)
    limits = () if is_known else ("--target-config", "topic.limits=false")
    with mirror(
        address(old, topic), address(new), "--follow", "--deep", "--metrics-port", 0, *limits
    ) as running:
        arrived = f'kafkafmt_mirror_records_total{{partition="0",topic="{topic}"}} {float(len(values))}\n'
        wait_until(lambda: arrived in metrics_of(running), running)
        told = metrics_of(running)
        summary = running.stop()
    splits, refused = summary["batch_split_total"], summary["batch_refused_total"]
    assert splits > 0
    assert refused == (0 if is_known else splits)
    assert summary["batch_split_rate"] == pytest.approx(splits / summary["seconds"], abs=0.001)
    assert f"kafkafmt_mirror_batch_split_total {float(splits)}\n" in told
    assert f"kafkafmt_mirror_batch_refused_total {float(refused)}\n" in told
    (rate,) = re.findall(r"^kafkafmt_mirror_batch_split_rate (\S+)$", told, re.MULTILINE)
    assert float(rate) > 0
    with Reader(new.bootstrap) as after:
        assert [read.value for read in after.records(topic)] == values


def test_raw_handler_when_it_drops_batches_then_the_others_go_on_as_they_are(
    source: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    options = ("--once", "--handler", "mirror.handlers:keep_large_batches")
    with mirror(address(source, topic), address(new), *options) as running:
        assert running.summary()["batches"] == 3
    assert [batch.count for batch in new.batches(topic)] == [100, 99, 50]
    with Reader(source.bootstrap) as before, Reader(new.bootstrap) as after:
        offsets = [
            offset
            for batch in source.batches(topic)
            if batch.count > 1
            for offset in range(batch.base_offset, batch.last_offset + 1)
        ]
        by_offset = before.by_offset(topic)
        assert after.records(topic) == [by_offset[offset] for offset in offsets]


def test_raw_handler_when_it_makes_batches_then_these_go_on(
    source: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    options = ("--once", "--handler", "mirror.handlers:rewrite_batches")
    with mirror(address(source, topic), address(new), *options) as running:
        assert running.summary()["batches"] == 6
    assert {batch.codec for batch in new.batches(topic)} == {kf.Codec.NONE}
    with Reader(source.bootstrap) as before, Reader(new.bootstrap) as after:
        wanted = [read._replace(value=(read.value or b"").upper()) for read in before.records(topic)]
        assert after.records(topic) == wanted


@pytest.mark.parametrize("to", ["cluster", "folder"])
def test_handler_when_it_raises_then_the_mirror_ends_there_in_a_line(
    source: Cluster, new: Cluster, topic: str, tmp_path: Path, mirror: MakeMirror, to: str
) -> None:
    target = tmp_path / "logs" if to == "folder" else address(new)
    options = ("--once", "--handler", "mirror.handlers:fail_behind_200")
    with mirror(address(source, topic), target, *options) as running:
        running.summary(status=2)
    last = running.said.splitlines()[-1]
    assert all(word in last for word in (f"{topic}-0", "201", "no more of this"))
    assert "Traceback" not in running.said
    directory = tmp_path / "logs" if to == "folder" else new.broker.log_dir
    assert [batch.count for batch in batches_of(directory, topic)] == [1, 100, 1, 99]
    assert {commit.offset for commit in source.tap.commits if commit.topic == topic} <= {0, 1, 101, 102, 201}


def test_deep_handler_when_it_drops_and_changes_records_then_the_target_has_what_it_made(
    source: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    new.create_topic(topic)
    with Reader(source.bootstrap) as before, Reader(new.bootstrap) as after:
        for handler in ("keep_even_offsets", "shout"):
            options = (
                "--once",
                "--deep",
                "--append",  # the second mirror's map knows nothing of what the first one made
                "--handler",
                f"mirror.handlers:{handler}",
                "--group",
                f"{topic}-{handler}",
            )
            options += ("--offset-map", f"topic:{topic}-{handler}")
            with mirror(address(source, topic), address(new), *options) as running:
                running.summary()
        by_offset = before.by_offset(topic)
        wanted = [read for offset, read in by_offset.items() if offset % 2 == 0]
        wanted += [read._replace(value=(read.value or b"").upper()) for read in by_offset.values()]
        assert after.records(topic) == wanted
