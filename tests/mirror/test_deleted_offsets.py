"""Offsets that a source deletes before they are mirrored are reported: no mirror passes over them in silence."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaTopicPartition

import kafkafmt as kf
from _kafkafmt.batches.producer_state import set_producer_state
from cli.logs import command
from client.cluster import Cluster
from freezing import frozen
from kafkafmt.log.checkpoints import LOG_START_OFFSET_CHECKPOINT, log_start_offsets_to_bytes
from kafkafmt.types import TopicPartition
from log.samples import marker, transactional
from mirror.folders import NOW, batch, batches, log_bytes, mirror, put_log, records, stopped
from mirror.reading import Reader, batches_of, end_of
from mirror.running import LASTING, QUICKLY, SECONDS, Mirror, address, wait_until
from mirror.scenarios import Feed

pytestmark = pytest.mark.slow

MakeMirror = Callable[..., Mirror]
MESSAGE = "offsets were deleted at the source before they were read"


def delete_segments(folder: Path, offset: int) -> int:
    """Delete the segments that end below an offset, as retention does; the log start offset."""
    logs = sorted(folder.glob("*.log"))
    starts = [int(path.stem) for path in logs]
    start = max(one for one in starts if one <= offset)
    for path, base_offset in zip(logs, starts, strict=True):
        if base_offset < start:
            for each in folder.glob(f"{path.stem}.*"):
                each.unlink()
    return start


def delete_records(folder: Path, offset: int) -> int:
    """Raise the log start offset, as DeleteRecords does."""
    topic, partition = folder.name.rsplit("-", 1)
    entries = {TopicPartition(topic, int(partition)): offset}
    (folder.parent / LOG_START_OFFSET_CHECKPOINT).write_bytes(log_start_offsets_to_bytes(entries))
    return offset


def gone(topic: str, from_offset: int, to_offset: int) -> dict[str, Any]:
    return {"topic": topic, "partition": 0, "from_offset": from_offset, "to_offset": to_offset}


def told(errors: str) -> list[dict[str, Any]]:
    """What the lines of the log say."""
    lines = [json.loads(line) for line in errors.splitlines() if MESSAGE in line]
    return [{key: line[key] for key in gone("", 0, 0)} for line in lines]


@pytest.mark.parametrize("delete", [delete_segments, delete_records])
def test_offsets_when_a_folder_deleted_them_between_two_runs_then_are_reported(
    tmp_path: Path, delete: Callable[[Path, int], int]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", batches(0, 100))
    put_log(source / "u-0", batches(0, 100))
    assert mirror(source, target).summary["gone"] == []
    put_log(source / "t-0", batches(100, 600))
    start = delete(source / "t-0", 400)
    assert start > 100
    ended = mirror(source, target)
    assert (ended.status, ended.summary["gone"]) == (1, [gone("t", 100, start)])
    assert told(ended.errors) == [gone("t", 100, start)]
    assert ended.summary["records"] == 600 - start
    again = mirror(source, target)
    assert (again.status, again.summary["gone"]) == (0, [])


@pytest.mark.parametrize("delete", [delete_segments, delete_records])
def test_offsets_when_a_mirror_begins_behind_them_then_are_not_lost(
    tmp_path: Path, delete: Callable[[Path, int], int]
) -> None:
    put_log(tmp_path / "source" / "t-0", batches(0, 600))
    start = delete(tmp_path / "source" / "t-0", 400)
    ended = mirror(tmp_path / "source", tmp_path / "target")
    assert (ended.status, ended.summary["gone"]) == (0, [])
    assert ended.summary["records"] == 600 - start


@pytest.mark.parametrize("delete", [delete_segments, delete_records])
def test_offsets_when_read_committed_left_them_out_before_they_were_deleted_then_are_not_lost(
    tmp_path: Path, delete: Callable[[Path, int], int]
) -> None:
    """The mirror ends within a transaction, which leaves nothing in the folder."""
    source, target = tmp_path / "source", tmp_path / "target"
    aborted = [
        *(transactional(offset, 7, 10) for offset in range(100, 200, 10)),
        marker(200, 7, commit=False),
    ]
    put_log(source / "t-0", [*batches(0, 100), *aborted], segment_bytes=300)
    options = ("--isolation", "read_committed")
    assert mirror(source, target, *options, "--to", NOW + 200).summary["records"] == 100
    put_log(source / "t-0", batches(201, 401), segment_bytes=300)
    start = delete(source / "t-0", 250)
    assert start > 201
    ended = mirror(source, target, *options)
    assert (ended.status, ended.summary["gone"]) == (1, [gone("t", 200, start)])
    again = mirror(source, target, *options)
    assert (again.status, again.summary["gone"]) == (0, [])


@pytest.mark.parametrize("magic", [1, 2])
def test_offsets_when_the_log_start_is_within_compressed_records_then_those_below_are_not_mirrored(
    magic: int, tmp_path: Path
) -> None:
    """KIP-712: the first batch is trimmed, also if it is a wrapper, whose header has no first offset."""
    source, target = tmp_path / "source", tmp_path / "target"
    builder = kf.RecordBatchBuilder(magic, kf.Codec.GZIP)
    for offset in range(10):
        builder.append(NOW + offset, b"key", b"value-%d" % offset)
    delete_records(put_log(source / "t-0", [builder.build()]), 7)
    ended = mirror(source, target)
    assert (ended.status, ended.summary["records"]) == (0, 3)
    assert [offset for offset, *_ in records(target)] == [7, 8, 9]


@pytest.mark.parametrize("start", [11, 12, 13])
@pytest.mark.parametrize("count", [0, 3])
def test_offsets_when_the_log_start_is_within_a_compacted_batch_then_its_records_from_there_are_mirrored(
    count: int, start: int, tmp_path: Path
) -> None:
    """Compaction removed its first record, and keeps the base offset, which is below the start."""
    source, target = tmp_path / "source", tmp_path / "target"
    kept = range(12, 12 + count)
    builder = kf.RecordBatchBuilder(codec=kf.Codec.GZIP, base_offset=10, last_offset=16)
    for offset in kept:
        builder.append_with_offset(offset, NOW + offset, b"key", b"value")
    delete_records(put_log(source / "t-0", [batch(0), builder.build(), batch(17, 3)]), start)
    ended = mirror(source, target)
    assert ended.status == 0, ended.errors
    wanted = [offset for offset in (*kept, 17, 18, 19) if offset >= start]
    assert [offset for offset, *_ in records(target)] == wanted


def test_batch_when_the_log_start_is_within_it_and_it_cannot_be_opened_then_its_partition_alone_stops(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    unreadable = bytearray(batch(0))
    unreadable[22] |= kf.Codec.GZIP
    set_producer_state(unreadable, -1, -1, -1)  # the CRC matches
    delete_records(put_log(source / "t-0", [bytes(unreadable), batch(10)]), 3)
    put_log(source / "u-0", batches(0, 50))
    ended = mirror(source, target)
    assert ended.status == 1
    assert stopped(ended.summary) == {"t-0": 3}
    assert log_bytes(target / "u-0") == log_bytes(source / "u-0")
    ended = mirror(source, target, "--on-corrupt", "skip")
    assert ended.status == 0
    assert log_bytes(target / "t-0") == batch(10)


def test_gap_when_compaction_left_it_between_segments_then_is_not_lost(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", [*batches(0, 100), *batches(400, 600)], segment_bytes=1000)
    ended = mirror(source, target)
    assert (ended.status, ended.summary["gone"]) == (0, [])
    assert log_bytes(target / "t-0") == log_bytes(source / "t-0")


@pytest.mark.parametrize("delete", [delete_segments, delete_records])
def test_offsets_when_a_followed_folder_deletes_them_then_are_reported_and_counted(
    tmp_path: Path, delete: Callable[[Path, int], int]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", batches(0, 100))
    options = ("--follow", "--json", "--metrics-port", 0)
    with subprocess.Popen(
        command("mirror", source, target, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            assert running.stderr is not None
            line = next(line for line in running.stderr if line.startswith("metrics are served on "))
            wait_until(lambda: end_of(target, "t") == 100)
            with frozen(running.pid):
                put_log(source / "t-0", batches(100, 600))
                start = delete(source / "t-0", 400)
            wait_until(lambda: end_of(target, "t") == 600)
            with urlopen(f"http://{line.split()[-1]}/metrics", timeout=SECONDS) as response:
                assert f"kafkafmt_mirror_gone_offsets_total {start - 100}.0" in response.read().decode()
            running.send_signal(signal.SIGTERM)
            printed, errors = running.communicate(timeout=SECONDS)
        finally:
            running.kill()
    assert (running.returncode, json.loads(printed)["gone"]) == (0, [gone("t", 100, start)])
    assert told(errors) == [gone("t", 100, start)]


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
@pytest.mark.parametrize("line", ["3.9", "4.x"])
@pytest.mark.parametrize("to", ["folder", "cluster"])
def test_offsets_when_a_broker_deleted_them_between_two_runs_then_are_reported(
    clusters: dict[str, Cluster], line: str, to: str, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    source, other = clusters[line], clusters["4.x" if line == "3.9" else "3.9"]
    source.create_topic(topic)
    feed = Feed(source)
    target = tmp_path / "logs" if to == "folder" else address(other)
    with feed.producer() as producer:
        for _ in range(4):
            feed.send(producer, topic, feed.orders.take(5))
        delete_at_broker(source, topic, 7)
        with mirror(address(source, topic), target, "--once") as running:
            first = running.summary()
        assert first["gone"] == []
        for _ in range(8):
            feed.send(producer, topic, feed.orders.take(5))
    delete_at_broker(source, topic, 47)
    with mirror(address(source, topic), target, "--once") as running:
        second = running.summary(status=1)
    assert (second["gone"], second["records"]) == ([gone(topic, 20, 47)], 13)
    assert told(running.said) == [gone(topic, 20, 47)]
    if to == "cluster":  # the batch that the log begins in is trimmed, and the two after it are combined
        for summary in (first, second):
            assert [summary["ways"][way]["batches"] for way in ("raw", "combined")] == [1, 2]
        with Reader(source.bootstrap) as before, Reader(other.bootstrap) as after:
            assert after.records(topic)[-13:] == before.records(topic)
    with mirror(address(source, topic), target, "--once") as running:
        assert running.summary()["gone"] == []


@pytest.mark.broker
@pytest.mark.xdist_group("mirror")
@pytest.mark.parametrize("line", ["3.9", "4.x"])
def test_offsets_when_a_followed_broker_deletes_them_then_are_reported(
    clusters: dict[str, Cluster], line: str, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    source, target = clusters[line], tmp_path / "logs"
    source.create_topic(topic)
    feed = Feed(source)
    options = (*QUICKLY, *LASTING)
    with feed.producer() as producer, mirror(address(source, topic), target, *options) as running:
        feed.send(producer, topic, feed.orders.take(20))
        wait_until(lambda: end_of(target, topic) == 20, running)
        with running.frozen():
            for _ in range(3):  # a fetch that waits at the broker is answered with the first of them
                feed.send(producer, topic, feed.orders.take(20))
            delete_at_broker(source, topic, 70)
        feed.send(producer, topic, feed.orders.take(20))
        wait_until(lambda: end_of(target, topic) == 100, running)
        summary = running.stop()
    (lost,) = summary["gone"]
    arrived = [
        offset for one in batches_of(target, topic) for offset in range(one.base_offset, one.last_offset + 1)
    ]
    assert 20 <= lost["from_offset"] < lost["to_offset"] == 70
    assert arrived == [*range(lost["from_offset"]), *range(70, 100)]
    assert told(running.said) == [lost]


def delete_at_broker(cluster: Cluster, topic: str, offset: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    admin.delete_records({KafkaTopicPartition(topic, 0): offset})
    admin.close()
