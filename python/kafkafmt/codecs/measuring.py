"""How much a payload decompresses to, found without holding it: for messages about what a limit has refused.

Counted piece by piece, by the libraries' own streams; nothing is promised of damaged payloads but an end.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

import lz4.frame
import zstandard

from kafkafmt.codecs import snappy_
from kafkafmt.errors import CorruptRecordError
from kafkafmt.types import Codec

_PIECE_BYTES = 256 * 1024
_GZIP_WINDOW_BITS = 31
_MOST_WINDOW_BYTES = 8 * 1024 * 1024
_DAMAGE = (CorruptRecordError, EOFError, RuntimeError, zlib.error, zstandard.ZstdError)


def decompressed_bytes(codec: Codec | int, payload: memoryview) -> int | None:
    """What `payload` holds, in bytes; None where that cannot be found out in little memory."""
    count = _COUNTS.get(codec)
    if count is None:
        return len(payload)
    try:
        return sum(count(payload))
    except _DAMAGE:
        return None


def _gzip(payload: memoryview) -> Iterator[int]:
    rest: bytes | memoryview = payload
    while len(rest):
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        position = 0
        while not member.eof:
            piece = member.unconsumed_tail or rest[position : position + _PIECE_BYTES]
            if not member.unconsumed_tail:
                position += len(piece)
            output = member.decompress(piece, _PIECE_BYTES)
            if not output and not len(piece):
                raise EOFError
            yield len(output)
        rest = rest[position - len(member.unused_data) :]


def _lz4(payload: memoryview) -> Iterator[int]:
    position = 0
    while position < len(payload):
        frame = lz4.frame.LZ4FrameDecompressor()
        while not frame.eof:
            piece = payload[position : position + _PIECE_BYTES] if frame.needs_input else b""
            if frame.needs_input and not len(piece):
                raise EOFError
            position += len(piece)
            yield len(frame.decompress(piece, _PIECE_BYTES))
        position -= len(frame.unused_data or b"")


def _snappy(payload: memoryview) -> Iterator[int]:
    yield snappy_.decompressed_bytes(payload)


def _zstd(payload: memoryview) -> Iterator[int]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)
    with decompressor.stream_reader(payload, read_across_frames=True) as reader:
        while piece := reader.read(_PIECE_BYTES):
            yield len(piece)


_COUNTS: dict[int, Callable[[memoryview], Iterator[int]]] = {
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
