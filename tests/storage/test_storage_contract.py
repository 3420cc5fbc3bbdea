"""What every storage promises: local folders, and the file systems of `pyarrow.fs`, S3 on loopback among them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from file_systems import BUCKET
from kafkafmt.storage import (
    LOCAL,
    RemotePath,
    RemoteStorage,
    StoragePath,
    Storages,
    read_file,
    storage_of,
    write_file,
)
from kafkafmt.types import TopicPartition
from log.samples import batches, name

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


def s3_subtree(tmp_path: Path, request: pytest.FixtureRequest) -> StoragePath:
    tree = fs.SubTreeFileSystem(BUCKET, request.getfixturevalue("s3"))
    return RemotePath(RemoteStorage(tree, "tree://"), f"{tmp_path.name}/folder")


STORES = [local, pyarrow_local, mock, subtree, s3, s3_subtree]
NAMES = ["with space", "Überweisungen-日本", "100%", "a%20b", "a+b&c=d", "#1?.zst"]


@pytest.fixture(params=STORES, ids=lambda store: store.__name__)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> StoragePath:
    """A folder of a storage. It does not exist."""
    make: Callable[[Path, pytest.FixtureRequest], StoragePath] = request.param
    return make(tmp_path, request)


def names(folder: StoragePath) -> list[str]:
    """The names of the files below a folder."""
    return sorted(name for name, _ in storage_of(folder).walk(folder))


class TestStorage:
    def test_entries_when_a_folder_has_files_and_folders_then_are_those(self, folder: StoragePath) -> None:
        storage = storage_of(folder)
        write_file(folder / "file", b"12")
        write_file(folder / "sub" / "deeper", b"")
        with storage.entries(folder) as entries:
            found = {entry.name: (entry.is_file(), entry.is_dir(), entry) for entry in entries}
        assert {name: kinds[:2] for name, kinds in found.items()} == {
            "file": (True, False),
            "sub": (False, True),
        }
        path = storage.path_of(folder, found["file"][2])
        assert (path.name, path.stat().st_size) == ("file", 2)

    def test_entries_when_the_folder_is_missing_then_error_names_it(self, folder: StoragePath) -> None:
        with pytest.raises(FileNotFoundError) as error, storage_of(folder).entries(folder / "none"):
            pass
        assert str(error.value.filename) == str(folder / "none")

    @pytest.mark.parametrize("unusual", NAMES)
    def test_file_when_its_name_is_unusual_then_is_written_listed_read_and_deleted(
        self, folder: StoragePath, unusual: str
    ) -> None:
        path, storage = folder / unusual / unusual, storage_of(folder)
        write_file(path, b"content")
        assert names(folder) == [f"{unusual}/{unusual}"]
        with storage.entries(folder / unusual) as entries:
            assert [entry.name for entry in entries] == [unusual]
        assert read_file(path) == b"content"
        storage.delete(path)
        assert names(folder) == []

    def test_open_when_a_range_is_read_then_has_its_bytes(self, folder: StoragePath) -> None:
        data = bytes(range(256)) * 10
        write_file(folder / "file", data)
        with storage_of(folder).open(folder / "file") as file:
            assert (file.read(10), file.read(5)) == (data[:10], data[10:15])
            file.seek(2000)
            assert (file.read(), file.read(), file.read(3)) == (data[2000:], b"", b"")
            file.seek(3000)
            assert file.read(4) == b""

    def test_open_when_the_file_is_missing_then_error_names_it(self, folder: StoragePath) -> None:
        with pytest.raises(FileNotFoundError) as error:
            read_file(folder / "none")
        assert str(error.value.filename) == str(folder / "none")

    def test_records_when_opened_from_a_range_then_have_its_batches(self, folder: StoragePath) -> None:
        data = batches(0, 20, 5)
        path = folder / "orders-0" / name(0)
        write_file(path, b"".join(data))
        start = len(data[0])
        with storage_of(path).open_records(
            path, start, None, topic_partition=None, max_decompressed_bytes=1 << 20
        ) as records:
            assert [record.offset for record in records.records()] == list(range(5, 20))
            assert records.topic_partition == TopicPartition("orders", 0)

    def test_write_when_a_file_is_there_then_replaces_it(self, folder: StoragePath) -> None:
        path = folder / "file.zst"  # PyArrow would compress it
        for chunks in ([b"first"], [b"se", memoryview(b"cond")], []):
            storage_of(path).write(path, chunks)
            assert read_file(path) == b"".join(chunks)
            assert names(folder) == ["file.zst"]

    def test_write_when_chunks_raise_then_the_file_stays_as_it_was(self, folder: StoragePath) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"second"
            raise ZeroDivisionError

        write_file(folder / "file", b"first")
        for path in (folder / "file", folder / "other"):
            with pytest.raises(ZeroDivisionError):
                storage_of(path).write(path, chunks())
        assert read_file(folder / "file") == b"first"
        assert names(folder) == ["file"]

    def test_put_when_a_file_is_local_then_is_moved(self, folder: StoragePath, tmp_path: Path) -> None:
        source = tmp_path / "source"
        for content in (b"first" * 100_000, b"second", b""):
            source.write_bytes(content)
            storage_of(folder).put(source, folder / "sub" / "file")
            assert not source.exists()
            assert read_file(folder / "sub" / "file") == content
        assert names(folder) == ["sub/file"]

    def test_delete_when_a_file_or_folder_is_missing_then_is_no_error(self, folder: StoragePath) -> None:
        storage = storage_of(folder)
        storage.delete(folder / "none")
        storage.delete_folder(folder / "none")
        write_file(folder / "sub" / "one", b"1")
        write_file(folder / "sub" / "deeper" / "two", b"2")
        write_file(folder / "subway", b"3")
        storage.delete_folder(folder / "sub")
        assert names(folder) == ["subway"]
        storage.delete(folder / "subway")
        assert names(folder) == []

    def test_stamp_when_a_file_is_replaced_then_differs_at_last(
        self, folder: StoragePath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kafkafmt.storage.remote.LISTED_FOR_NS", 1)
        storage, path = storage_of(folder), folder / "file"
        write_file(path, b"1")
        before, changed_ns = storage.stamp(path), storage.changed_ns(folder)
        write_file(path, b"22")
        assert storage.stamp(path) != before
        assert storage.changed_ns(folder) > changed_ns

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


def test_write_new_when_many_writers_are_at_once_then_one_of_them_has_written(tmp_path: Path) -> None:
    path, writers = tmp_path / "once", 8
    barrier = threading.Barrier(writers)

    def chunks(number: int) -> Iterator[bytes]:
        barrier.wait(30)  # all have seen that there is no file
        yield b"%d" % number

    def write(number: int) -> int | None:
        try:
            LOCAL.write_new(path, chunks(number))
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(writers) as threads:
        written = [number for number in threads.map(write, range(writers)) if number is not None]
    assert [b"%d" % number for number in written] == [path.read_bytes()]
    assert names(tmp_path) == ["once"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("max_attempts=0", "option max_attempts: expected 1 or more, found '0'"),
        (
            "retry_limit_seconds=soon",
            "option retry_limit_seconds: expected a number of seconds, found 'soon'",
        ),
        (
            "connect_timeout_seconds=0",
            "option connect_timeout_seconds: expected a number of seconds, found '0'",
        ),
        ("request_timeout_seconds=inf", "option request_timeout_seconds: expected a number of seconds"),
    ],
)
def test_uri_when_an_option_of_requests_is_wrong_then_error_tells(query: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Storages().locate(f"s3://{BUCKET}/logs?region=us-east-1&{query}")


def test_uri_when_the_store_has_no_timeouts_then_they_are_refused() -> None:
    with pytest.raises(ValueError, match="only s3:// has timeouts"):
        Storages({"connect_timeout_seconds": "3"}).locate(f"gs://{BUCKET}/logs")
