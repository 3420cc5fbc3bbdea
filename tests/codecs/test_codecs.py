"""The codecs: round trips, foreign framings, damage, bombs, threads."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import subprocess
import sys
import textwrap
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor

import lz4.frame
import numpy as np
import pytest
import snappy
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkafmt.codecs import CODECS, compress, decompress, open_stream
from kafkafmt.errors import CorruptRecordError, DecompressionLimitError, UnsupportedCompressionTypeError
from kafkafmt.types import Codec

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
LEVELS = [(codec, level) for codec in Codec for level in CODECS[codec].levels]
# The default, the first and the last, and those between which a codec's library or method changes.
BOUNDARY_LEVELS = [
    *((codec, None) for codec in Codec),
    *((Codec.GZIP, level) for level in (1, 3, 4, 9)),
    *((Codec.LZ4, level) for level in (1, 2, 3, 17)),
    *((Codec.ZSTD, level) for level in (-7, -1, 1, 22)),
]
SIZES = [0, 1, 15, 16, 1000, 32 * 1024, 32 * 1024 + 1, 64 * 1024, 64 * 1024 + 1, 300_000]
DOCUMENTED_ERRORS = (CorruptRecordError, DecompressionLimitError)

TEXT = b"".join(b"offset %d, key user-%d, value %x;" % (n, n * 7919 % 500, n * n) for n in range(12_000))
SMALL = TEXT[:300]
SNAPPY_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def zstd_without_content_size(data: bytes, **options: object) -> bytes:
    compressor = zstandard.ZstdCompressor(**options).compressobj()
    return compressor.compress(data) + compressor.flush()


# Round trips


@pytest.mark.parametrize(
    ("codec", "level", "size"),
    [
        *((*one, size) for one in BOUNDARY_LEVELS for size in SIZES),
        *((*one, 64 * 1024 + 1) for one in LEVELS if one not in BOUNDARY_LEVELS),
    ],
)
def test_round_trip_at_every_level_and_every_size_then_same_bytes(codec, level, size):
    for data in (TEXT[:size], noise(size)):
        compressed = compress(codec, data, level=level)
        assert type(compressed) is bytes
        assert decompress(codec, compressed, limit=size) == data


@pytest.mark.parametrize("codec", Codec)
def test_round_trip_when_several_megabytes_then_same_bytes(codec):
    data = noise(1_500_000) + TEXT * 4 + bytes(2_000_000)
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_round_trip_in_every_message_format_then_same_bytes(codec, magic):
    assert decompress(codec, compress(codec, TEXT, magic=magic), magic=magic) == TEXT


@settings(deadline=None)
@given(codec=st.sampled_from(Codec), data=st.binary(max_size=3000), repeat=st.integers(1, 200))
def test_round_trip_when_any_bytes_then_same_bytes(codec, data, repeat):
    data *= repeat
    assert decompress(codec, compress(codec, data), limit=len(data)) == data


BUFFERS = {
    "bytearray": bytearray,
    "memoryview": memoryview,
    "read-only": lambda data: memoryview(bytearray(data)).toreadonly(),
    "slice": lambda data: memoryview(b"xyz" + data + b"xyz")[3:-3],
    "signed": lambda data: memoryview(data).cast("b"),
    "numpy": lambda data: np.frombuffer(data, np.uint8),
}


@pytest.mark.parametrize("buffer", BUFFERS.values(), ids=BUFFERS)
@pytest.mark.parametrize("codec", Codec)
def test_any_buffer_when_contiguous_then_read(codec, buffer):
    for data in (TEXT, b""):
        assert decompress(codec, compress(codec, buffer(data))) == data
        assert decompress(codec, buffer(compress(codec, data))) == data


@pytest.mark.parametrize("codec", Codec)
def test_buffer_when_its_items_are_wide_then_read_as_bytes(codec):
    numbers = np.arange(600, dtype=">i4").reshape(20, 30)
    assert decompress(codec, compress(codec, numbers)) == numbers.tobytes()
    assert decompress(codec, compress(codec, np.zeros((0, 3)))) == b""


@pytest.mark.parametrize("codec", Codec)
def test_buffer_when_it_has_rows_of_bytes_then_read_as_they_follow_each_other(codec):
    rows = memoryview(TEXT[:600]).cast("B", (20, 30))
    payload = compress(codec, rows)
    assert decompress(codec, payload) == TEXT[:600]
    assert decompress(codec, memoryview(payload).cast("B", (1, len(payload)))) == TEXT[:600]


@pytest.mark.parametrize("function", [compress, decompress])
@pytest.mark.parametrize("codec", Codec)
def test_data_when_no_contiguous_buffer_then_type_or_buffer_error(codec, function):
    for data in ("text", None, 7, memoryview(TEXT)[::2], np.arange(100)[::3]):
        with pytest.raises((TypeError, BufferError)):
            function(codec, data)


def test_decompress_when_none_then_same_memory():
    assert decompress(Codec.NONE, TEXT, limit=0) is TEXT


# Arguments


@pytest.mark.parametrize("codec", [5, 6, 7, 8, -1])
def test_codec_when_not_given_out_then_unsupported_compression_type(codec):
    """Case 28: codec ids 5 to 7."""
    for call in (decompress, compress):
        with pytest.raises(UnsupportedCompressionTypeError, match=f"found {codec}"):
            call(codec, b"x")


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_when_before_format_v2_then_unsupported_compression_type(magic):
    for call in (compress, decompress):
        with pytest.raises(UnsupportedCompressionTypeError, match=f"found v{magic}"):
            call(Codec.ZSTD, compress(Codec.ZSTD, SMALL), magic=magic)


@pytest.mark.parametrize(
    ("codec", "level", "message"),
    [
        (Codec.NONE, 1, "none has no compression levels"),
        (Codec.SNAPPY, 1, "snappy has no compression levels"),
        (Codec.GZIP, 0, "gzip level must be 1 to 9, not 0"),
        (Codec.GZIP, 10, "gzip level must be 1 to 9, not 10"),
        (Codec.LZ4, 0, "lz4 level must be 1 to 17, not 0"),
        (Codec.LZ4, 18, "lz4 level must be 1 to 17, not 18"),
        (Codec.ZSTD, -8, "zstd level must be -7 to 22, not -8"),
        (Codec.ZSTD, 23, "zstd level must be -7 to 22, not 23"),
    ],
)
def test_level_when_out_of_range_then_value_error_names_the_range(codec, level, message):
    with pytest.raises(ValueError, match=message):
        compress(codec, SMALL, level=level)


def test_limit_when_negative_then_value_error():
    with pytest.raises(ValueError, match="limit"):
        decompress(Codec.GZIP, compress(Codec.GZIP, SMALL), limit=-1)


# Damage


@pytest.mark.parametrize("codec", COMPRESSING)
def test_payload_when_empty_then_corrupt(codec):
    with pytest.raises(CorruptRecordError, match=codec.name.lower()):
        decompress(codec, b"")


def small_payloads() -> dict[str, tuple[Codec, bytes]]:
    lz4_checked = {"content_checksum": True, "block_checksum": True}
    return {
        "gzip": (Codec.GZIP, compress(Codec.GZIP, SMALL)),
        "gzip members": (Codec.GZIP, compress(Codec.GZIP, SMALL) + compress(Codec.GZIP, SMALL, level=6)),
        "snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, SMALL)),
        "snappy raw": (Codec.SNAPPY, snappy.compress(SMALL)),
        "lz4": (Codec.LZ4, compress(Codec.LZ4, SMALL)),
        "lz4 of v0": (Codec.LZ4, compress(Codec.LZ4, SMALL, magic=0)),
        "lz4 checked": (Codec.LZ4, lz4.frame.compress(SMALL, **lz4_checked)),
        "lz4 frames": (Codec.LZ4, lz4.frame.compress(SMALL) + compress(Codec.LZ4, SMALL)),
        "zstd": (Codec.ZSTD, compress(Codec.ZSTD, SMALL)),
        "zstd unsized": (Codec.ZSTD, zstd_without_content_size(SMALL, write_checksum=True)),
        "zstd frames": (Codec.ZSTD, compress(Codec.ZSTD, SMALL) + zstd_without_content_size(SMALL)),
    }


SMALL_PAYLOADS = small_payloads()


@pytest.mark.parametrize(("codec", "payload"), SMALL_PAYLOADS.values(), ids=SMALL_PAYLOADS)
def test_payload_when_truncated_anywhere_then_corrupt_or_whole_units(codec, payload):
    whole = bytes(decompress(codec, payload))
    for end in range(len(payload)):
        try:
            result = bytes(decompress(codec, payload[:end]))
        except CorruptRecordError:
            continue
        # Cut between two members or frames or, as Java allows, in the next one's magic; a bare snappy header.
        assert result == SMALL or (codec == Codec.SNAPPY and end == 16 and result == b"")
        assert result != whole


@pytest.mark.parametrize(("codec", "payload"), SMALL_PAYLOADS.values(), ids=SMALL_PAYLOADS)
def test_payload_when_any_byte_is_changed_then_documented_error_or_result(codec, payload):
    for position in range(len(payload)):
        for change in (*(1 << bit for bit in range(8)), 0xFF):
            damaged = bytearray(payload)
            damaged[position] ^= change
            try:
                result = decompress(codec, damaged, limit=100_000)
            except DOCUMENTED_ERRORS:
                continue
            assert len(result) <= 100_000


@settings(deadline=None, max_examples=300)
@given(
    codec=st.sampled_from(COMPRESSING),
    head=st.sampled_from(
        [b"", b"\x1f\x8b\x08\x00", b"\x82SNAPPY\x00", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd"]
    ),
    tail=st.binary(max_size=200),
)
def test_payload_when_any_bytes_then_documented_error_or_result(codec, head, tail):
    with contextlib.suppress(*DOCUMENTED_ERRORS):
        decompress(codec, head + tail, limit=1_000_000)


@pytest.mark.parametrize(("codec", "payload"), SMALL_PAYLOADS.values(), ids=SMALL_PAYLOADS)
def test_decompress_after_damage_then_next_payload_is_right(codec, payload):
    expected = bytes(decompress(codec, payload))
    for end in range(len(payload) - 1):
        with contextlib.suppress(CorruptRecordError):
            decompress(codec, payload[:end])
        assert decompress(codec, payload) == expected


# Limits


@pytest.mark.parametrize(("codec", "payload"), SMALL_PAYLOADS.values(), ids=SMALL_PAYLOADS)
def test_limit_when_exact_then_result_and_when_one_less_then_limit_error(codec, payload):
    size = len(decompress(codec, payload))
    assert len(decompress(codec, payload, limit=size)) == size
    for limit in (size - 1, size // 2, 1, 0):
        with pytest.raises(DecompressionLimitError, match=codec.name.lower()):
            decompress(codec, payload, limit=limit)


def zstd_bomb(size: int) -> bytes:
    run = (128 * 1024 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    last = (1 | 1 << 1).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x88" + run * (size // (128 * 1024)) + last  # a window of 128 MiB


BOMBS = {
    "gzip": (Codec.GZIP, lambda size: compress(Codec.GZIP, bytes(size))),
    "gzip members": (Codec.GZIP, lambda size: compress(Codec.GZIP, bytes(1 << 20)) * (size >> 20)),
    "snappy": (Codec.SNAPPY, lambda size: compress(Codec.SNAPPY, bytes(size))),
    "lz4": (Codec.LZ4, lambda size: compress(Codec.LZ4, bytes(size))),
    "lz4 frames": (Codec.LZ4, lambda size: compress(Codec.LZ4, bytes(1 << 20)) * (size >> 20)),
    "lz4 sized": (Codec.LZ4, lambda size: lz4.frame.compress(bytes(size))),
    "zstd": (Codec.ZSTD, lambda size: compress(Codec.ZSTD, bytes(size))),
    "zstd unsized": (Codec.ZSTD, lambda size: zstd_without_content_size(bytes(size))),
    "zstd runs": (Codec.ZSTD, zstd_bomb),
    "zstd frames": (Codec.ZSTD, lambda size: compress(Codec.ZSTD, bytes(1 << 20)) * (size >> 20)),
}


@pytest.mark.parametrize(("codec", "bomb"), BOMBS.values(), ids=BOMBS)
def test_bomb_when_past_the_limit_then_limit_error_in_little_memory(codec, bomb, tmp_path):
    """Case 26: a decompression bomb is a DecompressionLimitError at the cap."""
    path = tmp_path / "bomb"
    path.write_bytes(bomb(256 << 20))
    script = f"""
        from kafkafmt.codecs import decompress
        from kafkafmt.errors import DecompressionLimitError
        from measure import most_resident_bytes
        data = open({str(path)!r}, "rb").read()
        before = most_resident_bytes()
        try:
            decompress({int(codec)}, data, limit=8 << 20)
        except DecompressionLimitError:
            print(most_resident_bytes() - before)
    """
    assert int(run_python(script)) < 32 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
@pytest.mark.parametrize(
    ("codec", "payload"),
    {
        "snappy": (Codec.SNAPPY, b"\xff\xff\xff\x7f\x00"),
        "snappy framed": (Codec.SNAPPY, SNAPPY_HEADER + b"\0\0\0\x06" + b"\xff\xff\xff\xff\x07\0"),
        "lz4 sized": (Codec.LZ4, lz4.frame.compress(SMALL)[:6] + struct.pack("<Q", 200 << 20) + b"\0" * 20),
        "gzip": (Codec.GZIP, compress(Codec.GZIP, SMALL)[:-4] + b"\xff\xff\xff\x0e"),
        "zstd sized": (Codec.ZSTD, b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 200 << 20) + b"\x01\x00\x00"),
        "zstd window": (Codec.ZSTD, b"\x28\xb5\x2f\xfd\x00\xa8" + zstd_without_content_size(SMALL)[6:-2]),
    }.values(),
)
def test_number_when_declared_beyond_what_the_data_holds_then_corrupt_without_allocation(codec, payload):
    """Case 25: a length that the remaining bytes cannot hold, an error before an allocation of that size."""
    script = f"""
        import resource
        from kafkafmt.codecs import decompress
        from kafkafmt.errors import CorruptRecordError
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
        try:
            decompress({int(codec)}, {payload!r})
        except CorruptRecordError as error:
            print(error)
    """
    assert codec.name.lower() in run_python(script)


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_zstd_when_window_is_far_larger_than_content_then_read_without_that_memory():
    payload = zstd_without_content_size(SMALL)
    payload = payload[:5] + bytes([31 - 10 << 3]) + payload[6:]  # a window of 2 GiB
    script = f"""
        import resource
        from kafkafmt.codecs import decompress
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20),) * 2)
        print(bytes(decompress(4, {payload!r})) == {SMALL!r})
    """
    assert run_python(script) == "True\n"


def run_python(script: str) -> str:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_gzip_when_very_many_members_then_time_grows_with_their_number():
    payload = compress(Codec.GZIP, b"x") * 20_000
    assert decompress(Codec.GZIP, payload) == b"x" * 20_000


# Foreign payloads


def test_gzip_when_several_members_then_joined():
    """Case 17: a gzip payload of several members."""
    payload = compress(Codec.GZIP, TEXT) + compress(Codec.GZIP, b"") + compress(Codec.GZIP, SMALL, level=9)
    assert decompress(Codec.GZIP, payload) == TEXT + SMALL


def test_gzip_when_header_has_every_optional_field_then_skipped():
    deflated = zlib.compress(SMALL, wbits=-15) if sys.version_info >= (3, 11) else zlib.compress(SMALL)[2:-4]
    header = b"\x1f\x8b\x08\x1c" + bytes(6) + b"\x03\x00abc" + b"name\x00" + b"comment\x00"
    trailer = struct.pack("<II", zlib.crc32(SMALL), len(SMALL))
    assert decompress(Codec.GZIP, header + deflated + trailer) == SMALL


@pytest.mark.parametrize("garbage", [b"\0", b"\x1f", b"garbage" * 20, bytes(100)])
def test_gzip_when_followed_by_no_member_then_ignored_as_java_does(garbage):
    assert decompress(Codec.GZIP, compress(Codec.GZIP, TEXT) + garbage) == TEXT


def test_gzip_when_members_are_the_same_then_each_read():
    assert decompress(Codec.GZIP, compress(Codec.GZIP, SMALL) * 2) == SMALL * 2


@pytest.mark.parametrize("garbage", [b"\0", b"\xff" * 4])
def test_gzip_when_what_follows_is_no_size_of_several_megabytes_then_read(garbage):
    data = TEXT * 8
    assert decompress(Codec.GZIP, compress(Codec.GZIP, data) + garbage) == data


@pytest.mark.parametrize("position", [-1, -5], ids=["size", "crc"])
def test_gzip_when_trailer_is_damaged_then_corrupt(position):
    payload = bytearray(compress(Codec.GZIP, TEXT))
    payload[position] ^= 1
    with pytest.raises(CorruptRecordError, match="gzip"):
        decompress(Codec.GZIP, payload)


def xerial(byte_order: str, *blocks: bytes) -> bytes:
    framed = (struct.pack(">i", len(block)) + block for block in map(snappy.compress, blocks))
    return b"\x82SNAPPY\x00" + struct.pack(f"{byte_order}ii", 1, 1) + b"".join(framed)


@pytest.mark.parametrize("byte_order", "<>")
def test_snappy_when_xerial_versions_are_in_either_byte_order_then_read(byte_order):
    """Case 16: xerial framing, the int32 pair after the magic in either byte order."""
    assert decompress(Codec.SNAPPY, xerial(byte_order, TEXT[:1000], TEXT[1000:])) == TEXT


def test_snappy_when_raw_block_then_read():
    """Case 16: raw snappy blocks."""
    assert decompress(Codec.SNAPPY, snappy.compress(TEXT)) == TEXT


def test_snappy_when_framings_are_concatenated_then_joined():
    assert decompress(Codec.SNAPPY, xerial(">", TEXT) + xerial("<", SMALL)) == TEXT + SMALL


def test_snappy_when_compressed_then_framed_as_java_does():
    payload = compress(Codec.SNAPPY, TEXT[: 32 * 1024 + 1])
    assert payload[:16] == SNAPPY_HEADER
    (first_size,) = struct.unpack_from(">i", payload, 16)
    assert snappy.decompress(payload[20 : 20 + first_size]) == TEXT[: 32 * 1024]


@pytest.mark.parametrize("version", [0, -1])
def test_snappy_when_xerial_version_is_below_one_then_read_as_kafka_does(version):
    payload = bytearray(xerial(">", SMALL))
    struct.pack_into(">i", payload, 8, version)
    assert decompress(Codec.SNAPPY, bytes(payload)) == SMALL


@pytest.mark.parametrize("size", [-1, 2**31 - 1, -(2**31)])
def test_snappy_when_block_size_is_impossible_then_corrupt(size):
    payload = bytearray(xerial(">", SMALL))
    struct.pack_into(">i", payload, 16, size)
    with pytest.raises(CorruptRecordError, match="snappy"):
        decompress(Codec.SNAPPY, payload)


# 36 bytes as Kafka's Java producer frames them: its header checksum as v0 has it, and as later formats do.
KAFKAS = b"kafka kafka kafka kafka kafka kafka!"
LZ4_OF_V0 = bytes.fromhex("04224d18 6040 1a 10000000 6f6b61666b61200600065061666b6121 00000000")
LZ4_OF_V1 = bytes.fromhex("04224d18 6040 82 10000000 6f6b61666b61200600065061666b6121 00000000")


def test_lz4_when_compressed_then_header_checksum_is_that_of_the_message_format():
    """Case 15: the header checksum of v0 is computed over the magic number too; later it is right."""
    assert compress(Codec.LZ4, KAFKAS, magic=0) == LZ4_OF_V0
    assert compress(Codec.LZ4, KAFKAS, magic=1) == LZ4_OF_V1
    assert compress(Codec.LZ4, KAFKAS, magic=2) == LZ4_OF_V1


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("payload", [LZ4_OF_V0, LZ4_OF_V1], ids=["v0", "v1"])
def test_lz4_when_header_checksum_is_of_another_message_format_then_read(payload, magic):
    """Case 15: either header checksum is read in any message format."""
    assert decompress(Codec.LZ4, payload, magic=magic) == KAFKAS


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_lz4_when_its_magic_number_is_damaged_and_the_checksum_of_v0_fits_then_corrupt(magic):
    payload = b"\0\0" + LZ4_OF_V0[2:]
    with pytest.raises(CorruptRecordError, match="lz4: expected a frame"):
        decompress(Codec.LZ4, payload, magic=magic)
    with pytest.raises(CorruptRecordError, match="lz4: expected a"):
        open_stream(Codec.LZ4, payload, limit=1 << 20).read(1)


@pytest.mark.parametrize("checksum", [0x00, 0x1B, 0x83, 0xFF])
def test_lz4_when_header_checksum_is_neither_then_corrupt(checksum):
    payload = bytearray(LZ4_OF_V1)
    payload[6] = checksum
    with pytest.raises(CorruptRecordError, match="lz4"):
        decompress(Codec.LZ4, payload)


def outcome(codec: Codec, payload: bytes, limit: int) -> bytes | str:
    try:
        return bytes(decompress(codec, payload, limit=limit))
    except CorruptRecordError as error:
        return str(error)


@pytest.mark.parametrize("payload", [LZ4_OF_V0, LZ4_OF_V1], ids=["v0", "v1"])
def test_lz4_when_one_block_is_damaged_then_same_outcome_as_of_the_frame_decompressor(payload):
    """A limit below the size of a block keeps from the way that a single block goes."""
    for position in range(len(payload)):
        for change in (*(1 << bit for bit in range(8)), 0xFF):
            damaged = bytearray(payload)
            damaged[position] ^= change
            assert outcome(Codec.LZ4, damaged, 64 * 1024) == outcome(Codec.LZ4, damaged, 64 * 1024 - 1)


def lz4_of_one_block(size: int) -> bytes:
    """A frame as Kafka's, but for its block, which holds `size` bytes: a literal, its long run, 12 literals."""
    whole, rest = divmod(size - 1 - 19 - 12, 255)
    block = b"\x1fk\x01\x00" + b"\xff" * whole + bytes([rest]) + b"\xc0" + b"k" * 12
    return LZ4_OF_V1[:7] + struct.pack("<I", len(block)) + block + bytes(4)


def test_lz4_when_block_holds_more_than_64_kib_then_corrupt():
    assert decompress(Codec.LZ4, lz4_of_one_block(64 * 1024)) == b"k" * 64 * 1024
    with pytest.raises(CorruptRecordError, match="lz4: expected a frame"):
        decompress(Codec.LZ4, lz4_of_one_block(64 * 1024 + 1))


def test_lz4_when_block_takes_more_than_64_kib_then_corrupt():
    literals = b"\xf0" + b"\xff" * 256 + b"\xd8" + bytes(15 + 255 * 256 + 0xD8)
    assert len(literals) > 64 * 1024
    with pytest.raises(CorruptRecordError, match="lz4: expected a frame"):
        decompress(Codec.LZ4, LZ4_OF_V1[:7] + struct.pack("<I", len(literals)) + literals + bytes(4))


def test_lz4_when_end_mark_comes_at_once_then_what_follows_is_ignored():
    assert decompress(Codec.LZ4, LZ4_OF_V1[:7] + bytes(4)) == b""
    assert decompress(Codec.LZ4, LZ4_OF_V1[:7] + bytes(8)) == b""


def test_lz4_when_header_of_v0_has_a_content_size_then_read():
    """Case 15: the header checksum of v0, over a content size as well."""
    payload = bytearray(lz4.frame.compress(KAFKAS, store_size=True, block_linked=False))
    assert payload[14] == 0xEC
    payload[14] = 0x42  # the second byte of xxh32(payload[:14])
    assert decompress(Codec.LZ4, payload) == KAFKAS


@pytest.mark.parametrize("block_size", [4, 5, 6, 7], ids=["64 KiB", "256 KiB", "1 MiB", "4 MiB"])
@pytest.mark.parametrize("linked", [True, False])
def test_lz4_when_blocks_are_linked_or_large_then_read(linked, block_size):
    """Case 15: linked blocks are read."""
    data = TEXT * 3
    payload = lz4.frame.compress(data, block_linked=linked, block_size=block_size, store_size=False)
    assert decompress(Codec.LZ4, payload) == data


@pytest.mark.parametrize("checksum", ["content_checksum", "block_checksum"])
def test_lz4_when_checksum_is_set_then_verified(checksum):
    """Case 15: a content checksum, where set, is verified."""
    payload = bytearray(lz4.frame.compress(noise(1000), **{checksum: True}))
    assert decompress(Codec.LZ4, payload) == noise(1000)
    payload[100] ^= 1
    with pytest.raises(CorruptRecordError, match=r"lz4: .*[cC]hecksum"):
        decompress(Codec.LZ4, payload)


def test_lz4_when_content_size_is_wrong_then_corrupt():
    payload = bytearray(lz4.frame.compress(SMALL) + lz4.frame.compress(TEXT))
    payload[6:15] = lz4.frame.compress(SMALL[:-1])[6:15]
    with pytest.raises(CorruptRecordError, match="lz4"):
        decompress(Codec.LZ4, payload)


SKIPPABLE = b"\x5a\x2a\x4d\x18\x03\x00\x00\x00abc"


def test_lz4_when_several_frames_then_joined():
    """Case 17: an lz4 payload of several frames, one with the header checksum of v0, one to be skipped."""
    frames = [lz4.frame.compress(TEXT), SKIPPABLE, LZ4_OF_V0, compress(Codec.LZ4, b""), LZ4_OF_V1]
    assert decompress(Codec.LZ4, b"".join(frames)) == TEXT + KAFKAS + KAFKAS
    assert decompress(Codec.LZ4, b"".join(reversed(frames))) == KAFKAS + KAFKAS + TEXT


def test_lz4_when_skippable_frame_comes_first_then_skipped():
    assert decompress(Codec.LZ4, SKIPPABLE + LZ4_OF_V1) == KAFKAS


@pytest.mark.parametrize("garbage", [b"\0", b"\x04\x22\x4d", b"garbage" * 20])
def test_lz4_when_followed_by_no_frame_then_ignored_as_java_does(garbage):
    assert decompress(Codec.LZ4, LZ4_OF_V1 + garbage) == KAFKAS


def test_zstd_when_content_size_is_missing_then_read():
    """Case 17: a zstd frame without content size; these bytes are of Kafka's Java producer."""
    assert (
        decompress(Codec.ZSTD, bytes.fromhex("28b52ffd00586c0000386b61666b6120210100b94b11010000")) == KAFKAS
    )
    for data in (TEXT, noise(500_000), b""):
        assert decompress(Codec.ZSTD, zstd_without_content_size(data)) == data


def test_zstd_when_many_small_blocks_expand_far_then_read():
    compressor = zstandard.ZstdCompressor().compressobj()
    payload = b""
    for start in range(0, len(TEXT), 50):
        payload += compressor.compress(TEXT[start : start + 50]) + compressor.flush(
            zstandard.COMPRESSOBJ_FLUSH_BLOCK
        )
    payload += compressor.compress(bytes(50_000_000)) + compressor.flush()
    assert decompress(Codec.ZSTD, payload) == TEXT + bytes(50_000_000)


def test_zstd_when_several_frames_then_joined():
    frames = [
        compress(Codec.ZSTD, TEXT),
        zstd_without_content_size(SMALL),
        SKIPPABLE,
        compress(Codec.ZSTD, b""),
    ]
    assert decompress(Codec.ZSTD, b"".join(frames)) == TEXT + SMALL
    assert decompress(Codec.ZSTD, b"".join(reversed(frames))) == SMALL + TEXT


@pytest.mark.parametrize("window_log", [10, 17, 23, 24, 27])
def test_zstd_when_window_is_small_or_large_then_read(window_log):
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=window_log)
    data = TEXT * 30
    assert decompress(Codec.ZSTD, zstd_without_content_size(data, compression_params=parameters)) == data


def test_zstd_when_checksum_is_set_then_verified():
    payload = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(noise(1000)))
    payload[100] ^= 1
    with pytest.raises(CorruptRecordError, match=r"zstd: .*checksum"):
        decompress(Codec.ZSTD, payload)


@pytest.mark.parametrize("garbage", [b"\0", b"\x28\xb5\x2f\xfd", b"garbage" * 20])
@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.ZSTD])
def test_snappy_and_zstd_when_followed_by_garbage_then_corrupt(codec, garbage):
    for data in (TEXT, b""):
        with pytest.raises(CorruptRecordError, match=codec.name.lower()):
            decompress(codec, compress(codec, data) + garbage)


# Threads


def test_codecs_when_used_by_several_threads_then_each_has_its_own_result():
    def work(seed: int) -> None:
        generator = random.Random(seed)
        for _ in range(60):
            codec, start, size = (
                generator.choice(COMPRESSING),
                generator.randrange(100_000),
                generator.randrange(80_000),
            )
            data = TEXT[start : start + size]
            assert decompress(codec, compress(codec, data)) == data
            with pytest.raises(CorruptRecordError):
                decompress(codec, compress(codec, data + b"x")[:-1])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(16)))


def test_decompress_when_xerial_blocks_are_tiny_and_many_then_holds_none_of_them():
    block = struct.pack(">i", 1) + b"\x00"  # a raw block of nothing
    payload = SNAPPY_HEADER + block * 100_000
    tracemalloc.start()
    try:
        assert bytes(decompress(Codec.SNAPPY, payload, limit=1024)) == b""
        assert tracemalloc.get_traced_memory()[1] < 4 * len(payload)
    finally:
        tracemalloc.stop()
    with pytest.raises(CorruptRecordError):
        decompress(Codec.SNAPPY, SNAPPY_HEADER + struct.pack(">i", 0))


def test_magic_when_it_is_no_number_then_unsupported_compression_type():
    for call in (compress, decompress):
        with pytest.raises(UnsupportedCompressionTypeError):
            call("zstd", b"", magic=float("nan"))
