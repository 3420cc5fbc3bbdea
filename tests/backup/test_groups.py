"""The committed offsets of groups in the generations of one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from backup.backing_up import generation
from backup.fake_cluster import store_of
from backup.stored import TOPIC, StoredBackup
from kafkafmt.backup.groups import GroupOffsets
from kafkafmt.backup.store import BackupStore
from kafkafmt.storage.backups.manifest import GroupOffset


class Consumers:
    """A group that has read as far as `offset`."""

    offset = 0

    def read(self) -> GroupOffsets:
        return GroupOffsets(self.offset, {"readers": (GroupOffset("t", 0, self.offset),)})


def committed(folder: Path) -> int:
    """The offset of the group in the last generation."""
    return generation(folder).groups["readers"][0].offset


def commit(store: BackupStore, times: int) -> None:
    for _ in range(times):
        store.complete_commit(is_last=False)


@pytest.mark.parametrize(
    ("follows", "is_last", "generations", "offset"),
    [
        pytest.param(True, False, 2, 70, id="follows"),
        pytest.param(True, True, 2, 70, id="follows, last"),
        pytest.param(False, False, 1, 0, id="ends"),
        pytest.param(False, True, 2, 0, id="ends, last"),
    ],
)
def test_groups_when_only_they_have_changed_then_a_backup_that_follows_has_them_and_another_those_of_its_start(
    tmp_path: Path, follows: bool, is_last: bool, generations: int, offset: int
) -> None:
    consumers = Consumers()
    store = store_of(tmp_path, read_groups=consumers.read, follows=follows)
    commit(store, 3)  # nothing is new after the first generation
    assert (len(store.generations), committed(tmp_path)) == (1, 0)
    consumers.offset = 70
    commit(store, 1)
    store.complete_commit(is_last=is_last)
    assert (len(store.generations), committed(tmp_path)) == (generations, offset)


def test_groups_when_other_topics_are_selected_then_offsets_in_those_of_the_last_generation_stay(
    tmp_path: Path,
) -> None:
    earlier = StoredBackup(tmp_path / "backup", tmp_path).grow()
    store = store_of(tmp_path / "backup", read_groups=Consumers().read, matches=lambda topic: topic != TOPIC)
    store.complete_commit(is_last=True)
    readers = generation(tmp_path / "backup").groups["readers"]
    assert readers == (*earlier.groups["readers"], GroupOffset("t", 0, 0))
