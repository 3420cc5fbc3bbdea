"""Files that are stored in chunks, each compressed and encrypted by itself, so that a range can be read.

Tiered storage stores its segments so (Aiven's `tiered-storage-for-apache-kafka`, "chunk index"), and backups too.

A store charges for each request. So a request fetches all chunks of a range, and if the range begins where the last
request ended, chunks of at least 8 MiB. A `ChunkCache` bounds what all files of a view keep: decoded chunks and open
files.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from kafkafmt._util.sizes import MIB
from kafkafmt.errors import CorruptRecordError
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.records.remote import file_system_error, file_system_errors
from kafkafmt.storage.paths import StoragePath

if TYPE_CHECKING:
    from kafkafmt.storage.remote import ReadableFile

NONCE_BYTES = 12
TAG_BYTES = 16
# What encryption adds to a chunk.
ENCRYPTION_BYTES = NONCE_BYTES + TAG_BYTES
_REQUEST_BYTES = 8 * MIB
_CACHE_BYTES = 64 * MIB
_OPEN_FILES = 32
_IDS = itertools.count()


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

    def __post_init__(self) -> None:
        if self.chunk_bytes <= 0:
            raise ValueError(f"chunk size: expected 1 or more bytes, found {self.chunk_bytes}")
        if self.original_bytes < 0:
            raise ValueError(f"original size: expected 0 or more bytes, found {self.original_bytes}")
        expected = -(-self.original_bytes // self.chunk_bytes)
        if len(self.stored_sizes) != expected:
            raise ValueError(
                f"chunks: expected {expected} for {self.original_bytes} bytes in chunks of {self.chunk_bytes}, "
                f"found {len(self.stored_sizes)}"
            )
        if any(size < 0 for size in self.stored_sizes):
            raise ValueError(f"stored sizes: expected 0 or more bytes, found {min(self.stored_sizes)}")

    @property
    def stored_bytes(self) -> int:
        """The size of the stored chunks together."""
        return self.stored_positions[-1]

    @cached_property
    def stored_positions(self) -> tuple[int, ...]:
        """The position of each chunk in the store, and the end of the last one."""
        return tuple(itertools.accumulate(self.stored_sizes, initial=0))

    def original_size(self, number: int) -> int:
        """Return the original size of a chunk."""
        return min(self.chunk_bytes, self.original_bytes - number * self.chunk_bytes)


class ChunkTransform(Protocol):
    """Restores chunks as they were. number: the position of a chunk in its file, from 0."""

    def decode(self, chunk: memoryview, number: int) -> bytes | memoryview:
        """Return the original bytes of a chunk. Raises CorruptRecordError if they cannot be restored."""


@dataclass(frozen=True)
class DecompressZstd:
    """Decompresses chunks of zstd. max_bytes: the largest original size of a chunk."""

    max_bytes: int

    def decode(self, chunk: memoryview, number: int) -> bytes:
        from kafkafmt.codecs.zstd_library import zstandard

        try:
            size = zstandard.frame_content_size(chunk)
            if size > self.max_bytes:
                raise CorruptRecordError(
                    f"expected at most {self.max_bytes} bytes of decompressed data, found {size}"
                )
            return zstandard.ZstdDecompressor().decompress(chunk, max_output_size=self.max_bytes)
        except zstandard.ZstdError as error:
            raise CorruptRecordError(f"not valid zstd data: {error}") from None


class DecryptAesGcm:
    """Decrypts chunks of AES-256-GCM: 12 bytes of nonce, the encrypted bytes, 16 bytes of tag.

    data_key: the key. key_id: the id of the key that wraps it, for errors. aad: the additional authenticated data, or a
    function that returns that of a chunk by its number. Raises KeyRingError without the package `cryptography`.
    """

    def __init__(self, data_key: bytes, key_id: str, aad: bytes | Callable[[int], bytes]) -> None:
        from kafkafmt.storage.keys import aes_gcm

        self._cipher, self._key_id, self._aad = aes_gcm(data_key), key_id, aad

    def decode(self, chunk: memoryview, number: int) -> bytes:
        from cryptography.exceptions import InvalidTag

        if len(chunk) < ENCRYPTION_BYTES:
            raise CorruptRecordError(
                f"expected at least {ENCRYPTION_BYTES} encrypted bytes, found {len(chunk)}"
            )
        aad = self._aad if isinstance(self._aad, bytes) else self._aad(number)
        try:
            return self._cipher.decrypt(chunk[:NONCE_BYTES], chunk[NONCE_BYTES:], aad)
        except InvalidTag:
            raise CorruptRecordError(
                f"the authentication tag does not match: the bytes were changed, or their data key is not the one "
                f"that key {self._key_id!r} wraps"
            ) from None


class ChunkCache:
    """The decoded chunks of many files, within `max_bytes`, and their open files. Safe to use from several threads."""

    def __init__(self, max_bytes: int = _CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._chunks: OrderedDict[tuple[int, int], bytes | memoryview] = OrderedDict()
        self._bytes = 0
        self._files: OrderedDict[int, _ObjectFile] = OrderedDict()

    def get(self, file: int, number: int) -> bytes | memoryview | None:
        """Return a decoded chunk of a file; None if it is not kept."""
        with self._lock:
            chunk = self._chunks.get((file, number))
            if chunk is not None:
                self._chunks.move_to_end((file, number))
            return chunk

    def put(self, file: int, number: int, chunk: bytes | memoryview) -> None:
        """Keep a chunk. The least recently used chunks are released until it fits; the last one is kept always."""
        with self._lock:
            replaced = self._chunks.pop((file, number), None)
            self._bytes += len(chunk) - (0 if replaced is None else len(replaced))
            self._chunks[file, number] = chunk
            while self._bytes > self.max_bytes and len(self._chunks) > 1:
                _, released = self._chunks.popitem(last=False)
                self._bytes -= len(released)

    @property
    def held_bytes(self) -> int:
        """The bytes of the chunks that are kept."""
        return self._bytes

    def read(self, file: int, path: StoragePath, position: int, size: int) -> bytes:
        """Read from the object at `path`, which is opened once and kept open. Raises OSError."""
        with self._lock:
            opened = self._files.pop(file, None) or _ObjectFile(path)
            self._files[file] = opened
            closed = self._files.popitem(last=False)[1] if len(self._files) > _OPEN_FILES else None
        if closed is not None:
            closed.close()
        return opened.read(position, size)


class _ObjectFile:
    """An object that is opened at its first read, and again at a read after `close`."""

    def __init__(self, path: StoragePath) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: ReadableFile | BinaryIO | None = None

    def read(self, position: int, size: int) -> bytes:
        with self._lock:
            try:
                if self._file is None:
                    self._file = _opened(self._path)
                self._file.seek(position)
                return self._file.read(size)
            except FileNotFoundError as error:
                # Not FileNotFoundError: readers take that for a segment that was deleted, and skip it.
                raise StoredObjectError(self._path, "the object is missing") from error
            except file_system_errors() as error:
                self._close()  # the next read opens it again
                what = f"cannot read {size} bytes at position {position}"
                raise file_system_error(error, what, str(self._path)) from error

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _opened(path: StoragePath) -> ReadableFile | BinaryIO:
    """Open a file that stays open for longer than a function runs."""
    return path.open("rb") if isinstance(path, Path) else path.storage.open(path)


@dataclass
class ChunkedFile:
    """A `ViewFile` that reads and decodes chunks of the object at `path`.

    transforms: applied to each stored chunk, in this order. start: the position of the first chunk in the object.
    cache: shared by the files of a view. A read raises StoredObjectError if the object is missing or shorter than the
    index says, or if a chunk cannot be decoded; the message names the chunk.
    """

    path: StoragePath
    index: ChunkIndex
    transforms: tuple[ChunkTransform, ...] = field(default=())
    mtime_ns: int = 0
    start: int = 0
    cache: ChunkCache = field(default_factory=ChunkCache, repr=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._fetched_to = -1  # the chunk after those of the last request
        self._id = next(_IDS)

    @property
    def size(self) -> int:
        return self.index.original_bytes

    def read_at(self, position: int, size: int) -> bytes | memoryview:
        """Return the bytes from `position`, as many as `size`, or fewer at the end. Raises OSError."""
        end = min(position + size, self.size)
        if position >= end:
            return b""
        if not self.transforms:
            return self._stored(position, end - position)
        first, last = position // self.index.chunk_bytes, (end - 1) // self.index.chunk_bytes
        if first == last:
            begin = position - first * self.index.chunk_bytes
            return memoryview(self._chunks(first, last)[0])[begin : begin + end - position]
        joined, at = bytearray(end - position), 0
        for number, chunk in enumerate(self._chunks(first, last), first):
            begin = max(position - number * self.index.chunk_bytes, 0)
            taken = memoryview(chunk)[begin : begin + len(joined) - at]
            joined[at : at + len(taken)] = taken
            at += len(taken)
        return memoryview(joined).toreadonly()

    def _chunks(self, first: int, last: int) -> list[bytes | memoryview]:
        """Return decoded chunks from `first` to `last`. One request fetches each run of chunks that are not kept."""
        found: list[bytes | memoryview] = []
        with self._lock:
            while len(found) <= last - first:
                number = first + len(found)
                kept = self.cache.get(self._id, number)
                if kept is not None:
                    found.append(kept)
                else:
                    found += self._fetch(number, last)[: last + 1 - number]
        return found

    def _fetch(self, number: int, last: int) -> list[bytes | memoryview]:
        """Fetch and decode chunks from `number`: those up to `last`, at most to the next that is kept."""
        count = len(self.index.stored_sizes)
        request_bytes = min(_REQUEST_BYTES, self.cache.max_bytes // 4)
        most = max(request_bytes // self.index.chunk_bytes, 1)
        if number == self._fetched_to:
            last = max(last, number + -(-request_bytes // self.index.chunk_bytes) - 1)
            most = last + 1 - number
        end = number + 1
        while end < min(last + 1, number + most, count) and self.cache.get(self._id, end) is None:
            end += 1
        positions = self.index.stored_positions
        position, size = positions[number], positions[end] - positions[number]
        stored = memoryview(self.cache.read(self._id, self.path, self.start + position, size))
        self._fetched_to = end
        chunks: list[bytes | memoryview] = []
        for one in range(number, end):
            try:
                if positions[one + 1] - position > len(stored):
                    raise self._truncated(position, size, len(stored))
                chunk = stored[positions[one] - position : positions[one + 1] - position]
                chunks.append(self._decoded(chunk, one))
            except StoredObjectError:
                if one == number:
                    raise
                break  # the chunks before it can be read
            self.cache.put(self._id, one, chunks[-1])
        return chunks

    def _stored(self, position: int, size: int) -> bytes:
        found = self.cache.read(self._id, self.path, self.start + position, size)
        if len(found) < size:
            raise self._truncated(position, size, len(found))
        return found

    def _truncated(self, position: int, size: int, found: int) -> StoredObjectError:
        """Return the error of an object that ends `found` bytes after `position`, where `size` were requested."""
        end = position + found
        chunk = bisect_right(self.index.stored_positions, end) - 1
        message = (
            f"the object is truncated in chunk {chunk} of {len(self.index.stored_sizes)}: expected {size} bytes at "
            f"position {self.start + position}, found {found}"
        )
        lost_start = chunk * self.index.chunk_bytes if self.transforms else end
        return StoredObjectError(self.path, message, (lost_start, self.size))

    def _decoded(self, chunk: memoryview, number: int) -> bytes | memoryview:
        place = f"chunk {number} of {len(self.index.stored_sizes)}"
        first, expected = number * self.index.chunk_bytes, self.index.original_size(number)
        lost = first, first + expected
        decoded: bytes | memoryview = chunk
        try:
            for transform in self.transforms:
                decoded = transform.decode(memoryview(decoded), number)
        except CorruptRecordError as error:
            raise StoredObjectError(self.path, f"{place} cannot be decoded: {error.message}", lost) from error
        if len(decoded) != expected:
            message = f"{place}: expected {expected} original bytes, found {len(decoded)}"
            raise StoredObjectError(self.path, message, lost)
        return decoded
