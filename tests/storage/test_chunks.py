"""Files in chunks are read by ranges, with few requests and in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard

from file_systems import BUCKET, CountingHandler, Requests, far
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage import Storages
from kafkafmt.storage.chunks import (
    ChunkCache,
    ChunkedFile,
    ChunkIndex,
    DecompressZstd,
    DecryptAesGcm,
)

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

pytest.importorskip("pyarrow.fs")
MIB = 1024 * 1024


def stored(data: bytes, chunk_bytes: int) -> tuple[bytes, ChunkIndex]:
    """Chunks of zstd, one after the other, and where they are."""
    chunks = [zstandard.compress(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)]
    return b"".join(chunks), ChunkIndex(chunk_bytes, len(data), tuple(map(len, chunks)))


@pytest.mark.parametrize("chunk_bytes", [MIB, 4 * MIB, 5 * MIB])
def test_file_on_s3_when_read_in_small_steps_then_costs_a_request_for_8_mib(
    s3: FileSystem, s3_options: Mapping[str, str], chunk_bytes: int
) -> None:
    data = random.Random(chunk_bytes).randbytes(24 * MIB)
    content, index = stored(data, chunk_bytes)
    with s3.open_output_stream(f"{BUCKET}/chunks-{chunk_bytes}") as stream:
        stream.write(content)
    path = Storages(s3_options).locate(f"s3://{BUCKET}/chunks-{chunk_bytes}")
    file = ChunkedFile(path, index, (DecompressZstd(chunk_bytes),))
    with Requests() as requests:
        for position in range(0, len(data), 256 * 1024):
            assert file.read_at(position, 256 * 1024) == data[position : position + 256 * 1024]
    gets = [one for one in requests.of("chunks-") if one.startswith("GET")]
    assert len(gets) <= 24 // 8 + 1
    assert len(requests.of("chunks-")) - len(gets) <= 1  # its size, once


def test_range_of_several_chunks_when_read_then_is_one_request(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(100_000)
    content, index = stored(data, 1000)
    (tmp_path / "a").write_bytes(content)
    handler = CountingHandler()
    file = ChunkedFile(far(handler, tmp_path / "a"), index, (DecompressZstd(1000),))
    assert file.read_at(1500, 50_000) == data[1500:51_500]
    assert len(handler.reads) == 1


def test_cache_when_smaller_than_the_file_then_is_bounded_and_the_bytes_are_right(tmp_path: Path) -> None:
    data = bytes(range(256)) * 1000
    content, index = stored(data, 1000)
    (tmp_path / "a").write_bytes(content)
    cache = ChunkCache(10_000)
    file = ChunkedFile(tmp_path / "a", index, (DecompressZstd(1000),), cache=cache)
    rng = random.Random(1)
    for _ in range(200):
        position, size = rng.randrange(len(data)), rng.randrange(5000)
        assert file.read_at(position, size) == data[position : position + size]
        assert cache.held_bytes <= 10_000


def test_chunk_when_it_decompresses_to_more_than_a_chunk_then_is_refused_before(tmp_path: Path) -> None:
    content = zstandard.compress(bytes(100_000_000))
    (tmp_path / "a").write_bytes(content)
    file = ChunkedFile(tmp_path / "a", ChunkIndex(1000, 1000, (len(content),)), (DecompressZstd(1000),))
    with pytest.raises(
        StoredObjectError, match=r"chunk 0 of 1 cannot be decoded: expected at most 1000 .* found 100000000"
    ):
        file.read_at(0, 1)


def test_object_when_missing_then_the_error_is_no_file_not_found(tmp_path: Path) -> None:
    # A reader takes FileNotFoundError for a segment that was deleted, and skips it.
    file = ChunkedFile(tmp_path / "a", ChunkIndex(10, 10, (10,)))
    with pytest.raises(StoredObjectError, match=f"^{tmp_path}/a: the object is missing$") as raised:
        file.read_at(0, 1)
    assert not isinstance(raised.value, FileNotFoundError)


def test_files_of_a_view_when_many_are_read_then_few_stay_open(tmp_path: Path) -> None:
    cache = ChunkCache()
    files = []
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(100):
        (tmp_path / str(number)).write_bytes(b"0123456789")
        files.append(ChunkedFile(tmp_path / str(number), ChunkIndex(10, 10, (10,)), cache=cache))
    for _ in range(2):
        assert {bytes(file.read_at(3, 4)) for file in files} == {b"3456"}
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 50


def test_encrypted_chunk_when_moved_to_another_place_then_is_refused_by_its_aad(tmp_path: Path) -> None:
    aead = pytest.importorskip("cryptography.hazmat.primitives.ciphers.aead")
    cipher, nonce = aead.AESGCM(bytes(32)), bytes(12)
    chunks = [nonce + cipher.encrypt(nonce, b"0123456789", str(number).encode()) for number in range(2)]
    index = ChunkIndex(10, 20, (38, 38))
    decrypt = DecryptAesGcm(bytes(32), "key-1", lambda number: str(number).encode())
    for name, content in (("right", b"".join(chunks)), ("moved", b"".join(reversed(chunks)))):
        (tmp_path / name).write_bytes(content)
    assert ChunkedFile(tmp_path / "right", index, (decrypt,)).read_at(5, 10) == b"5678901234"
    with pytest.raises(StoredObjectError, match="chunk 0 of 2 cannot be decoded: the authentication tag"):
        ChunkedFile(tmp_path / "moved", index, (decrypt,)).read_at(5, 10)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((0, 10, ()), "chunk size: expected 1 or more"),
        ((10, -1, ()), "original size: expected 0 or more"),
        ((10, 11, (10,)), "chunks: expected 2"),
        ((10, 10, (-1,)), "stored sizes: expected 0 or more"),
    ],
)
def test_chunk_index_when_not_possible_then_is_refused(
    index: tuple[int, int, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ChunkIndex(*index)
