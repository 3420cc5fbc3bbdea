"""Names of topics that a broker tells: one that is no topic's would lead out of the folder of the backup."""

from __future__ import annotations

from pathlib import Path

import pytest

from backup.test_unanswered import store_of
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.protocols import SourceTopic
from kafkafmt.storage.backups.errors import BackupError


@pytest.mark.parametrize("name", ["../../elsewhere", "..", "a/b", "/etc", ""])
def test_topic_when_its_name_is_none_then_is_refused(tmp_path: Path, name: str) -> None:
    store = store_of(tmp_path, unanswered=0)
    good = {"t": SourceTopic(TopicConfig(1, {}))}
    assert store.prepare(good, again=False) == {"t": {}}
    with pytest.raises(BackupError, match="expected the name of a topic, found"):
        store.prepare({**good, name: SourceTopic(TopicConfig(1, {}))}, again=False)
