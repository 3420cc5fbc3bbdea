"""What every storage promises: local folders, and the file systems of `pyarrow.fs`, S3 on loopback among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from file_systems import BUCKET
from kafkafmt.storage import (
    RemotePath,
    RemoteStorage,
    StoragePath,
    Storages,
    read_file,
    storage_of,
    write_file,
)

fs = pytest.importorskip("pyarrow.fs")


def local(tmp_path: Path, request: pytest.FixtureRequest) -> StoragePath:
    return tmp_path / "folder"


def pyarrow_local(tmp_path: Path, request: pytest.FixtureRequest) -> StoragePath:
    return RemotePath(RemoteStorage(fs.LocalFileSystem(), "far://"), str(tmp_path / "folder"))


def mock(tmp_path: Path, request: pytest.FixtureRequest) -> StoragePath:
    return RemotePath(RemoteStorage(fs._MockFileSystem(), "mock://"), "folder")


def subtree(tmp_path: Path, request: pytest.FixtureRequest) -> StoragePath:
    (tmp_path / "base").mkdir()
    tree = fs.SubTreeFileSystem(str(tmp_path / "base"), fs.LocalFileSystem())
    return RemotePath(RemoteStorage(tree, "tree://"), "folder")


def s3(tmp_path: Path, request: pytest.FixtureRequest) -> StoragePath:
    request.getfixturevalue("s3")  # makes the bucket
    options = request.getfixturevalue("s3_options")
    path = Storages(options).locate(f"s3://{BUCKET}/{tmp_path.name}/folder")
    assert isinstance(path, RemotePath)
    return path


STORES = [local, pyarrow_local, mock, subtree, s3]


@pytest.fixture(params=STORES, ids=lambda store: store.__name__)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    """A folder of a storage. It does not exist."""
    make: Callable[[Path, pytest.FixtureRequest], StoragePath] = request.param
    return make(tmp_path, request)


class TestStorage:
    def test_walk_when_files_are_in_folders_then_has_all_with_their_sizes(self, folder: StoragePath) -> None:
        write_file(folder / "one", b"1")
        write_file(folder / "sub" / "two", b"22")
        write_file(folder / "sub" / "deeper" / "three", b"")
        found = {path: status.st_size for path, status in storage_of(folder).walk(folder)}
        assert found == {"one": 1, "sub/two": 2, "sub/deeper/three": 0}

    def test_walk_when_the_folder_is_missing_then_has_no_files(self, folder: StoragePath) -> None:
        assert list(storage_of(folder).walk(folder)) == []

    def test_write_new_when_a_file_is_there_then_it_stays_as_it_was(self, folder: StoragePath) -> None:
        path = folder / "once"
        storage_of(path).write_new(path, [b"first"])
        with pytest.raises(FileExistsError) as error:
            storage_of(path).write_new(path, [b"second"])
        assert error.value.filename == str(path)
        assert read_file(path) == b"first"
        assert [name for name, _ in storage_of(folder).walk(folder)] == ["once"]
