"""File systems for the tests of what reads from afar: one that counts what it is asked for, and S3 on loopback."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystemHandler, FileType, LocalFileSystem

LOOPBACK = "127.0.0.1"


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


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """S3 on a free port of loopback; what a URI has to say in its query, or options, to reach it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
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
