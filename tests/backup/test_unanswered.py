"""Generations that are due while a broker of the source does not answer: they are written later."""

from __future__ import annotations

from pathlib import Path

import pytest

from backup.fake_cluster import Visibility, store_of
from kafkafmt.storage.backups.errors import BackupError
from logged_events import logged_events


def test_generation_when_the_source_does_not_answer_then_the_next_commit_writes_it(tmp_path: Path) -> None:
    store = store_of(tmp_path, unanswered=1)
    with logged_events("kafkafmt.backup.store") as logged:
        store.complete_commit(is_last=False)
    assert not store.generations
    assert [line["error"] for line in logged] == ["the offsets of partitions could not be read"]
    store.complete_commit(is_last=False)
    assert len(store.generations) == 1


def test_open_segments_when_the_source_does_not_answer_then_are_not_wanted_again_for_that_generation(
    tmp_path: Path,
) -> None:
    store = store_of(tmp_path, unanswered=2)
    wanted = []
    for _ in range(4):
        wanted.append(store.wants_open_segments())
        store.complete_commit(is_last=False)
    assert wanted == [True, False, False, True]
    assert len(store.generations) == 1  # the second one has nothing new


def test_last_generation_when_the_source_does_not_answer_at_first_then_is_written(tmp_path: Path) -> None:
    store = store_of(tmp_path, unanswered=1)
    store.complete_commit(is_last=True)
    assert len(store.generations) == 1


def test_last_generation_when_the_source_never_answers_then_the_error_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.coordinators._COORDINATOR_SECONDS", 0.0)
    store = store_of(tmp_path, unanswered=100)
    message = "the last generation was not written: the offsets of partitions could not be read"
    with pytest.raises(BackupError, match=message):
        store.complete_commit(is_last=True)
    assert not store.generations


@pytest.mark.parametrize(("topic", "names"), [("unlisted", ["t"]), ("deleted", [])])
def test_topic_when_two_listings_do_not_have_it_then_it_is_deleted_only_if_no_broker_knows_it(
    tmp_path: Path, topic: Visibility, names: list[str]
) -> None:
    store_of(tmp_path).complete_commit(is_last=True)
    store = store_of(tmp_path, shown=[topic])
    for _ in range(2):
        store.complete_commit(is_last=True)
    assert store.parent is not None
    assert [one.name for one in store.parent.topics] == names
