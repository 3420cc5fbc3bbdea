"""Files on HDFS, where a rename to a name that exists is two steps: their writer may be killed between both."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileType, LocalFileSystem

from kafkafmt.storage import RemotePath, RemoteStorage, read_file, storage_of, write_file
from kafkafmt.storage.base import is_temporary_name
from kafkafmt.storage.hdfs import HdfsFileSystem


class Killed(BaseException):
    """Stands for the end of the process."""


class Hdfs:
    """The local file system with the renames and errors of PyArrow's HDFS. before: called before each change."""

    type_name = "hdfs"

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.local, self.before = LocalFileSystem(), before

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.local, name)

        def changing(*arguments: Any, **named: Any) -> Any:
            self.before()
            return call(*arguments, **named)

        return changing if name.startswith(("create", "open_output")) else call

    def delete_file(self, path: str) -> None:
        self.before()
        self._ensure_there(path)
        self.local.delete_file(path)

    def move(self, source: str, target: str) -> None:
        self.before()
        self._ensure_there(source)
        if self.local.get_file_info(target).type != FileType.NotFound:
            self.local.delete_file(target)
            self.before()
            self._ensure_there(source)
        self.local.move(source, target)

    def _ensure_there(self, path: str) -> None:
        if self.local.get_file_info(path).type == FileType.NotFound:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def at(folder: Path, hdfs: Hdfs) -> RemotePath:
    storage = RemoteStorage(HdfsFileSystem(hdfs), "hdfs://host")
    return RemotePath(storage, str(folder / "topics.ini"))


def listed(path: RemotePath) -> list[str]:
    storage = storage_of(path)
    with storage.entries(path.parent) as entries:
        names = [entry.name for entry in entries if not is_temporary_name(entry.name)]
    assert names == [name for name, _ in storage.walk(path.parent) if not is_temporary_name(name)]
    return names


def test_file_when_it_is_replaced_then_a_reader_finds_one_of_both_at_each_moment(tmp_path: Path) -> None:
    found = []
    path = at(tmp_path, Hdfs())
    write_file(path, b"before")

    def look() -> None:
        assert listed(path) == ["topics.ini"]
        found.append((read_file(path), path.stat().st_size))

    write_file(at(tmp_path, Hdfs(look)), b"the one after")
    look()
    assert sorted(set(found)) == [(b"before", 6), (b"the one after", 13)]
    assert [one.name for one in tmp_path.iterdir()] == ["topics.ini"]


def test_file_when_its_writer_is_killed_at_any_step_then_one_of_both_is_there_and_can_be_replaced_and_deleted(
    tmp_path: Path,
) -> None:
    steps, is_killed = 0, True
    while is_killed:
        folder, left = tmp_path / str(steps), steps
        path = at(folder, Hdfs())
        write_file(path, b"before")

        def count() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        try:
            write_file(at(folder, Hdfs(count)), b"after")
            is_killed = False
        except Killed:
            steps += 1
        assert read_file(path) in (b"before", b"after")
        assert listed(path) == ["topics.ini"]
        if steps % 2:
            write_file(path, b"later")
            assert read_file(path) == b"later"
            assert not (folder / ".topics.ini.next.tmp").exists()
        storage_of(path).delete(path)
        assert not path.exists()
        assert listed(path) == []
        with pytest.raises(FileNotFoundError):
            read_file(path)
    assert steps > 4


def test_file_when_it_is_deleted_twice_then_the_second_time_it_is_missing(tmp_path: Path) -> None:
    path = at(tmp_path, Hdfs())
    write_file(path, b"before")
    files = HdfsFileSystem(Hdfs())
    files.delete_file(path.path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        files.delete_file(path.path)
    storage_of(path).delete(path)


def test_file_when_another_writer_replaces_it_at_any_step_then_the_file_of_one_of_them_stays(
    tmp_path: Path,
) -> None:
    steps, is_during = 0, True
    while is_during:
        folder, left = tmp_path / str(steps), steps
        path = at(folder, Hdfs())
        write_file(path, b"before")

        def replace(path: RemotePath = path) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                write_file(path, b"other")

        with suppress(OSError):
            write_file(at(folder, Hdfs(replace)), b"after")
        is_during = left < 0
        steps += 1
        assert read_file(path) in ((b"after", b"other") if is_during else (b"after",))
        assert listed(path) == ["topics.ini"]
    assert steps > 4


def test_file_system_when_pickled_then_reads_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    found = pickle.loads(pickle.dumps(HdfsFileSystem(LocalFileSystem())))
    with found.open_input_file(str(tmp_path / "file")) as file:
        assert file.read() == b"1"
