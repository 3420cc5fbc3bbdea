"""A folder of a source that is deleted while the source is listed, or followed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kafkafmt.log.directory import FollowedFolders
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.sources.directory import DirectorySource
from kafkafmt.types import TopicPartition
from mirror.folders import batches, put_log
from mirror.test_loop import PARTITION, NotingTarget, mirror_to


@pytest.mark.parametrize("follows", [True, False])
def test_source_when_a_folder_is_deleted_after_it_was_listed_then_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follows: bool
) -> None:
    for name in ("kept-0", "deleted-0"):
        put_log(tmp_path / "source" / name, batches(0, 10))
    refresh = FollowedFolders.refresh

    def overtaken(self: FollowedFolders) -> set[TopicPartition]:
        found = refresh(self)
        shutil.rmtree(tmp_path / "source" / "deleted-0", ignore_errors=True)
        return found

    monkeypatch.setattr(FollowedFolders, "refresh", overtaken)
    options = MirrorOptions(tmp_path / "source", tmp_path / "target", follows=follows)
    source = DirectorySource(tmp_path / "source", options)
    assert source.partitions() == [TopicPartition("kept", 0)]


class FollowedSource(DirectorySource):
    """Changes its folder after all was read, before it looks for changes. `on_look` is called when it is asked."""

    change: Callable[[Path], None]
    on_look: Callable[[Sequence[TopicPartition]], None]
    has_changed = False

    def partitions(self) -> Sequence[TopicPartition]:
        found = super().partitions()
        self.on_look(found)
        return found

    def _refresh(self) -> None:
        if not self.has_changed:
            self.has_changed = True
            self.change(Path(self.name) / str(PARTITION))
        super()._refresh()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkafmt.mirror.sources.directory._LOOK_SECONDS", 0)
    monkeypatch.setattr("kafkafmt.mirror.sources.directory._LIST_SECONDS", 0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("interval", ["commit_interval", "progress_interval"])
def test_mirror_when_a_folder_that_it_follows_is_deleted_then_commits_and_reports_without_it(
    tmp_path: Path, interval: str, ends: bool
) -> None:
    mirror = mirror_to(NotingTarget, tmp_path, FollowedSource, follows=True, **{interval: 1e-9})
    source: Any = mirror._source

    def delete(folder: Path) -> None:
        shutil.rmtree(folder)
        if ends:
            mirror.end()

    source.change = delete
    source.on_look = lambda found: None if found else mirror.end()
    mirror.run()
    target: Any = mirror._target
    assert target.kept == {PARTITION: 10}
    assert mirror.statistics.lag == ({PARTITION: 0} if ends else {})


@pytest.mark.usefixtures("at_once")
def test_folder_when_it_is_replaced_just_before_the_source_is_listed_then_is_a_new_partition(
    tmp_path: Path,
) -> None:
    mirror = mirror_to(NotingTarget, tmp_path / "source", FollowedSource, follows=True, commit_interval=1e-9)
    other = put_log(tmp_path / "other", batches(0, 20))
    source: Any = mirror._source
    target: Any = mirror._target

    def replace(folder: Path) -> None:
        shutil.rmtree(folder)
        other.rename(folder)

    looks = iter(range(20))
    source.change = replace
    source.on_look = lambda _: mirror.end() if len(target.begun) == 2 or next(looks, None) is None else None
    mirror.run()
    assert target.begun == [0, 10]
    assert target.kept == {PARTITION: 20}
