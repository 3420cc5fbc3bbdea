"""gzip (RFC 1952), one member or several, through ISA-L.

As Java's GZIPInputStream: bytes after a member that do not begin another are ignored.
ISA-L knows levels 1 to 3, about as small as zlib's 3 and 4; 4 to 9 go to zlib, which is many times slower and
makes payloads a few per cent smaller.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct

from isal import igzip_lib, isal_zlib

from kafkafmt.codecs.streams import PIECE_BYTES, PayloadStream
from kafkafmt.errors import CorruptRecordError, DecompressionLimitError

LEVELS = range(1, 10)

_ISAL_LEVELS = range(1, 4)
_DEFAULT_LEVEL = 2
_GZIP_WINDOW_BITS = 31
_MEMBER_MAGIC = b"\x1f\x8b"
_SIZE = Struct("<I")  # of what a member holds, its last field
_MAX_EXPANSION = 1032  # of deflate: 258 bytes from 2 bits
_FURTHER_ROOM_BYTES = 1024 * 1024
# A decompressor copies what it has not used, so later members are fed in pieces: else many cost n squared.
_PIECE_BYTES = 64 * 1024
# What a decompressor takes, the input included that it has not used.
_STATE_BYTES = 112 * 1024
_STREAMED_INPUT_BYTES = 16 * 1024
_IsalError: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]  # its stub says: an instance


def decompress(data: bytes | memoryview, limit: int) -> bytes:
    length = len(data)
    if length < _SIZE.size:
        raise CorruptRecordError(f"gzip: expected the end of a member, found the end of all {length}")
    # A payload ends with the size of its last, mostly its only, member; a room of that size is the fastest.
    (size,) = _SIZE.unpack_from(data, length - _SIZE.size)
    is_possible = size <= limit and size <= length * _MAX_EXPANSION
    room = (size if is_possible else min(limit, _FURTHER_ROOM_BYTES)) + 1
    decompressor = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
    output = _inflate(decompressor, data, room)
    if decompressor.eof and not decompressor.unused_data and len(output) <= limit:
        return output
    view = memoryview(data)
    output, position = _finish_member(decompressor, output, view, length, limit)
    outputs = [output]
    remaining = limit - len(output)
    while view[position : position + len(_MEMBER_MAGIC)] == _MEMBER_MAGIC:
        decompressor = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
        piece = view[position : position + _PIECE_BYTES]
        output = _inflate(decompressor, piece, min(room, remaining + 1))
        output, position = _finish_member(decompressor, output, view, position + len(piece), remaining)
        outputs.append(output)
        remaining -= len(output)
    return b"".join(outputs)


def _finish_member(
    decompressor: igzip_lib.IgzipDecompressor, output: bytes, view: memoryview, position: int, limit: int
) -> tuple[bytes, int]:
    """Go on at `position`, up to which the member gave `output`; return what it holds, and where it ends."""
    outputs = [output]
    remaining = limit - len(output)
    while remaining >= 0 and not decompressor.eof:
        piece = view[position : position + _PIECE_BYTES] if decompressor.needs_input else b""
        if decompressor.needs_input and not piece:
            raise CorruptRecordError(f"gzip: expected the end of a member, found the end of all {len(view)}")
        output = _inflate(decompressor, piece, min(remaining, _FURTHER_ROOM_BYTES) + 1)
        outputs.append(output)
        position += len(piece)
        remaining -= len(output)
    if remaining < 0:
        raise DecompressionLimitError(f"gzip: expected at most {limit} more bytes, found more")
    return b"".join(outputs), position - len(decompressor.unused_data)


def open_stream(data: bytes | memoryview, limit: int) -> PayloadStream:
    return PayloadStream(_pieces(memoryview(data), limit), _STATE_BYTES + PIECE_BYTES)


def _pieces(view: memoryview, limit: int) -> Iterator[bytes]:
    position, remaining = 0, limit
    while True:
        decompressor = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
        while not decompressor.eof:
            piece = (
                view[position : position + _STREAMED_INPUT_BYTES] if decompressor.needs_input else view[:0]
            )
            if decompressor.needs_input and not piece:
                raise CorruptRecordError(
                    f"gzip: expected the end of a member, found the end of all {len(view)}"
                )
            output = _inflate(decompressor, piece, min(remaining + 1, PIECE_BYTES))
            position += len(piece)
            remaining -= len(output)
            if remaining < 0:
                raise DecompressionLimitError(f"gzip: expected at most {limit} bytes, found more")
            if output:
                yield output
        position -= len(decompressor.unused_data)
        if view[position : position + len(_MEMBER_MAGIC)] != _MEMBER_MAGIC:
            return


def _inflate(decompressor: igzip_lib.IgzipDecompressor, piece: bytes | memoryview, room: int) -> bytes:
    try:
        return decompressor.decompress(piece, room)
    except _IsalError as error:
        raise CorruptRecordError(f"gzip: expected a member, found {error}") from error


def compress(data: bytes | memoryview, level: int | None, magic: int) -> bytes:
    if level is None or level in _ISAL_LEVELS:
        return isal_zlib.compress(data, level or _DEFAULT_LEVEL, _GZIP_WINDOW_BITS)
    compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    return compressor.compress(data) + compressor.flush()
