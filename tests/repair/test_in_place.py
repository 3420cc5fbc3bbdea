"""Repair in place: what happens if it is killed, if the disk is full, and if the source is a link."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkafmt._util.directory_lock import DirectoryLockedError
from kafkafmt.jobs.repair import RepairError, repair, repair_in_place
from kafkafmt.jobs.repair.partition import PartitionWriter
from log.samples import batch
from repair.damaged import damaged_log

_KILLED = 77
# The calls that change folders. A kill before each of them leaves another state.
_CALLS = ("mkdir", "rename", "replace", "link", "unlink", "rmdir")


def _in_child(job: Callable[[], object]) -> int:
    """Run a job in a forked process, and return its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            job()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _repair_until_killed(folder: Path, calls: int) -> int:
    """Repair a folder in a process that ends before its call number `calls`. Returns its exit status."""

    def job() -> None:
        left = calls

        def counted(call: Callable[..., object]) -> Callable[..., object]:
            def wrapper(*arguments: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    os._exit(_KILLED)
                return call(*arguments, **options)

            return wrapper

        for name in _CALLS:
            setattr(os, name, counted(getattr(os, name)))
        repair_in_place(folder)

    return _in_child(job)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _contents(folder: Path) -> Counter[bytes]:
    return Counter(
        path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "removed"
    )


@pytest.mark.full
def test_repair_when_killed_before_any_step_then_the_next_one_ends_it_and_no_replaced_file_is_lost(
    tmp_path: Path,
) -> None:
    before = _files(damaged_log(tmp_path / "before" / "t-0", 3).folder)
    repair_in_place(damaged_log(tmp_path / "whole" / "t-0", 3).folder)
    wanted = _files(tmp_path / "whole" / "t-0")
    for calls in range(200):
        folder = damaged_log(tmp_path / f"{calls}" / "t-0", 3).folder
        status = _repair_until_killed(folder, calls)
        if status == 0:
            break
        assert status == _KILLED
        assert not before.values() - _contents(folder).keys(), f"killed before call {calls}"
        repair_in_place(folder)
        assert _files(folder) == wanted, f"killed before call {calls}"
        assert not before.values() - _contents(folder).keys(), f"killed before call {calls}"
        assert not (folder / ".kafkafmt-repair").exists()
    assert 10 < calls < 199


def _append_as_a_broker(folder: Path) -> bytes:
    """Append a batch to the last segment of a folder, and return the batch."""
    appended = batch(10**6, 1)
    with max(folder.glob("*.log")).open("ab") as file:
        file.write(appended)
    return appended


def _has_batch(folder: Path, batch: bytes) -> bool:
    return any(batch in path.read_bytes() for path in folder.glob("*.log"))


@pytest.mark.full
def test_repair_when_a_broker_has_appended_since_one_was_killed_then_the_log_keeps_the_batch(
    tmp_path: Path,
) -> None:
    refused = 0
    for calls in range(200):
        folder = damaged_log(tmp_path / f"{calls}" / "t-0", 3).folder
        if _repair_until_killed(folder, calls) == 0:
            break
        appended = _append_as_a_broker(folder)
        try:
            repair_in_place(folder)
        except RepairError:
            refused += 1
        assert _has_batch(folder, appended), f"killed before call {calls}"
    assert refused > 2


def test_repair_when_a_broker_has_appended_since_one_failed_then_refused_and_nothing_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _half_repaired(tmp_path / "t-0", monkeypatch)
    appended = _append_as_a_broker(folder)
    log, before = max(folder.glob("*.log")), _files(folder)
    with pytest.raises(RepairError) as caught:
        repair_in_place(folder)
    message = str(caught.value)
    assert message.startswith(
        f"{log}: changed since, as by a broker: expected {log.stat().st_size - len(appended)} "
    )
    assert f"found {log.stat().st_size} bytes of " in message
    assert _files(folder) == before
    (folder / ".kafkafmt-repair").rename(tmp_path / "elsewhere")  # as the message says
    repair_in_place(folder)
    assert _has_batch(folder, appended)
    assert not repair_in_place(folder).partitions[0].is_changed


@pytest.mark.parametrize("change", ["made", "removed"])
def test_repair_when_a_broker_has_made_or_removed_a_file_since_one_failed_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    folder = _half_repaired(tmp_path / "t-0", monkeypatch)
    new = folder / ".kafkafmt-repair" / "new"
    if change == "made":
        path = min({folder / one.name for one in new.iterdir()} - {*folder.iterdir()})
        path.write_bytes(b"index")
    else:
        path = max(folder.glob("*.log"))
        path.unlink()
    with pytest.raises(RepairError, match="no file") as caught:
        repair_in_place(folder)
    assert str(path) in str(caught.value)


def test_repair_when_another_version_was_killed_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0.1.0 wrote the names of the removed files only."""
    folder = _half_repaired(tmp_path / "t-0", monkeypatch)
    (folder / ".kafkafmt-repair" / "removed").write_text("[]")
    with pytest.raises(RepairError, match="removed: written by another version"):
        repair_in_place(folder)


def _half_repaired(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose repair has failed after it was committed, and before it has replaced a file."""
    damaged_log(folder, 3)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", fail)
        with pytest.raises(OSError, match="No space left"):
            repair_in_place(folder)
    return folder


def test_repair_when_the_disk_is_full_then_nothing_is_changed_or_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = damaged_log(tmp_path / "t-0", 3).folder
    before = _files(folder)

    def fail(self: PartitionWriter) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PartitionWriter, "_write_epochs", fail)
        with pytest.raises(OSError, match="No space left"):
            repair_in_place(folder)
    assert _files(folder) == before
    assert not [path for path in folder.iterdir() if path.is_dir()]


def test_repair_when_there_are_no_hard_links_then_keeps_replaced_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = damaged_log(tmp_path / "t-0", 3).folder
    before = _files(folder)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    repair_in_place(folder)
    assert not before.values() - _contents(folder).keys()
    assert not repair_in_place(folder).partitions[0].is_changed


@pytest.mark.parametrize("name", ["t-0", "copy"])
def test_repair_when_the_source_is_a_link_into_the_directory_of_a_broker_then_refused(
    tmp_path: Path, name: str
) -> None:
    folder = damaged_log(tmp_path / "kafka" / "t-0", 3).folder
    before = _files(folder)
    link = tmp_path / "links" / name
    link.parent.mkdir()
    link.symlink_to(folder)
    ready, done = os.pipe(), os.pipe()

    def hold() -> None:
        from kafkafmt._util.directory_lock import lock_log_directory

        with lock_log_directory(folder.parent, exclusive=True):
            os.write(ready[1], b"1")
            os.read(done[0], 1)

    child = os.fork()
    if child == 0:
        try:
            hold()
        finally:
            os._exit(0)
    try:
        os.read(ready[0], 1)
        for source in (link, link.parent):
            if source == link or name == "t-0":
                with pytest.raises(DirectoryLockedError):
                    repair_in_place(source)
    finally:
        os.write(done[1], b"1")
        os.waitpid(child, 0)
        for descriptor in (*ready, *done):
            os.close(descriptor)
    assert _files(folder) == before


def test_repair_when_the_target_is_a_link_to_an_empty_folder_then_written_there(tmp_path: Path) -> None:
    folder = damaged_log(tmp_path / "t-0", 3).folder
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    repair(folder, tmp_path / "link")
    assert list((tmp_path / "disk").glob("*.log"))
