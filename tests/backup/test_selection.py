"""Topics and groups that are named and not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from backup.backing_up import back_up
from client.cluster import Cluster

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("backup")]


def test_backup_when_a_glob_matches_no_topic_then_nothing_is_written(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic)
    found = back_up(cluster, tmp_path / "backup", f"{topic},nope*")
    assert (found.status, "no topic matches 'nope*'" in found.errors) == (2, True)
    assert not list((tmp_path / "backup").glob("generations/*"))


def test_backup_when_a_named_group_has_no_offsets_then_says_so(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic)
    found = back_up(cluster, tmp_path / "backup", topic, "--groups", "nobody,app-.*")
    assert found.status == 2
    assert "--groups: no group nobody with offsets in the selected topics" in found.errors
