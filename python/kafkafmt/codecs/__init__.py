"""The one registry of compression codecs: Kafka's nouns in, bytes out, every output capped.

Each module beside this one speaks one format as Kafka's Java does and translates its library's exceptions.
What all of them promise: no more than `limit` bytes come out; no number that the data declares is allocated
unless the data could hold it; damage is a `CorruptRecordError`, never an exception of a library. Everything
here may be called from several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from kafkafmt.buffers import flat_view
from kafkafmt.codecs import gzip_, lz4_, snappy_, zstd_
from kafkafmt.codecs.streams import PayloadStream
from kafkafmt.errors import UnsupportedCompressionTypeError
from kafkafmt.types import Codec, CodecLike, as_codec

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
    """One codec. Its functions take `bytes` or a flat `memoryview` of bytes; it may have no levels."""

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
    """Return what `data`, the compressed part of a record batch of format `magic`, holds.

    codec: a `Codec`, its number, or its name. `Codec.NONE` returns the data itself, without copy and whatever its size.

    Raises `DecompressionLimitError` once the output would pass `limit` bytes, `CorruptRecordError` for a
    damaged, a cut or an empty payload, `UnsupportedCompressionTypeError` for an id that Kafka has not given
    out and for zstd before message format v2, `TypeError` for what is no C-contiguous buffer.
    """
    if isinstance(codec, str):
        codec = as_codec(codec)
    implementation = CODECS.get(codec)
    if implementation is None or magic < implementation.first_magic:
        raise unsupported_error(codec, magic)
    if limit < 0:
        raise ValueError(f"limit must not be negative, not {limit}")
    flat = data if _is_flat(data) else flat_view(data)
    if magic == 0 and codec == Codec.LZ4:
        flat = lz4_.ignoring_header_checksum(flat)
    return implementation.decompress(flat, limit)


def open_stream(
    codec: CodecLike | int, data: Buffer, *, limit: int = DEFAULT_MAX_DECOMPRESSED_BYTES, magic: int = 2
) -> PayloadStream:
    """What `decompress` returns, as a stream to read from its start on.

    Opening and reading raise what `decompress` does, each where it comes to that: what is in front of damage is read.
    """
    if isinstance(codec, str):
        codec = as_codec(codec)
    implementation = CODECS.get(codec)
    if implementation is None or magic < implementation.first_magic:
        raise unsupported_error(codec, magic)
    if limit < 0:
        raise ValueError(f"limit must not be negative, not {limit}")
    flat = data if _is_flat(data) else flat_view(data)
    if magic == 0 and codec == Codec.LZ4:
        flat = lz4_.ignoring_header_checksum(flat)
    return implementation.open_stream(flat, limit)


def compress(codec: CodecLike | int, data: Buffer, *, level: int | None = None, magic: int = 2) -> bytes:
    """Return `data` compressed as Kafka's own producer frames it in message format `magic`.

    >>> decompress("lz4", compress("lz4", b"value"))
    b'value'

    `level` is gzip's 1 to 9, lz4's 1 to 17 or zstd's -7 to 22, as in Kafka's `compression.<codec>.level`;
    None is the codec's fast default. Raises `ValueError` for a level outside that range and for any level
    where the codec has none, else as `decompress`.
    """
    if isinstance(codec, str):
        codec = as_codec(codec)
    implementation = CODECS.get(codec)
    if implementation is None or magic < implementation.first_magic:
        raise unsupported_error(codec, magic)
    check_level(codec, level)
    return implementation.compress(data if _is_flat(data) else flat_view(data), level, magic)


def _is_flat(data: Buffer) -> TypeGuard[bytes | memoryview]:
    """Whether `data` is what the implementations take; asking costs less than one more view does."""
    return type(data) is bytes or (
        type(data) is memoryview and data.format == "B" and data.ndim == 1 and data.c_contiguous
    )


def unsupported_error(codec: int, magic: int) -> UnsupportedCompressionTypeError:
    """The error for a codec that `CODECS` has not, or not in format `magic`."""
    if codec not in CODECS:
        if not hasattr(codec, "__index__"):
            raise TypeError(f"codec: expected a Codec or the name of one, found {type(codec).__name__}")
        return UnsupportedCompressionTypeError(f"compression type: expected 0 to 4, found {codec}")
    expected = f"message format v{CODECS[codec].first_magic} or later"
    return UnsupportedCompressionTypeError(
        f"{Codec(codec).name.lower()}: expected {expected}, found v{magic}"
    )


def check_level(codec: int, level: int | None) -> None:
    """Raise ValueError for a level that a codec of `CODECS` has not; None is every codec's own."""
    levels = CODECS[codec].levels
    if level is None or level in levels:
        return
    name = Codec(codec).name.lower()
    if not levels:
        raise ValueError(f"{name} has no compression levels, but level is {level}")
    raise ValueError(f"{name} level must be {levels[0]} to {levels[-1]}, not {level!r}")
