"""Files that are stored in chunks, each compressed and encrypted by itself, so that a range can be read.

Tiered storage stores its segments so (Aiven's `tiered-storage-for-apache-kafka`, "chunk index"), and backups too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from kafkafmt.storage.paths import StoragePath


@dataclass(frozen=True)
class ChunkIndex:
    """Where the chunks of a file are. All sizes are in bytes.

    chunk_bytes: the original size of each chunk but the last one.
    original_bytes: the original size of the file.
    stored_sizes: the size of each chunk in the store.
    """

    chunk_bytes: int
    original_bytes: int
    stored_sizes: tuple[int, ...]


class ChunkTransform(Protocol):
    """Restores chunks as they were. number: the position of a chunk in its file, from 0."""

    def decode(self, chunk: memoryview, number: int) -> bytes | memoryview:
        """Return the original bytes of a chunk. Raises CorruptRecordError if they cannot be restored."""


@dataclass
class ChunkedFile:
    """A `ViewFile` that reads and decodes chunks of the object at `path`.

    Bytes are read ahead and kept, within a bound that the files of a view share.
    """

    path: StoragePath
    index: ChunkIndex
    transforms: tuple[ChunkTransform, ...] = field(default=())
    mtime_ns: int = 0

    @property
    def size(self) -> int:
        return self.index.original_bytes

    def read_at(self, position: int, size: int) -> bytes | memoryview:
        """Return the bytes from `position`, as many as `size`, or fewer at the end. Raises OSError."""
        raise NotImplementedError
