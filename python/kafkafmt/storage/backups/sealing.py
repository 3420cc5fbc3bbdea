"""Compress and encrypt the files of a segment chunk by chunk, so that a reader can read a range.

A chunk is compressed by zstd first, if at all, and then encrypted by AES-256-GCM: 12 bytes of nonce, the encrypted
bytes, 16 bytes of tag. The additional authenticated data of a chunk binds it to its place: backup, object, suffix,
number of the chunk, and count of chunks. Each segment has a data key of its own, which a key of the key ring wraps.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from kafkafmt._util.sizes import MIB
from kafkafmt.storage.chunks import (
    NONCE_BYTES,
    ChunkCache,
    ChunkedFile,
    ChunkIndex,
    ChunkTransform,
    DecompressZstd,
    DecryptAesGcm,
)
from kafkafmt.storage.keys import DATA_KEY_BYTES, KeyRingError, aes_gcm

if TYPE_CHECKING:
    from kafkafmt.storage.backups.manifest import BackedUpSegment
    from kafkafmt.storage.paths import StoragePath

CHUNK_BYTES = MIB
_AAD_PREFIX = "kafkafmt-backup"
_ZSTD_LEVEL = 3

Encode = Callable[[bytes, int], bytes]


class Unwraps(Protocol):
    """Unwraps data keys, as a `KeyRing`."""

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Return the data key that was wrapped by the key of this id. Raises KeyRingError."""


def object_path(folder: StoragePath, segment: BackedUpSegment, suffix: str) -> StoragePath:
    """Return the path of the object of a segment's file. folder: that of the backup."""
    for part in f"{segment.object}{suffix}".split("/"):
        folder = folder / part
    return folder


def new_data_key() -> bytes:
    """Return the data key of a new segment."""
    return secrets.token_bytes(DATA_KEY_BYTES)


def chunk_aad(backup_id: str, name: str, suffix: str, count: int) -> Callable[[int], bytes]:
    """Return the function that returns the additional authenticated data of a chunk by its number.

    name: of the object, without the suffix. count: of the chunks of the file.
    """
    place = f"{_AAD_PREFIX}\n{backup_id}\n{name}{suffix}\n{count}\n"
    return lambda number: f"{place}{number}".encode()


def compress(chunk: bytes, number: int) -> bytes:
    """Compress a chunk by zstd."""
    from kafkafmt.codecs.zstd_library import zstandard

    return zstandard.ZstdCompressor(_ZSTD_LEVEL).compress(chunk)


def encryption(data_key: bytes, aad: Callable[[int], bytes]) -> Encode:
    """Return the function that encrypts a chunk. Raises KeyRingError without the package `cryptography`."""
    cipher = aes_gcm(data_key)

    def encrypt(chunk: bytes, number: int) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + cipher.encrypt(nonce, chunk, aad(number))

    return encrypt


def encoded(chunks: Iterator[bytes], encodes: tuple[Encode, ...]) -> Iterator[bytes]:
    """Yield chunks after each of `encodes`."""
    for number, original in enumerate(chunks):
        chunk = original
        for encode in encodes:
            chunk = encode(chunk, number)
        yield chunk


def chunked_file(
    path: StoragePath,
    segment: BackedUpSegment,
    suffix: str,
    *,
    backup_id: str,
    key_ring: Unwraps | None,
    cache: ChunkCache,
) -> ChunkedFile:
    """Return the original content of a file of a segment that is stored in chunks. path: of its object.

    Raises KeyRingError if the segment is encrypted, and the key ring does not have its key.
    """
    file = segment.files[suffix]
    index = ChunkIndex(file.chunk_bytes, file.size, file.chunk_sizes)
    transforms: list[ChunkTransform] = []
    if segment.key is not None:
        if key_ring is None:
            raise KeyRingError(f"{path}: expected a key ring with key {segment.key.key_id!r}, found none")
        data_key = key_ring.unwrap(segment.key.key_id, segment.key.wrapped)
        aad = chunk_aad(backup_id, segment.object, suffix, len(file.chunk_sizes))
        transforms.append(DecryptAesGcm(data_key, segment.key.key_id, aad))
    if segment.compression == "zstd" and suffix == ".log":
        transforms.append(DecompressZstd(file.chunk_bytes))
    return ChunkedFile(path, index, tuple(transforms), cache=cache)
