"""What a dry run leaves, without a cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kafkafmt.restore.engine import Restore


def test_restore_when_it_is_only_checked_then_the_file_of_its_offset_map_is_not_made(tmp_path: Path) -> None:
    restore: Any = object.__new__(Restore)
    restore.topics = []
    restore.origin, restore._cluster = SimpleNamespace(name="restore of a backup"), None
    restore._mirror_options = SimpleNamespace(offset_map=str(tmp_path / "map"))
    checked: list[object] = []
    restore._target = SimpleNamespace(ensure_restorable=lambda _, begun: checked.append(begun))
    restore.check()
    assert checked == [None]
    assert list(tmp_path.iterdir()) == []
