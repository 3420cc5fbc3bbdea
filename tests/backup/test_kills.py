"""Backups that are killed at any step: what a generation names is there, and a later run continues."""

from __future__ import annotations

import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from backup.backing_up import back_up, bytes_of, generation, leftovers, topic_of
from client.cluster import Cluster
from kafkafmt.backup.repository import Repository
from kafkafmt.storage.backups.errors import BackupError
from mirror.load import Load
from mirror.reading import log_of
from mirror.running import KAFKAFMT

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("backup")]

# From when Python has started to when several generations are written.
LEAST_SECONDS, MOST_SECONDS = 0.6, 2.0


def kill_a_backup(cluster: Cluster, topic: str, target: Path, log: Path, seconds: float) -> None:
    command = [KAFKAFMT, "backup", f"kafka://{cluster.bootstrap}", str(target), "--topics", topic, "--follow"]
    command += ["--generation-age", "0.1", "--commit-interval", "0.1", "--segment-age", "0.1"]
    with log.open("a") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    else:
        raise AssertionError(f"the backup ended with {process.returncode}:\n{log.read_text()[-3000:]}")


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(4),
        pytest.param(100, marks=[pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_backup_when_killed_at_any_step_then_each_generation_is_whole_and_nothing_is_lost_or_doubled(
    cluster: Cluster, topic: str, tmp_path: Path, seed: int, kills: int
) -> None:
    target, chance = tmp_path / "backup", random.Random(seed)
    cluster.create_topic(topic, 2)
    reached, done, most_seconds = [0, 0], 0, MOST_SECONDS
    with Load(cluster, topic, 2):
        while done < kills or not reached[0]:
            kill_a_backup(
                cluster, topic, target, tmp_path / "log", chance.uniform(LEAST_SECONDS, most_seconds)
            )
            done += 1
            if not Repository(target).generations():
                most_seconds *= 1.5  # a busy machine may not have started one in time
                continue
            for partition in topic_of(generation(target), topic).partitions:
                number = partition.partition
                assert log_of(cluster.broker.log_dir, topic, number).startswith(bytes_of(target, partition))
                assert partition.next_offset >= reached[number]
                reached[number] = partition.next_offset
    outcome = back_up(cluster, target, topic)
    assert outcome.status == 0, outcome.errors
    for partition in topic_of(generation(target), topic).partitions:
        assert bytes_of(target, partition) == log_of(cluster.broker.log_dir, topic, partition.partition)
    assert not leftovers(target)


def test_backup_when_another_has_written_a_generation_then_is_refused_and_both_generations_stay(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    cluster.create_topic(topic)
    assert back_up(cluster, target, topic).status == 0
    first = generation(target)
    assert back_up(cluster, target, topic).status == 0
    late = replace(first, number=2, name=f"{2:020}-{'0' * 8}", parent=first.name)
    repository = Repository(target)
    repository.create()
    with pytest.raises(BackupError, match="another backup wrote generation"):
        repository.write(late)
    assert len(repository.generations()) == 2
