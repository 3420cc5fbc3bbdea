"""A source that lacks mirrored records and has other ones at their offsets, as after an unclean leader election."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from endpoints.endpoint_process import EndpointProcess
from kafkafmt.log.checkpoints import LEADER_EPOCH_CHECKPOINT
from mirror.folders import batch, log_bytes, mirror, put_log, stopped
from mirror.reading import end_of
from mirror.running import address

pytestmark = [pytest.mark.clients, pytest.mark.slow]

# The leader of epoch 2 has the first 100 records of epoch 1, and other ones after them.
MESSAGE = (
    "the source has lost records that are at the target, as after an unclean leader election: expected leader epoch 1 "
    "up to offset 150 as at the target, found its end at 100"
)


def log_of(folder: Path, ends: Sequence[int], size: int = 10) -> None:
    """Put a log with epochs 1, 2 and so on in place of what is there. size: records in a batch."""
    shutil.rmtree(folder, ignore_errors=True)
    starts = [0, *ends[:-1]]
    put_log(
        folder,
        [
            batch(offset, size, partition_leader_epoch=epoch)
            for epoch, (start, end) in enumerate(zip(starts, ends, strict=True), 1)
            for offset in range(start, end, size)
        ],
    )
    lines = [f"{epoch} {start}" for epoch, start in enumerate(starts, 1)]
    (folder / LEADER_EPOCH_CHECKPOINT).write_text("\n".join(["0", str(len(lines)), *lines, ""]))


def test_source_when_it_lost_records_that_a_folder_has_then_the_partition_stops_at_each_start(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    log_of(source / "t-0", [150])
    with EndpointProcess(source, log=tmp_path / "serve.log") as endpoint:
        assert mirror(address(endpoint.address), target, "--once").summary["records"] == 150
    before = log_bytes(target / "t-0")
    log_of(source / "t-0", [100, 180], size=20)
    with EndpointProcess(source, log=tmp_path / "serve.log") as endpoint:
        for _ in range(2):
            ended = mirror(address(endpoint.address), target, "--once")
            assert (ended.status, stopped(ended.summary)) == (1, {"t-0": 0})
            assert ended.summary["stopped"][0]["message"] == MESSAGE
    assert log_bytes(target / "t-0") == before


def test_source_when_it_lost_records_that_a_cluster_has_then_its_new_ones_follow(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    state = ("--state", tmp_path / "state")  # with the offsets of groups
    log_of(source / "t-0", [150])
    with EndpointProcess(target, "--allow-produce", log=tmp_path / "target.log") as west:
        with EndpointProcess(source, *state, log=tmp_path / "serve.log") as east:
            arguments = (address(east.address, "t"), address(west.address), "--once", "--group", "g")
            assert mirror(*arguments).summary["records"] == 150
            assert mirror(*arguments).summary["records"] == 0  # the epoch is still known
        log_of(source / "t-0", [100, 180], size=20)
        with EndpointProcess(source, *state, log=tmp_path / "serve.log") as east:
            ended = mirror(address(east.address, "t"), *arguments[1:])
            again = mirror(address(east.address, "t"), *arguments[1:])
    assert (ended.status, ended.summary["records"], ended.summary["possibly_doubled"]) == (0, 80, 0)
    (warning,) = [
        json.loads(line) for line in ended.errors.splitlines() if "lost records that were mirrored" in line
    ]
    assert (warning["partition"], warning["from_offset"], warning["to_offset"]) == ("t-0", 100, 150)
    assert (again.status, again.summary["records"], end_of(target, "t")) == (0, 0, 230)
