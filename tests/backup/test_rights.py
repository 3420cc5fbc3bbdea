"""Backups by a user who lacks a right: what they have is not less than it seems."""

from __future__ import annotations

from pathlib import Path

import pytest

from backup.backing_up import back_up, generation, topic_of
from client.cluster import Cluster
from kafkafmt.backup.repository import Repository

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]

COMPACTED = {"cleanup.policy": "compact"}


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
