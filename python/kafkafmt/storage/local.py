"""The local file system as a storage."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from kafkafmt._util.files import make_folder, naming_errors, open_regular, publish
from kafkafmt._util.staging import staged_file
from kafkafmt.records.file import FileRecords
from kafkafmt.storage.base import stamp_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkafmt.storage.base import FileStatus, FolderEntry, OpenFile
    from kafkafmt.types import TopicPartition

_COPY_BYTES = 1024 * 1024


class LocalStorage:
    """The local file system. `open` raises OSError for a path that is not a regular file."""

    @contextmanager
    def entries(self, folder: Path) -> Iterator[Iterator[FolderEntry]]:
        with os.scandir(folder) as found:
            yield (entry for entry in found if not _is_loop(entry))

    def walk(self, folder: Path) -> Iterator[tuple[str, FileStatus]]:
        waiting = [(folder, "")]
        while waiting:
            here, prefix = waiting.pop()
            with contextlib.suppress(FileNotFoundError), os.scandir(here) as found:
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((here / entry.name, f"{prefix}{entry.name}/"))
                    elif not _is_loop(entry) and entry.is_file():
                        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                            yield prefix + entry.name, entry.stat()

    def path_of(self, folder: Path, entry: FolderEntry) -> Path:
        return folder / entry.name

    @contextmanager
    def open(self, path: Path) -> Iterator[OpenFile]:
        with os.fdopen(open_regular(path), "rb") as file:
            yield file

    def open_records(
        self,
        path: Path,
        start: int,
        end: int | None,
        *,
        topic_partition: TopicPartition | None,
        max_decompressed_bytes: int,
    ) -> FileRecords:
        return FileRecords(
            path, start, end, topic_partition=topic_partition, max_decompressed_bytes=max_decompressed_bytes
        )

    def stamp(self, path: Path) -> tuple[int, ...]:
        return stamp_of(os.stat(path))  # noqa: PTH116 - faster; called at each fetch

    def changed_ns(self, folder: Path) -> int:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116 - as above

    def write(self, path: Path, chunks: Iterable[Buffer]) -> None:
        make_folder(path.parent)
        with staged_file(path) as file:
            _write_chunks(file, path, chunks)

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> None:
        make_folder(path.parent)
        if path.exists():  # before the chunks are made
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        with staged_file(path, is_new=True) as file:
            _write_chunks(file, path, chunks)

    def put(self, source: Path, path: Path) -> None:
        make_folder(path.parent)
        try:
            publish(source, path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with source.open("rb") as file:
                self.write(path, iter(lambda: file.read(_COPY_BYTES), b""))
            source.unlink()

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def delete_folder(self, folder: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)


def _write_chunks(file: BinaryIO, path: Path, chunks: Iterable[Buffer]) -> None:
    for chunk in chunks:
        with naming_errors(path):  # not those of what makes the chunks
            file.write(chunk)


def _is_loop(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a link to itself: neither a file nor a folder."""
    try:
        entry.is_dir()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


LOCAL = LocalStorage()
