"""The spool in the folder for temporary files, which others share: its name is known, and only this user has access."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafkafmt._util.staging import StagedFolder
from kafkafmt.mirror.targets.plain_store import spool_path

TARGET = "s3://bucket/logs"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_spool_when_no_folder_is_given_then_is_in_one_that_only_this_user_can_access(temporary: Path) -> None:
    folder = spool_path(None, TARGET).parent
    assert folder.parent == temporary
    assert folder.stat().st_mode & 0o777 == 0o700
    assert spool_path(None, TARGET).parent == folder


@pytest.mark.parametrize("kind", ["open", "link", "file"])
def test_spool_when_another_has_taken_its_folder_then_is_refused(temporary: Path, kind: str) -> None:
    folder = temporary / f"kafkafmt-spool-{os.getuid()}.d"
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "link":
        (temporary / "elsewhere").mkdir(0o700)
        folder.symlink_to(temporary / "elsewhere")
    else:
        folder.touch(0o600)
    with pytest.raises(OSError, match=r"only this user can read|File exists"):
        spool_path(None, TARGET)


def test_spool_when_a_folder_is_given_then_is_in_it(temporary: Path) -> None:
    assert spool_path(temporary / "mine", TARGET).parent == temporary / "mine"


def test_spool_when_release_0_1_0_was_killed_then_its_spool_is_removed_and_that_of_a_living_one_kept(
    temporary: Path,
) -> None:
    """That release had its spools in the folder for temporary files itself."""
    name = spool_path(None, TARGET).name
    dead, alive = temporary / f".{name}.7.tmp", StagedFolder(temporary / name)
    dead.mkdir()
    (dead / "0").touch()
    spool_path(None, TARGET)
    assert not dead.exists()
    assert alive.path.exists()
    alive.remove()
