"""A folder of a source that is deleted while the source is listed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kafkafmt.log.directory import FollowedFolders
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.sources.directory import DirectorySource
from kafkafmt.types import TopicPartition
from mirror.folders import batches, put_log


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
