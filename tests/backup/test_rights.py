"""Backups by a user who lacks a right: what they have is not less than it seems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import ACLOperation

from backup.backing_up import back_up, generation, topic_of
from backup.fake_cluster import store_of
from client.cluster import Cluster
from kafkafmt.backup.groups import read_groups
from kafkafmt.backup.repository import Repository
from kafkafmt.mirror.group_selection import GroupSelection
from kafkafmt.mirror.refusals import RefusedError
from kafkafmt.storage.backups.errors import BackupError
from restore.restoring import send

on_broker = pytest.mark.broker

COMPACTED = {"cleanup.policy": "compact"}


@on_broker
def test_configuration_when_it_is_hidden_then_no_generation_is_without_it(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """A restore would make a compacted topic one whose records are deleted."""
    cluster.create_topic(topic, config=COMPACTED)
    assert back_up(cluster, tmp_path / "earlier", topic).status == 0
    cluster.hide_config(topic)
    refused = back_up(cluster, tmp_path / "first", topic)
    assert refused.status == 2
    assert f"the configuration of topic {topic} cannot be read" in refused.errors
    assert "DescribeConfigs" in refused.errors
    assert Repository(tmp_path / "first").generations() == []
    later = back_up(cluster, tmp_path / "earlier", topic)
    assert later.status == 0, later.errors
    assert topic_of(generation(tmp_path / "earlier"), topic).configs == COMPACTED


@on_broker
def test_records_when_they_may_not_be_read_then_no_generation_is_written(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create_topic(topic)
    send(cluster, topic, range(3))
    cluster.allow_only(topic, ACLOperation.DESCRIBE, ACLOperation.DESCRIBE_CONFIGS)
    refused = back_up(cluster, tmp_path / "backup", topic)
    assert (refused.status, refused.summary["generations"]) == (2, [])
    assert f"this user needs the right Read on topic {topic}" in refused.errors
    assert Repository(tmp_path / "backup").generations() == []


@on_broker
def test_topic_when_it_is_not_shown_any_more_then_it_is_not_taken_for_a_deleted_one(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    for name in (topic, f"{topic}-other"):
        cluster.create_topic(name)
    assert back_up(cluster, tmp_path / "backup", f"{topic}*").status == 0
    cluster.allow_only(topic, ACLOperation.CREATE)  # without Describe
    refused = back_up(cluster, tmp_path / "backup", f"{topic}*")
    assert (refused.status, refused.summary) == (2, {})
    assert (
        f": this user needs the right Describe on {topic}, which the backup has, "
        "or --topics that selects others"
    ) in refused.errors
    assert len(Repository(tmp_path / "backup").generations()) == 1
    other = back_up(cluster, tmp_path / "backup", f"{topic}-other")
    assert other.status == 0, other.errors
    assert topic_of(generation(tmp_path / "backup"), topic)


def test_topic_when_it_is_hidden_while_a_backup_runs_then_no_generation_is_without_it(tmp_path: Path) -> None:
    store_of(tmp_path).complete_commit(is_last=True)
    store = store_of(tmp_path, shown=["listed", "hidden"])
    store.complete_commit(is_last=False)
    with pytest.raises(
        BackupError, match="Describe on t, which the backup has, or --topics that selects others"
    ):
        store.complete_commit(is_last=True)
    assert store.parent is not None
    assert [one.name for one in store.parent.topics] == ["t"]


class HiddenGroup:
    """A cluster that lists a group on which the user lacks the right Describe."""

    def consumer_groups(self) -> list[str]:
        return ["billing"]

    def committed_offsets(self, group: str) -> Any:
        raise RefusedError(f"this user needs the right Describe on group {group}")


def test_group_when_it_may_not_be_described_then_the_error_names_the_option() -> None:
    cluster: Any = HiddenGroup()
    with pytest.raises(BackupError, match="Describe on group billing, or --groups that selects others"):
        read_groups(cluster, GroupSelection(), lambda _: True)
