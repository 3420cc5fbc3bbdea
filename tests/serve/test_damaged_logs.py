"""Logs that are damaged, cut or deleted while they are served: an error for that partition, and all else goes on."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import kafkafmt as kf
from data.real_logs import LOGS, expected
from endpoints.raw_client import RawClient, plain
from endpoints.requests import MIB, Wanted, fetch, list_offsets, metadata
from endpoints.served import Served
from kafkafmt.log import PartitionLog

CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, OFFSET_OUT_OF_RANGE = 2, 3, 1
Break: TypeAlias = Callable[[bytearray, kf.RecordBatch], None]
VERSIONS = [0, 2, 4, 12]
END = expected("none-0")[-1].offset + 1


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Two topics, each one segment: "none", which is broken, and "gzip", which is not."""
    for name in ("none-0", "gzip-0", "segments-0"):
        shutil.copytree(LOGS / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def client(logs: Path) -> Iterator[RawClient]:
    with Served(logs) as served, RawClient(served.address) as client:
        yield client


def segment_of(logs: Path, name: str = "none-0") -> Path:
    (segment,) = (logs / name).glob("*.log")
    return segment


def batches(logs: Path) -> list[kf.RecordBatch]:
    return list(PartitionLog(logs / "none-0").batches())


def read_on(client: RawClient, version: int, topic: str = "none", offset: int = 0) -> tuple[list[int], int]:
    """The offsets that a consumer gets, fetch after fetch, up to an error or the end; and the error's code."""
    offsets: list[int] = []
    while True:
        answer = plain(client.ask(fetch(Wanted(topic, 0, offset, MIB)), version))
        (partition,) = answer["responses"][0]["partitions"]
        if partition["error_code"] or offset == partition["high_watermark"]:
            return offsets, partition["error_code"]
        records = [r.offset for r in kf.MemoryRecords(partition["records"]).records() if r.offset >= offset]
        assert records, f"version {version} gets nothing from offset {offset}"
        offsets += records
        offset = records[-1] + 1


def is_intact(client: RawClient, version: int) -> None:
    assert read_on(client, version, "gzip") == ([r.offset for r in expected("gzip-0")], 0)


def break_length(data: bytearray, batch: kf.RecordBatch) -> None:
    data[batch.position + 8 : batch.position + 12] = (-5).to_bytes(4, "big", signed=True)


def break_magic(data: bytearray, batch: kf.RecordBatch) -> None:
    data[batch.position + 16] = 77


def break_records(data: bytearray, batch: kf.RecordBatch) -> None:
    data[batch.position + len(batch.buffer) - 7] ^= 0x10


def break_batch(logs: Path, number: int, how: Break, seconds_ago: float) -> kf.RecordBatch:
    """Break one batch of the log, as long ago; returns it as it was."""
    batch = list(PartitionLog(logs / "none-0").batches())[number]
    (segment,) = (logs / "none-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    how(data, batch)
    segment.write_bytes(data)
    change(segment, seconds_ago)
    return batch


def change(segment: Path, seconds_ago: float) -> None:
    """Have a file changed as long ago."""
    then = time.time() - seconds_ago
    os.utime(segment, (then, then))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", [0, 3, 5], ids=["first", "middle", "last"])
@pytest.mark.parametrize("how", [break_length, break_magic, break_records])
def test_fetch_when_a_batch_is_damaged_then_all_before_it_is_given_and_an_error_in_its_place(
    logs: Path, how: Break, number: int, version: int
) -> None:
    broken = break_batch(logs, number, how, seconds_ago=3600)
    with Served(logs) as served, RawClient(served.address) as client:
        assert read_on(client, version) == (list(range(broken.base_offset)), CORRUPT_MESSAGE)
        is_intact(client, version)


# Of a file that is being written: its last batch is damaged once the file has not changed for two seconds.
NOT_YET = -3600


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("how", [break_length, break_magic, break_records])
def test_fetch_when_the_last_batch_is_not_sound_yet_then_the_log_ends_before_it(
    logs: Path, how: Break, version: int
) -> None:
    broken = break_batch(logs, 5, how, seconds_ago=NOT_YET)
    with Served(logs) as served, RawClient(served.address) as client:
        assert read_on(client, version) == (list(range(broken.base_offset)), 0)
        is_intact(client, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_when_the_last_batch_is_cut_then_the_log_ends_before_it(logs: Path, version: int) -> None:
    last = batches(logs)[-1]
    data = segment_of(logs).read_bytes()
    segment_of(logs).write_bytes(data[:-9])
    change(segment_of(logs), NOT_YET)
    with Served(logs) as served, RawClient(served.address) as client:
        assert read_on(client, version) == (list(range(last.base_offset)), 0)
        is_intact(client, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_when_a_segment_is_cut_while_it_is_served_then_the_log_ends_there(
    logs: Path, client: RawClient, version: int
) -> None:
    """As a broker's replica does it, whose leader has changed."""
    assert read_on(client, version)[0] == list(range(END))
    third = batches(logs)[2]
    with segment_of(logs).open("r+b") as file:
        file.truncate(third.position)

    assert read_on(client, version) == (list(range(third.base_offset)), 0)
    assert offset_error(client, version, END) == OFFSET_OUT_OF_RANGE
    is_intact(client, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_when_a_partition_is_deleted_while_it_is_served_then_it_is_unknown(
    logs: Path, client: RawClient, version: int
) -> None:
    assert read_on(client, version)[0] == list(range(END))
    shutil.rmtree(logs / "none-0")

    assert offset_error(client, version, 0) == UNKNOWN_TOPIC_OR_PARTITION
    names = {topic["name"] for topic in plain(client.ask(metadata(), 1))["topics"]}
    assert names == {"gzip", "segments"}
    is_intact(client, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_fetch_when_the_first_segments_are_deleted_while_it_is_served_then_the_log_starts_behind_them(
    logs: Path, client: RawClient, version: int
) -> None:
    """As retention does it."""
    everything = [r.offset for r in expected("segments-0")]
    assert read_on(client, version, "segments")[0] == everything
    first, second, third = sorted((logs / "segments-0").glob("*.log"))[:3]
    for segment in (first, second):
        for file in segment.parent.glob(f"{segment.stem}.*"):
            file.unlink()

    start = int(third.stem)
    assert offset_error(client, version, 0, "segments") == OFFSET_OUT_OF_RANGE
    (topic,) = client.ask(list_offsets(("segments", 0, -2)), 1).topics
    assert topic.partitions[0].offset == start
    assert read_on(client, version, "segments", start)[0] == everything[everything.index(start) :]


def offset_error(client: RawClient, version: int, offset: int, topic: str = "none") -> Any:
    answer = plain(client.ask(fetch(Wanted(topic, 0, offset)), version))
    return answer["responses"][0]["partitions"][0]["error_code"]
