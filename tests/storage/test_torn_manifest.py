"""A damaged newest manifest: the error names the generation that can still be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from backup.stored import StoredBackup
from kafkafmt.storage.backups.errors import BackupError
from kafkafmt.storage.backups.generations import generation_names, generation_path, read_chosen


def test_newest_manifest_when_torn_then_the_error_names_the_generation_before_it(tmp_path: Path) -> None:
    target = tmp_path / "backup"
    spool = tmp_path / "spool"
    spool.mkdir()
    stored = StoredBackup(target, spool)
    stored.grow()
    stored.grow()
    earlier, newest = generation_names(target)
    path = generation_path(target, newest)
    assert isinstance(path, Path)
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(BackupError, match=f"--generation {earlier}, or backup"):
        read_chosen(target)
    assert read_chosen(target, earlier).name == earlier
