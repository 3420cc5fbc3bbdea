"""An upload that must not replace a file, while another writer stores one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from file_systems import CountingHandler
from kafkafmt.records.retries import Retries
from kafkafmt.storage import RemotePath, RemoteStorage

fs = pytest.importorskip("pyarrow.fs")

OTHERS = b"of another writer"


class SharedHandler(CountingHandler):
    """A store in which another writer stores a file at some moment.

    opened, published: called before each upload begins, and after its file is there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.opened: Callable[[], object] = lambda: None
        self.published: Callable[[], object] = lambda: None

    def open_output_stream(self, path: str, metadata: object) -> Any:
        self.opened()
        return self.local.open_output_stream(path)

    def move(self, source: str, target: str) -> None:
        self.local.move(source, target)
        self.published()

    def create_dir(self, path: str, recursive: bool) -> None:
        self.local.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self.local.delete_file(path)


@pytest.fixture
def handler() -> SharedHandler:
    return SharedHandler()


@pytest.fixture
def path(handler: SharedHandler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemotePath:
    monkeypatch.setattr("kafkafmt.records.retries._FIRST_WAIT_SECONDS", 0)
    storage = RemoteStorage(fs.PyFileSystem(handler), "far://", retries=Retries())
    return RemotePath(storage, str(tmp_path / "folder" / "object"))


@pytest.mark.parametrize("data", [b"", b"mine"])
def test_new_file_when_another_writer_stores_it_between_two_attempts_then_that_one_stays(
    handler: SharedHandler, path: RemotePath, data: bytes
) -> None:
    """As an empty segment of a mirror, in place of which another mirror stores the first segment."""
    file = Path(path.path)

    def fail_once() -> None:
        if not file.exists():
            file.write_bytes(OTHERS)
            raise ConnectionError("the connection was lost")

    handler.opened = fail_once
    with pytest.raises(FileExistsError) as raised:
        path.storage.write_new(path, [data])
    assert raised.value.filename == str(path)
    assert [(one.name, one.read_bytes()) for one in file.parent.iterdir()] == [("object", OTHERS)]


def test_new_file_when_another_writer_replaces_it_at_once_then_that_one_stays(
    handler: SharedHandler, path: RemotePath
) -> None:
    file = Path(path.path)
    handler.published = lambda: file.write_bytes(OTHERS)
    with pytest.raises(FileExistsError):
        path.storage.write_new(path, [])
    assert [(one.name, one.read_bytes()) for one in file.parent.iterdir()] == [("object", OTHERS)]
