"""Restores that are killed at any step: a later run continues, and each record is there once."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from backup.backing_up import back_up
from client.cluster import Cluster
from kafkafmt import RecordBatch
from mirror.running import KAFKAFMT
from restore.restoring import commit, first_record_of, restore, send, values

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("restore")]

# From when Python has started to when the last groups are committed.
LEAST_SECONDS, MOST_SECONDS = 0.7, 2.5
RECORDS = 6000


def killed(source: Path, target: Cluster, topic: str, name: str, log: Path, seconds: float) -> bool:
    """Run a restore for some seconds. Returns whether it was killed, and had not ended before."""
    command = [KAFKAFMT, "restore", str(source), f"kafka://{target.bootstrap}", "--topics", topic]
    command += ["--rename", f"{topic}={name}", "--commit-interval", "0.1"]
    with log.open("a") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    assert process.returncode == 0, log.read_text()[-3000:]
    return False


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(4),
        pytest.param(100, marks=[pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_restore_when_killed_at_any_step_then_each_record_is_there_once_and_groups_continue_at_theirs(
    old: Cluster, new: Cluster, topic: str, tmp_path: Path, seed: int, kills: int
) -> None:
    chance, log, group = random.Random(seed), tmp_path / "log", f"{topic}-group"
    old.create_topic(topic, 2)
    send(old, topic, range(RECORDS), batch=2)
    send(old, topic, range(10), partition=1)
    commit(old, group, topic, {0: RECORDS // 2 + 1, 1: 10})
    expected = [values(old, topic, partition) for partition in (0, 1)]
    source, count, round_, halves = tmp_path / "backup", 0, 0, 0
    assert back_up(old, source, topic, "--segment-bytes", "100k").status == 0
    while count < kills:
        name, round_ = f"r{round_}-{topic}", round_ + 1
        while count < kills and killed(
            source, new, topic, name, log, chance.uniform(LEAST_SECONDS, MOST_SECONDS)
        ):
            count += 1
            halves += 0 < len(batches_of(new, name)) < RECORDS // 2
        outcome = restore(source, new, "--topics", topic, "--rename", f"{topic}={name}")
        assert (outcome.status, outcome.summary["possibly_doubled"]) == (0, 0), outcome.errors
        assert [values(new, name, partition) for partition in (0, 1)] == expected
        assert first_record_of(new, group, name) == expected[0][RECORDS // 2 + 1]
        assert first_record_of(new, group, name, 1) is None
    assert halves, "no restore was killed in the midst of the records"


def batches_of(cluster: Cluster, topic: str) -> list[RecordBatch]:
    """The batches in the log of a topic, if it was created."""
    return cluster.batches(topic) if (cluster.broker.log_dir / f"{topic}-0").exists() else []
