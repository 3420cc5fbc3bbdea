"""A run that continues a compacted topic after a long pause warns of tombstones that may be gone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from backup.fake_cluster import store_of
from kafkafmt.backup.repository import Repository
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.protocols import SourceTopic
from kafkafmt.storage.backups.manifest import BackedUpPartition, BackedUpTopic, Manifest
from kafkafmt.types import TopicPartition
from logged_events import logged_events

MINUTE_MS = 60_000
WARNING = "a compacted topic was last backed up longer ago than its delete.retention.ms"


@pytest.mark.parametrize(
    ("policy", "minutes", "end", "warns"),
    [
        pytest.param("compact", 61, 101, True, id="long pause"),
        pytest.param("compact,delete", 61, 101, True, id="both policies"),
        pytest.param("compact", 59, 101, False, id="short pause"),
        pytest.param("compact", 61, 100, False, id="nothing new"),
        pytest.param("delete", 61, 101, False, id="not compacted"),
    ],
)
def test_backup_when_it_continues_a_compacted_topic_after_a_long_pause_then_warns(
    tmp_path: Path, policy: str, minutes: int, end: int, warns: bool
) -> None:
    repository = Repository(tmp_path)
    repository.create()
    topic = BackedUpTopic("t", None, 1, {}, (BackedUpPartition(0, 0, 100),))
    created_ms = time.time_ns() // 1_000_000 - minutes * MINUTE_MS
    repository.write(
        Manifest(
            number=1,
            name=f"{1:020}-00000000",
            parent=None,
            source="cluster",
            created_ms=created_ms,
            writer="a run",
            topics=(topic,),
        )
    )
    store = store_of(tmp_path, configs={"cleanup.policy": policy, "delete.retention.ms": "3600000"}, end=end)
    with logged_events("kafkafmt.backup.store") as events:
        store.prepare({"t": SourceTopic(TopicConfig(1))}, again=False)
        for _ in range(2):
            assert store.resume_offset(TopicPartition("t", 0)) == 100
    assert [WARNING in one["event"] for one in events] == ([True] if warns else [])
