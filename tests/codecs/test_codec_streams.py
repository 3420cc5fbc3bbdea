"""Payloads read as streams: in any steps what `decompress` returns, and damage where it finds some."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import lz4.frame
import pytest
import snappy
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkafmt.codecs import compress, decompress, open_stream
from kafkafmt.errors import (
    CorruptRecordError,
    DecompressionLimitError,
    UnsupportedCompressionTypeError,
)
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from typing_extensions import Buffer

MIB = 1024 * 1024
TEXT = b"".join(b"offset %d, key user-%d, value %x;" % (n, n * 7919 % 500, n * n) for n in range(30_000))
NOISE = random.Random(7).randbytes(150_000)
PLAIN = TEXT + NOISE + bytes(300_000) + TEXT


def unsized_zstd(data: bytes, window_log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=window_log, write_checksum=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(data) + compressor.flush()


PAYLOADS = {
    "none": (Codec.NONE, PLAIN),
    "gzip": (Codec.GZIP, compress(Codec.GZIP, PLAIN)),
    "gzip members": (Codec.GZIP, compress(Codec.GZIP, PLAIN[:90_000]) + compress(Codec.GZIP, PLAIN[90_000:])),
    "snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, PLAIN)),
    "snappy raw": (Codec.SNAPPY, snappy.compress(PLAIN)),
    "lz4": (Codec.LZ4, compress(Codec.LZ4, PLAIN)),
    "lz4 of v0": (Codec.LZ4, compress(Codec.LZ4, PLAIN, magic=0)),
    "lz4 one block": (Codec.LZ4, compress(Codec.LZ4, PLAIN[:60_000])),
    "lz4 linked, large, checked": (
        Codec.LZ4,
        lz4.frame.compress(
            PLAIN, block_linked=True, block_size=7, content_checksum=True, block_checksum=True
        ),
    ),
    "lz4 frames": (
        Codec.LZ4,
        compress(Codec.LZ4, PLAIN[:90_000]) + lz4.frame.compress(PLAIN[90_000:], store_size=True),
    ),
    "zstd": (Codec.ZSTD, compress(Codec.ZSTD, PLAIN)),
    "zstd of small windows": (Codec.ZSTD, unsized_zstd(PLAIN, 12)),
    "zstd frames": (Codec.ZSTD, unsized_zstd(PLAIN[:90_000], 15) + compress(Codec.ZSTD, PLAIN[90_000:])),
}
KINDS = pytest.mark.parametrize(("codec", "payload"), PAYLOADS.values(), ids=PAYLOADS)


def streamed(codec: Codec, payload: bytes, limit: int = 256 * MIB) -> bytes:
    stream, parts = open_stream(codec, payload, limit=limit), []
    while read := stream.read(50_000):
        parts.append(bytes(read))
    return b"".join(parts)


@KINDS
def test_stream_when_read_to_the_end_then_what_decompress_returns(codec: Codec, payload: bytes) -> None:
    assert streamed(codec, payload) == bytes(decompress(codec, payload))


@settings(deadline=None, max_examples=100)
@given(name=st.sampled_from(sorted(PAYLOADS)), steps=st.lists(st.integers(1, 200_000), max_size=30))
def test_stream_when_read_and_skipped_in_any_steps_then_each_goes_on_where_the_last_ended(
    name: str, steps: list[int]
) -> None:
    codec, payload = PAYLOADS[name]
    plain = bytes(decompress(codec, payload))
    stream, position = open_stream(codec, payload), 0
    for number, step in enumerate(steps):
        if number % 3 == 2:
            stream.skip(step)
            position = min(position + step, len(plain))
            continue
        read = stream.read(step)
        assert bool(read) == (position < len(plain))
        assert len(read) <= step
        assert read == plain[position : position + len(read)]
        position += len(read)


@KINDS
def test_stream_when_limit_is_the_size_then_read_and_when_less_then_limit_error(
    codec: Codec, payload: bytes
) -> None:
    if codec == Codec.NONE:
        pytest.skip("what is not compressed has no limit")
    plain = decompress(codec, payload)
    assert streamed(codec, payload, len(plain)) == bytes(plain)
    for limit in (len(plain) - 1, len(plain) // 2, 1, 0):
        with pytest.raises(DecompressionLimitError, match=codec.name.lower()):
            streamed(codec, payload, limit)


@KINDS
def test_stream_when_payload_is_damaged_then_error_where_decompress_has_one(
    codec: Codec, payload: bytes
) -> None:
    rng = random.Random(len(payload))
    for _ in range(60):
        damaged = bytearray(payload)
        if rng.random() < 0.5:
            del damaged[rng.randrange(len(damaged)) :]
        else:
            damaged[rng.randrange(min(len(damaged), rng.choice([20, 1 << 30])))] ^= 1 << rng.randrange(8)
        assert outcome(streamed, codec, bytes(damaged)) == outcome(decompress, codec, bytes(damaged))


def outcome(read: Callable[..., Buffer], codec: Codec, payload: bytes) -> bytes | None:
    """None for an error: of two that both see, a stream may meet the other first."""
    try:
        return bytes(read(codec, payload, limit=8 * MIB))
    except (CorruptRecordError, DecompressionLimitError):
        return None


def test_stream_when_arguments_are_wrong_then_the_errors_of_decompress() -> None:
    with pytest.raises(UnsupportedCompressionTypeError, match="found 5"):
        open_stream(5, b"x")
    with pytest.raises(UnsupportedCompressionTypeError, match="found v1"):
        open_stream(Codec.ZSTD, b"x", magic=1)
    with pytest.raises(ValueError, match="limit"):
        open_stream(Codec.GZIP, b"x", limit=-1)
    with pytest.raises(TypeError):
        open_stream(Codec.GZIP, "text")  # type: ignore[arg-type]


@KINDS
def test_stream_when_payload_is_large_then_state_is_told_and_far_smaller(
    codec: Codec, payload: bytes
) -> None:
    state_bytes = open_stream(codec, payload).state_bytes
    if payload == PAYLOADS["snappy raw"][1]:
        assert state_bytes == len(PLAIN)  # one block
    elif codec != Codec.NONE and payload not in (PAYLOADS["lz4 linked, large, checked"][1],):
        assert 0 < state_bytes <= 2.6 * MIB
