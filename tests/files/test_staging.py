"""What is written beside its target: it appears whole, and what killed writers left is removed by the next."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkafmt._util.files import NotRegularFileError
from kafkafmt._util.locks import locked_file, try_lock
from kafkafmt._util.staging import StagedFolder, staged_file

KILLED = """
import os, signal, sys
from pathlib import Path
from kafkafmt._util.staging import StagedFolder, staged_file

folder = StagedFolder(Path(sys.argv[1]) / "folder")
(folder.path / "part").touch()
with staged_file(Path(sys.argv[1]) / "file") as file:
    file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def stage(
    target: Path, in_block: Callable[[], None], before_rename: Callable[[os.stat_result], None]
) -> None:
    with staged_file(target, before_rename=before_rename):
        in_block()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_file_when_its_block_ends_then_has_the_name_of_its_target(tmp_path: Path) -> None:
    statuses: list[os.stat_result] = []
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with staged_file(target, before_rename=statuses.append) as file:
        file.write(b"new")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert [status.st_size for status in statuses] == [3]
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("fails", ["block", "fsync", "before_rename", "rename"])
def test_file_when_a_step_fails_then_nothing_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    if fails == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    elif fails == "rename":
        monkeypatch.setattr(Path, "rename", fail)
    in_block = fail if fails == "block" else lambda: None
    before_rename = fail if fails == "before_rename" else lambda status: None
    with pytest.raises(OSError, match="Input/output error"):
        stage(tmp_path / "file", in_block, before_rename)
    assert names(tmp_path) == []


@pytest.mark.parametrize("other", ["fifo", "folder"])
def test_file_when_its_target_is_no_file_then_that_stays_and_is_told(tmp_path: Path, other: str) -> None:
    """A rename would replace a device, as `/dev/null`, by a file."""
    target = tmp_path / "it"
    (os.mkfifo if other == "fifo" else os.mkdir)(target)
    expected = "expected a regular file, found a " + ("FIFO" if other == "fifo" else "folder")
    with pytest.raises(NotRegularFileError, match=expected), staged_file(target):
        pass
    assert names(tmp_path) == ["it"]
    assert not target.is_file()


def test_staged_ones_when_their_folder_is_missing_then_the_error_names_the_target(tmp_path: Path) -> None:
    target = tmp_path / "missing" / "it"
    with pytest.raises(FileNotFoundError) as raised, staged_file(target):
        pass
    assert raised.value.filename == str(target)
    with pytest.raises(FileNotFoundError) as raised:
        StagedFolder(target)
    assert raised.value.filename == str(target)


def test_file_when_the_disk_is_full_then_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left") as raised, staged_file(tmp_path / "file"):
        pass
    assert raised.value.filename == str(tmp_path / "file")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_file_when_what_is_buffered_does_not_fit_then_the_error_names_it(tmp_path: Path) -> None:
    """To close the file would write it once more, and raise an error without a name."""

    def write_to_full_disk() -> None:
        with Path("/dev/full").open("wb") as full, staged_file(tmp_path / "file") as file:
            file.write(b"content")
            os.dup2(full.fileno(), file.fileno())

    with pytest.raises(OSError, match="No space left") as raised:
        write_to_full_disk()
    assert raised.value.filename == str(tmp_path / "file")
    assert names(tmp_path) == []


def test_file_when_it_is_published_then_flushes_the_file_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(descriptor: int) -> None:
        steps.append("flush folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "flush file")
        fsync(descriptor)

    def noted_rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    with staged_file(tmp_path / "file") as file:
        file.write(b"content")
    StagedFolder(tmp_path / "folder").publish()
    assert steps == ["flush file", "rename", "flush folder", "flush folder", "rename", "flush folder"]


@pytest.mark.parametrize(("is_private", "mode"), [(True, 0o700), (False, 0o755)])
def test_folder_when_it_is_private_then_only_this_user_has_access(
    tmp_path: Path, is_private: bool, mode: int
) -> None:
    before = os.umask(0o022)
    try:
        staged = StagedFolder(tmp_path / "folder", is_private=is_private)
    finally:
        os.umask(before)
    assert staged.path.stat().st_mode & 0o777 == mode
    staged.remove()


def test_folder_when_it_was_published_then_remove_leaves_it(tmp_path: Path) -> None:
    staged = StagedFolder(tmp_path / "folder")
    staged.publish()
    staged.remove()
    assert names(tmp_path) == ["folder"]


def test_staged_ones_when_their_writer_was_killed_then_the_next_removes_them(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2
    StagedFolder(tmp_path / "folder").remove()
    with staged_file(tmp_path / "file"):
        pass
    assert names(tmp_path) == ["file"]


def test_staged_ones_when_their_writer_lives_then_the_next_leaves_them(tmp_path: Path) -> None:
    first, second = StagedFolder(tmp_path / "it"), StagedFolder(tmp_path / "it")
    with staged_file(tmp_path / "it") as file:
        assert len(names(tmp_path)) == 3
        file.write(b"third")
    first.remove()
    second.remove()
    assert names(tmp_path) == ["it"]


def test_staged_ones_when_the_file_system_has_no_locks_then_all_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / ".file.1.tmp").touch()
    with staged_file(tmp_path / "file"):
        pass
    assert names(tmp_path) == [".file.1.tmp", "file"]


@pytest.mark.parametrize("other", ["fifo", "link"])
def test_staged_ones_when_something_else_has_such_a_name_then_it_stays(tmp_path: Path, other: str) -> None:
    path = tmp_path / ".file.1.tmp"
    if other == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with staged_file(tmp_path / "file"):
        pass
    assert names(tmp_path) == [".file.1.tmp", "file"]


@pytest.mark.parametrize("remove", [True, False])
def test_locked_file_when_its_block_runs_then_nobody_else_gets_the_lock(tmp_path: Path, remove: bool) -> None:
    path = tmp_path / "lock"
    with locked_file(path, remove=remove), path.open("rb") as other:
        assert not try_lock(other.fileno())
    assert path.exists() is not remove
