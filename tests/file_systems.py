"""File systems for the tests of what reads from afar: one that counts what it is asked for, and S3 on loopback."""

from __future__ import annotations

import io
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystemHandler, FileType, LocalFileSystem, PyFileSystem

from kafkafmt.storage import RemotePath, RemoteStorage

LOOPBACK = "127.0.0.1"
BUCKET = "bucket"
_SERVER_LOG = logging.getLogger("werkzeug")
_REQUEST = re.compile(r"((?:GET|HEAD|PUT|POST|DELETE) \S+) HTTP")


class CountedFile(io.FileIO):
    """A file that notes position and size of each read."""

    reads: list[tuple[int, int]]

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads.append((self.tell(), size))
        return super().read(size)


class CountingHandler(FileSystemHandler):
    """The local file system; `reads` of files and `listings` of folders are what a store has to answer."""

    def __init__(self) -> None:
        self.local = LocalFileSystem()
        self.reads: list[tuple[int, int]] = []
        self.listings: list[str] = []

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None

    def get_type_name(self) -> str:
        return "counted"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return self.local.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> list[FileInfo]:
        self.listings.append(selector.base_dir)
        return self.local.get_file_info(selector)

    def open_input_file(self, path: str) -> pa.NativeFile:
        if self.local.get_file_info(path).type != FileType.File:
            raise FileNotFoundError(path)
        file = CountedFile(path)
        file.reads = self.reads
        return pa.PythonFile(file, mode="r")

    def _refuse(self, *arguments: object, **named: object) -> None:
        raise NotImplementedError("this file system is only read")

    open_input_stream = open_output_stream = open_append_stream = _refuse
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    copy_file = delete_file = move = _refuse


class SlowHandler(CountingHandler):
    """A store whose requests wait until the test releases them, if `is_slow` of their path.

    Requests of the thread `loop` do not wait; their paths are in `in_loop`. waits: called with the event that releases
    a request, in its thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop: int | None = None
        self.in_loop: list[str] = []
        self.is_slow: Callable[[str], bool] = lambda path: False
        self.waits: Callable[[threading.Event], object] = lambda released: None

    def request(self, path: str) -> None:
        if threading.get_ident() == self.loop:
            self.in_loop.append(path)
        elif self.is_slow(path):
            released = threading.Event()
            self.waits(released)
            assert released.wait(60)

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        self.request(paths[0])
        return super().get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> list[FileInfo]:
        self.request(selector.base_dir)
        return super().get_file_info_selector(selector)

    def open_input_file(self, path: str) -> pa.NativeFile:
        self.request(path)
        if self.local.get_file_info(path).type != FileType.File:
            raise FileNotFoundError(path)
        file = _SlowFile(path)
        file.reads, file.request = self.reads, self.request
        return pa.PythonFile(file, mode="r")


class _SlowFile(CountedFile):
    request: Callable[[str], None]

    def read(self, size: int | None = -1, /) -> bytes:
        self.request(str(self.name))
        return super().read(size)


def far(handler: FileSystemHandler, folder: object) -> RemotePath:
    """A local folder as one of a remote storage, whose requests the handler answers."""
    return RemotePath(RemoteStorage(PyFileSystem(handler), "far://"), str(folder))


class Requests(logging.Handler):
    """What an `s3_server` of this process is asked for while this is open: method and path of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if match := _REQUEST.search(record.getMessage()):
            self.seen.append(match[1])

    def of(self, text: str) -> list[str]:
        """Those whose path, or query, has a text."""
        return [one for one in self.seen if text in unquote(one)]

    def __enter__(self) -> Requests:
        _SERVER_LOG.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        _SERVER_LOG.removeHandler(self)


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """S3 on a free port of loopback; what a URI has to say in its query, or options, to reach it."""
    from moto.server import ThreadedMotoServer

    _SERVER_LOG.setLevel(logging.INFO)
    _SERVER_LOG.propagate = False
    _SERVER_LOG.addHandler(logging.NullHandler())  # or it prints
    server = ThreadedMotoServer(ip_address=LOOPBACK, port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        yield {
            "endpoint_override": f"{LOOPBACK}:{port}",
            "scheme": "http",
            "region": "us-east-1",
            "access_key": "key",
            "secret_key": "a/secret+",
        }
    finally:
        server.stop()
