"""`log-start-offset-checkpoint`: what brokers write is read, and what is malformed is told with its line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafkafmt.log import checkpoints
from kafkafmt.log.checkpoints import (
    LOG_START_OFFSET_CHECKPOINT,
    CheckpointError,
    LogStartOffsets,
    log_start_offsets_to_bytes,
    parse_offset_checkpoint,
    read_log_start_offsets,
)
from kafkafmt.types import TopicPartition

ORDERS = TopicPartition("orders", 0)


def test_entries_when_written_then_are_read_again() -> None:
    entries = {ORDERS: 3766, TopicPartition("page-views.v2", 11): 0}
    assert parse_offset_checkpoint(log_start_offsets_to_bytes(entries), "f") == entries


@pytest.mark.parametrize("data", [b"", b"0\n0\n", b"0\n0"])
def test_file_when_it_has_no_entries_then_names_no_partition(data: bytes) -> None:
    assert parse_offset_checkpoint(data, "f") == {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1\n0\n", "f: line 1: expected a version, found '1'"),
        (b"x\n", "f: line 1: expected a version, found 'x'"),
        (b"0\n", "f: line 2: expected the number of entries, found the end"),
        (b"0\n-1\n", "f: line 2: expected the number of entries, found '-1'"),
        (b"0\n2\norders 0 5\n", "f: expected 2 entries, as line 2 says, found 1"),
        (b"0\n1\norders 0 5\npages 0 1\n", "f: expected 1 entries, as line 2 says, found 2"),
        (b"0\n1\norders 0\n", "f: line 3: expected topic, partition and offset, found 'orders 0'"),
        (b"0\n1\nor ders 0 5\n", "f: line 3: expected topic, partition and offset, found 'or ders 0 5'"),
        (b"0\n2\norders 0 5\n\n", "f: line 4: expected topic, partition and offset, found ''"),
        (b"0\n1\n\xff 0 5\n", "f: line 3: expected topic, partition and offset, found '\\\\xff 0 5'"),
        (b"0\n1\norders -1 5\n", "f: line 3: expected a partition, found '-1'"),
        (b"0\n1\norders 0 -5\n", "f: line 3: expected an offset, found '-5'"),
        (
            b"0\n1\norders 0 9223372036854775808\n",
            "f: line 3: expected an offset, found '9223372036854775808'",
        ),
        (b"0\n1\norders 0 " + b"9" * 5000, "f: line 3: expected an offset, found"),
        (b"0\n2\norders 0 5\norders 0 7\n", "f: line 4: orders-0 is there already"),
    ],
)
def test_file_when_malformed_then_the_error_names_the_line(data: bytes, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_offset_checkpoint(data, "f")
    assert str(caught.value).startswith(message)


def test_file_when_missing_then_names_no_partition(tmp_path: Path) -> None:
    assert read_log_start_offsets(tmp_path) == {}
    assert LogStartOffsets().of(tmp_path / "orders-0") == 0


def test_file_when_no_regular_file_then_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOG_START_OFFSET_CHECKPOINT)
    with pytest.raises(CheckpointError, match="expected a regular file"):
        read_log_start_offsets(tmp_path)


def test_start_when_the_file_is_replaced_then_is_the_new_one(tmp_path: Path) -> None:
    starts, path = LogStartOffsets(), tmp_path / LOG_START_OFFSET_CHECKPOINT
    for offset in (5, 7):
        (tmp_path / "new").write_bytes(log_start_offsets_to_bytes({ORDERS: offset}))
        (tmp_path / "new").rename(path)
        assert starts.of(tmp_path / "orders-0") == offset
        assert starts.of(tmp_path / "orders-1") == 0
    path.unlink()
    assert starts.of(tmp_path / "orders-0") == 0


def test_start_when_many_partitions_are_asked_for_then_the_file_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reads = tmp_path / LOG_START_OFFSET_CHECKPOINT, []
    path.write_bytes(
        log_start_offsets_to_bytes({TopicPartition("t", number): number for number in range(50)})
    )
    read = checkpoints.read_named
    monkeypatch.setattr(checkpoints, "read_named", lambda path: reads.append(path) or read(path))
    starts = LogStartOffsets()
    assert [starts.of(tmp_path / f"t-{number}") for number in range(50)] == list(range(50))
    assert reads == [path]


def test_start_when_the_folder_is_a_link_then_is_the_higher_of_both_places(tmp_path: Path) -> None:
    kept, links = tmp_path / "kept", tmp_path / "links"
    (kept / "orders-0").mkdir(parents=True)
    links.mkdir()
    (links / "orders-0").symlink_to(kept / "orders-0")
    (kept / LOG_START_OFFSET_CHECKPOINT).write_bytes(log_start_offsets_to_bytes({ORDERS: 7}))
    starts = LogStartOffsets()
    assert starts.of(links / "orders-0") == 7
    (links / LOG_START_OFFSET_CHECKPOINT).write_bytes(log_start_offsets_to_bytes({ORDERS: 9}))
    assert starts.of(links / "orders-0") == 9
