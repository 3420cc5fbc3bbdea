"""Restores that are killed at any step: a later run continues, and each record is there once."""

from __future__ import annotations

import random
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from backup.backing_up import back_up
from client.cluster import Cluster
from mirror.running import KAFKAFMT
from restore.restoring import commit, first_record_of, restore, send, values

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("restore")]

RECORDS = 6000
BATCH = 2
EARLY_SECONDS = 1.0  # about when the first topic is created
LATE_SECONDS = 0.4  # from a batch to the last groups
MOST_SECONDS = 60


def killed(command: list[str], log: Path, target_log: Path, chance: random.Random, size: int) -> bool:
    """Run a restore up to a random step. Returns whether it was killed, and had not ended before.

    size: that of the log of partition 0 at the end.
    """
    there = size_of(target_log)
    goal = there + chance.uniform(0, 1.1) * (size - there)
    seconds = chance.uniform(0, EARLY_SECONDS) if chance.random() < 0.2 else MOST_SECONDS
    deadline = time.monotonic() + seconds
    with log.open("a") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
    while process.poll() is None and size_of(target_log) <= goal and time.monotonic() < deadline:
        time.sleep(0.001)
    if chance.random() < 0.3:
        with suppress(subprocess.TimeoutExpired):
            process.wait(chance.uniform(0, LATE_SECONDS))
    if process.poll() is None:
        process.kill()
        process.wait()
        return True
    assert process.returncode == 0, log.read_text()[-3000:]
    return False


def size_of(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


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
    send(old, topic, range(RECORDS), batch=BATCH)
    send(old, topic, range(10), partition=1)
    commit(old, group, topic, {0: RECORDS // 2 + 1, 1: 10})
    expected = [values(old, topic, partition) for partition in (0, 1)]
    source, count, round_, parts = tmp_path / "backup", 0, 0, 0
    assert back_up(old, source, topic, "--segment-bytes", "100k").status == 0
    size = size_of(log_path(old, topic))
    while count < kills or not parts:  # at least one in the midst of the records
        name, round_ = f"r{round_}-{topic}", round_ + 1
        command = [KAFKAFMT, "restore", str(source), f"kafka://{new.bootstrap}", "--topics", topic]
        command += ["--rename", f"{topic}={name}", "--commit-interval", "0.1"]
        while (count < kills or not parts) and killed(command, log, log_path(new, name), chance, size):
            count += 1
            parts += 0 < size_of(log_path(new, name)) < size
        outcome = restore(source, new, "--topics", topic, "--rename", f"{topic}={name}")
        assert (outcome.status, outcome.summary["possibly_doubled"]) == (0, 0), outcome.errors
        assert [values(new, name, partition) for partition in (0, 1)] == expected
        assert first_record_of(new, group, name) == expected[0][RECORDS // 2 + 1]
        assert first_record_of(new, group, name, 1) is None


def log_path(cluster: Cluster, topic: str) -> Path:
    return cluster.broker.log_dir / f"{topic}-0" / f"{0:020d}.log"
