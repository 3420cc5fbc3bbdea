"""The registry of compression codecs.

Each other module of this package implements one format as Kafka's Java does. All of them guarantee:
- the output has at most `limit` bytes;
- a size that the data declares is allocated only if data of that length can decompress to it;
- damage raises `CorruptRecordError`, never an exception of a library;
- several threads may call them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from kafkafmt._util.buffers import flat_view
from kafkafmt.codecs import gzip_, lz4_, snappy_, zstd_
from kafkafmt.codecs.streams import PayloadStream
from kafkafmt.errors import UnsupportedCompressionTypeError
from kafkafmt.types import Codec, CodecLike, as_codec, check_int

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "CODECS",
    "DEFAULT_MAX_DECOMPRESSED_BYTES",
    "compress",
    "decompress",
    "open_stream",
    "unsupported_error",
]

DEFAULT_MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CodecImplementation:
    """One codec. Its functions take `bytes` or a flat `memoryview` of bytes.

    levels: the compression levels, empty if the codec has none. first_magic: the oldest message format that has it.
    """

    decompress: Callable[[bytes | memoryview, int], bytes | bytearray | memoryview]
    compress: Callable[[bytes | memoryview, int | None, int], bytes]
    open_stream: Callable[[bytes | memoryview, int], PayloadStream]
    levels: range
    first_magic: int = 0


def _as_is(data: bytes | memoryview, limit: int) -> bytes | memoryview:
    return data


def _streamed_as_is(data: bytes | memoryview, limit: int) -> PayloadStream:
    return PayloadStream(iter((data,)), 0)


def _copied(data: bytes | memoryview, level: int | None, magic: int) -> bytes:
    return bytes(data)


CODECS: dict[int, CodecImplementation] = {
    Codec.NONE: CodecImplementation(_as_is, _copied, _streamed_as_is, range(0)),
    Codec.GZIP: CodecImplementation(gzip_.decompress, gzip_.compress, gzip_.open_stream, gzip_.LEVELS),
    Codec.SNAPPY: CodecImplementation(snappy_.decompress, snappy_.compress, snappy_.open_stream, range(0)),
    Codec.LZ4: CodecImplementation(lz4_.decompress, lz4_.compress, lz4_.open_stream, lz4_.LEVELS),
    Codec.ZSTD: CodecImplementation(zstd_.decompress, zstd_.compress, zstd_.open_stream, zstd_.LEVELS, 2),
}


def decompress(
    codec: CodecLike | int, data: Buffer, *, limit: int = DEFAULT_MAX_DECOMPRESSED_BYTES, magic: int = 2
) -> bytes | bytearray | memoryview:
    """Decompress `data`, the compressed part of a record batch of format `magic`.

    codec: a `Codec`, its number, or its name. `Codec.NONE` returns the data itself, without a copy and without a limit.

    Raises `DecompressionLimitError` if the output would exceed `limit` bytes, and `CorruptRecordError` for a damaged,
    truncated or empty payload. Raises `UnsupportedCompressionTypeError` for an id that Kafka does not use, and for zstd
    before message format v2. Raises `TypeError` for an object that is not a C-contiguous buffer.
    """
    implementation, flat = _to_decompress(codec, data, limit, magic)
    return implementation.decompress(flat, limit)


def open_stream(
    codec: CodecLike | int, data: Buffer, *, limit: int = DEFAULT_MAX_DECOMPRESSED_BYTES, magic: int = 2
) -> PayloadStream:
    """Return what `decompress` returns as a stream, which is read from its start.

    Opening or reading raises as `decompress` does. The bytes before a damaged place can be read.
    """
    implementation, flat = _to_decompress(codec, data, limit, magic)
    return implementation.open_stream(flat, limit)


def _to_decompress(
    codec: CodecLike | int, data: Buffer, limit: int, magic: int
) -> tuple[CodecImplementation, bytes | memoryview]:
    """Return the implementation of a codec, and the data in the form that it accepts."""
    number = as_codec(codec) if isinstance(codec, str) else codec
    implementation = _implementation(number, magic)
    if limit < 0:
        raise ValueError(f"limit: expected 0 or more, found {limit}")
    flat = data if _is_flat(data) else flat_view(data)
    if magic == 0 and number == Codec.LZ4:
        flat = lz4_.ignoring_header_checksum(flat)
    return implementation, flat


def _implementation(codec: int, magic: int) -> CodecImplementation:
    implementation = CODECS.get(codec)
    if implementation is None or not magic >= implementation.first_magic or isinstance(codec, float):
        raise unsupported_error(codec, magic)
    return implementation


def compress(codec: CodecLike | int, data: Buffer, *, level: int | None = None, magic: int = 2) -> bytes:
    """Compress `data` as Kafka's producer does in message format `magic`.

    >>> decompress("lz4", compress("lz4", b"value"))
    b'value'

    level: 1 to 9 for gzip, 1 to 17 for lz4, -7 to 22 for zstd; None is the codec's fast default. These are the ranges
    of Kafka's `compression.<codec>.level`, except that Kafka's levels of zstd begin at -131072. Level 9 of lz4 is
    Kafka's fast default; here it is slower than level 8.

    Raises `ValueError` for a level outside that range, and for any level if the codec has none. Raises
    `UnsupportedCompressionTypeError` and `TypeError` as `decompress` does.
    """
    number = as_codec(codec) if isinstance(codec, str) else codec
    implementation = _implementation(number, magic)
    check_level(number, level)
    return implementation.compress(data if _is_flat(data) else flat_view(data), level, magic)


def _is_flat(data: Buffer) -> TypeGuard[bytes | memoryview]:
    """Return whether the implementations accept `data` unchanged. This check costs less than another view."""
    return type(data) is bytes or (
        type(data) is memoryview and data.format == "B" and data.ndim == 1 and data.c_contiguous
    )


def unsupported_error(codec: int, magic: int) -> UnsupportedCompressionTypeError:
    """Return the error for a codec that is not in `CODECS`, or not in format `magic`.

    Raises TypeError if `codec` is not an integer.
    """
    if not hasattr(codec, "__index__"):
        raise TypeError(f"codec: expected a Codec or the name of one, found {type(codec).__name__}")
    if codec not in CODECS:
        return UnsupportedCompressionTypeError(f"compression type: expected 0 to 4, found {codec}")
    expected = f"message format v{CODECS[codec].first_magic} or later"
    return UnsupportedCompressionTypeError(
        f"{Codec(codec).name.lower()}: expected {expected}, found v{magic}"
    )


def check_level(codec: int, level: int | None) -> None:
    """Raise ValueError for a level that a codec of `CODECS` does not have. None is allowed for every codec."""
    if level is None:
        return
    check_int("level", level)
    levels = CODECS[codec].levels
    if level in levels:
        return
    name = Codec(codec).name.lower()
    if not levels:
        with_levels = ", ".join(Codec(one).name.lower() for one, found in CODECS.items() if found.levels)
        raise ValueError(
            f"{name} has no compression levels, but level is {level}: expected codec {with_levels}, or no level"
        )
    raise ValueError(f"{name} level must be {levels[0]} to {levels[-1]}, not {level!r}")
