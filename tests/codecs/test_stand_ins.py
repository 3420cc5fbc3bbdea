"""The libraries of Python 3.14 against those of earlier versions: each reads what the other writes."""

from __future__ import annotations

import os
import random

import pytest

from kafkafmt.codecs import cramjam_lz4
from kafkafmt.codecs.lz4_header import header_checksum
from measure import peak_bytes

lz4_frame = pytest.importorskip("lz4.frame")

_source = random.Random(1)
_WORDS = [b"alpha", b"beta ", b"gamma", b"\0\1\2"]
SIZES = [0, 1, 10, 1_000, 65_535, 65_536, 65_537, 300_000]
DATA = {
    f"{kind}-{size}": data[:size]
    for size in SIZES
    for kind, data in (
        ("text", b"".join(_source.choice(_WORDS) for _ in range(size))),
        ("noise", os.urandom(size)),
        ("zeros", bytes(size)),
    )
}


def as_kafka(data: bytes, level: int) -> bytes:
    return cramjam_lz4.compress(
        data, compression_level=level, block_size=4, block_linked=False, store_size=False
    )


def in_pieces(frame: bytes, most: int) -> tuple[bytes, int]:
    """Return the content of a frame, and its length, from outputs of at most `most` bytes."""
    context = cramjam_lz4.create_decompression_context()
    outputs, position, has_ended = [], 0, False
    while not has_ended:
        output, length, has_ended = cramjam_lz4.decompress_chunk(context, frame[position:], max_length=most)
        assert has_ended or output or length, "a frame that does not end"
        assert most < 0 or len(output) <= most
        outputs.append(output)
        position += length
    return b"".join(outputs), position


@pytest.mark.parametrize("level", [0, 1, 3, 9, 12, 17])
@pytest.mark.parametrize("name", DATA)
def test_lz4_when_cramjam_writes_a_frame_then_lz4_reads_it(name, level):
    frame = as_kafka(DATA[name], level)
    assert frame[:7] == b"\x04\x22\x4d\x18\x60\x40\x82"
    assert lz4_frame.decompress(frame) == DATA[name]


@pytest.mark.parametrize("most", [7_000, 100_000, -1])
@pytest.mark.parametrize(
    "options",
    [
        {"block_linked": False},
        {"block_linked": True},
        {"block_linked": True, "compression_level": 9},
        {"content_checksum": True},
        {"block_checksum": True},
        {"store_size": False},
        {"block_size": 7},
    ],
    ids=str,
)
def test_lz4_when_lz4_writes_a_frame_then_it_is_read_within_the_bound(options, most):
    for data in DATA.values():
        frame = lz4_frame.compress(data, **options)
        assert in_pieces(frame + b"more", most) == (data, len(frame))


@pytest.mark.parametrize("checksum", ["content_checksum", "block_checksum"])
def test_lz4_when_a_checksum_does_not_match_then_runtime_error(checksum):
    frame = bytearray(lz4_frame.compress(DATA["text-300000"], **{checksum: True}))
    # After the checksum of the last block there are the 4 bytes of the end mark.
    frame[-1 if checksum == "content_checksum" else -5] ^= 1
    with pytest.raises(RuntimeError, match=f"a {checksum.replace('_', ' ')} of"):
        in_pieces(bytes(frame), -1)


@pytest.mark.parametrize("level", [1, 9])
def test_lz4_when_cramjam_is_given_other_buffers_than_bytes_then_writes_a_frame(level):
    for data in (bytearray(b"abc" * 1000), memoryview(b"abc" * 1000)):
        assert lz4_frame.decompress(as_kafka(data, level)) == data


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"block_linked": True}, {"block_linked": False}], ids=str)
def test_lz4_when_a_frame_is_damaged_then_runtime_error_and_no_more_than_its_block_size(options):
    frame = lz4_frame.compress(DATA["text-300000"], **options)
    for _ in range(300):
        damaged = bytearray(frame)
        damaged[_source.randrange(len(frame))] ^= 1 << _source.randrange(8)
        context = cramjam_lz4.create_decompression_context()
        try:
            output, _, _ = cramjam_lz4.decompress_chunk(context, damaged)
        except RuntimeError:
            continue
        assert len(output) <= 1_000_000


def test_lz4_when_tiny_blocks_are_in_a_frame_of_large_ones_then_memory_is_that_of_their_content():
    descriptor = b"\x60\x70"  # independent blocks of 4 MiB, no checksums
    block = b"\x1f" + b"a" + b"\x01\x00" + b"\x05" + b"\x50" + b"aaaaa"  # "a", 24 times it, and 5 more
    header = b"\x04\x22\x4d\x18" + descriptor + bytes((header_checksum(descriptor),))
    frame = header + 3 * (len(block).to_bytes(4, "little") + block) + bytes(4)
    assert lz4_frame.decompress(frame) == b"a" * 90
    assert in_pieces(frame, -1) == (b"a" * 90, len(frame))
    assert peak_bytes(lambda: in_pieces(frame, -1)) < 64 * 1024


@pytest.mark.parametrize("size", [1, 100, 65_536, 4_000_000])
def test_lz4_when_a_block_expands_as_much_as_blocks_can_then_it_is_read_whole(size):
    frame = lz4_frame.compress(bytes(size), block_size=7, block_linked=False)
    assert in_pieces(frame, -1) == (bytes(size), len(frame))


@pytest.mark.parametrize("name", [name for name in DATA if not name.endswith("-0")])
@pytest.mark.parametrize("level", [-7, 1, 3, 19])
def test_zstd_when_one_library_writes_a_frame_then_the_other_reads_it(name, level):
    pytest.importorskip("compression.zstd")
    zstandard = pytest.importorskip("zstandard")
    from kafkafmt.codecs import standard_zstd

    data = DATA[name]
    for writer, reader in ((zstandard, standard_zstd), (standard_zstd, zstandard)):
        frame = writer.ZstdCompressor(level).compress(data)
        assert reader.frame_content_size(frame) == len(data)
        assert reader.ZstdDecompressor().decompress(frame, len(data), False, False) == data
        ours, theirs = standard_zstd.get_frame_parameters(frame), zstandard.get_frame_parameters(frame)
        assert (ours.content_size, ours.window_size, ours.has_checksum) == (
            theirs.content_size,
            theirs.window_size,
            theirs.has_checksum,
        )
        assert standard_zstd.frame_header_size(frame) == zstandard.frame_header_size(frame)
