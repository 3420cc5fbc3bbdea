"""The local file system as a storage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.files import open_regular
from kafkafmt.records.file import FileRecords

if TYPE_CHECKING:
    from kafkafmt.storage.base import FolderEntry, OpenFile
    from kafkafmt.types import TopicPartition


class LocalStorage:
    """The local file system. `open` raises OSError for a path that is not a regular file."""

    def entries(self, folder: Path) -> AbstractContextManager[Iterator[FolderEntry]]:
        return os.scandir(folder)

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
        found = os.stat(path)  # noqa: PTH116 - faster; called at each fetch
        return found.st_ino, found.st_size, found.st_mtime_ns

    def changed_ns(self, folder: Path) -> int:
        return folder.stat().st_mtime_ns


LOCAL = LocalStorage()
