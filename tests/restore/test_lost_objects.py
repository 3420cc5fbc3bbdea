"""A restore from a backup one of whose objects is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from backup.backing_up import back_up
from client.cluster import Cluster
from restore.restoring import restore, send, values

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("restore")]


def test_restore_when_an_object_is_missing_then_other_partitions_are_restored(
    old: Cluster, new: Cluster, topic: str, tmp_path: Path
) -> None:
    target = tmp_path / "backup"
    old.create_topic(topic, 2)
    for first in (0, 100):
        for partition in (0, 1):
            send(old, topic, range(first, first + 100), partition=partition)
        assert back_up(old, target, topic).status == 0
    (lost,) = (target / "segments" / topic).glob(f"*/0/{100:020}-*.log")
    lost.unlink()
    trial = restore(target, new, "--dry-run")
    (finding,) = trial.summary["findings"]
    assert (trial.status, finding.endswith(".log: the object is missing")) == (1, True)
    names = [f"{topic}.{how}" for how in ("fail", "skip")]
    failed = restore(target, new, "--rename", f"{topic}={names[0]}")
    assert (failed.status, failed.summary["incomplete_topics"]) == (1, [topic])
    (stopped,) = failed.summary["stopped"]
    assert (stopped["partition"], stopped["offset"]) == (0, 100)
    skipped = restore(target, new, "--rename", f"{topic}={names[1]}", "--on-corrupt", "skip")
    assert skipped.status == 0
    assert [one["first_offset"] for one in skipped.summary["skipped"]] == [100]
    assert "the object is missing" in skipped.errors
    for name in names:
        assert (len(values(new, name, 0)), len(values(new, name, 1))) == (100, 200)
