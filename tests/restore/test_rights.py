"""Restores by a user who lacks a right: they end before anything is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka.protocol.admin import ACLOperation

from client.cluster import Cluster
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.clusters import MirrorCluster
from mirror.folders import batch, put_log
from restore.restoring import restore

pytestmark = pytest.mark.broker


def test_topic_when_it_may_not_be_configured_then_the_restore_ends_before_it_creates_it(
    new: Cluster, topic: str, tmp_path: Path
) -> None:
    """Before, it ended after all records were sent, and retention was not set."""
    put_log(tmp_path / f"{topic}-0", [batch(0, 3)])
    operations = ("READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "CREATE")
    new.allow_only(topic, *(ACLOperation[name] for name in operations))
    ended = restore(tmp_path, new)
    assert ended.status == 2
    assert f"kafka://{new.bootstrap}: this user needs the right AlterConfigs on {topic}" in ended.errors
    target = MirrorCluster(ClusterAddress((new.bootstrap,)), {})
    assert topic not in target.topic_names()
    target.close()
