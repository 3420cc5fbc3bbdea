"""The identity of a backup, which encrypted segments are bound to, while two runs begin it."""

from __future__ import annotations

from pathlib import Path

import pytest

from backup.stored import StoredBackup
from kafkafmt.storage.backups.errors import BackupError
from kafkafmt.storage.backups.generations import generation_names


def test_generation_when_another_run_has_replaced_the_identity_then_is_refused(tmp_path: Path) -> None:
    backup = StoredBackup(tmp_path / "backup", tmp_path)
    backup.grow()
    other = StoredBackup(tmp_path / "other", tmp_path)
    identity = "kafkafmt-backup.json"
    (tmp_path / "other" / identity).replace(tmp_path / "backup" / identity)
    with pytest.raises(BackupError, match=rf"{identity}: id: expected [0-9a-f]{{32}}, found {other.id}"):
        backup.grow()
    assert len(generation_names(backup.target)) == 1
