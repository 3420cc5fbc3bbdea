"""Generations that are due while a broker of the source does not answer: they are written later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kafka.errors as kafka_errors
import pytest

from kafkafmt.backup.groups import GroupOffsets
from kafkafmt.backup.repository import Repository
from kafkafmt.backup.store import BackupSource, BackupStore
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.clusters import UnansweredError
from logged_events import logged_events

NO_GROUPS = GroupOffsets(0, {})


class RestartingCluster:
    """A cluster of one topic, whose leader does not answer the first requests for offsets."""

    id = "cluster"

    def __init__(self, unanswered: int) -> None:
        self._unanswered = unanswered

    def topic_names(self) -> list[str]:
        return ["t"]

    def topic_ids(self, _: object) -> dict[str, Any]:
        return {}

    def describe_topics(self, _: object) -> dict[str, TopicConfig]:
        return {"t": TopicConfig(1, {})}

    def partitions(self, _: object) -> list[Any]:
        return []

    def bounds(self, _: object, *, is_committed: bool) -> dict[Any, tuple[int, int]]:
        self._unanswered -= 1
        if self._unanswered >= 0:
            raise UnansweredError("the offsets of partitions could not be read")
        return {}


def store_of(folder: Path, unanswered: int) -> BackupStore:
    repository = Repository(folder)
    repository.create()
    source = BackupSource(RestartingCluster(unanswered), lambda _: True, lambda: NO_GROUPS)  # type: ignore[arg-type]
    writer: Any = None  # nothing is stored
    return BackupStore(repository, source, writer, NO_GROUPS, spool=folder / "spool", generation_age=0.0)


def test_generation_when_the_source_does_not_answer_then_the_next_commit_writes_it(tmp_path: Path) -> None:
    store = store_of(tmp_path, unanswered=1)
    with logged_events("kafkafmt.backup.store") as logged:
        store.complete_commit(is_last=False)
    assert not store.generations
    assert [line["error"] for line in logged] == ["the offsets of partitions could not be read"]
    store.complete_commit(is_last=False)
    assert len(store.generations) == 1


def test_last_generation_when_the_source_does_not_answer_at_first_then_is_written(tmp_path: Path) -> None:
    store = store_of(tmp_path, unanswered=1)
    store.complete_commit(is_last=True)
    assert len(store.generations) == 1


def test_last_generation_when_the_source_never_answers_then_the_error_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.coordinators._COORDINATOR_SECONDS", 0.0)
    store = store_of(tmp_path, unanswered=100)
    with pytest.raises(kafka_errors.RetriableError, match="the offsets of partitions could not be read"):
        store.complete_commit(is_last=True)
    assert not store.generations
