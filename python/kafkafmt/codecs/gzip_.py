"""gzip (RFC 1952), one member or several, through ISA-L.

As Java's GZIPInputStream: bytes after a member that do not begin another are ignored.
ISA-L knows levels 1 to 3, about as small as zlib's 3 and 4; 4 to 9 go to zlib, which is many times slower and
makes payloads a few per cent smaller.
"""

from __future__ import annotations

import zlib

from isal import igzip_lib, isal_zlib

from kafkafmt.errors import CorruptRecordError, DecompressionLimitError

LEVELS = range(1, 10)

_ISAL_LEVELS = range(1, 4)
_DEFAULT_LEVEL = 2
_GZIP_WINDOW_BITS = 31
_MEMBER_MAGIC = b"\x1f\x8b"
_SIZE_LENGTH = 4  # of a member's uncompressed size, its last field
_MAX_EXPANSION = 1032  # of deflate: 258 bytes from 2 bits
_FURTHER_ROOM_BYTES = 1024 * 1024
# A decompressor copies what it has not used, so later members are fed in pieces: else many cost n squared.
_PIECE_BYTES = 64 * 1024
_IsalError: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]  # its stub says: an instance


def decompress(data: bytes | memoryview, limit: int) -> bytes:
    view = memoryview(data)
    output, position = _decompress_member(view, 0, len(view), limit)
    if position == len(view):
        return output
    outputs = [output]
    remaining = limit - len(output)
    while view[position : position + len(_MEMBER_MAGIC)] == _MEMBER_MAGIC:
        output, position = _decompress_member(view, position, _PIECE_BYTES, remaining)
        outputs.append(output)
        remaining -= len(output)
    return b"".join(outputs)


def _decompress_member(view: memoryview, position: int, piece_bytes: int, limit: int) -> tuple[bytes, int]:
    """Return what the member at `position`, read in pieces, holds, and where it ends."""
    decompressor = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
    outputs = []
    remaining = limit
    # A payload ends with the size of its last, mostly its only, member; a room of that size is the fastest.
    room = min(int.from_bytes(view[-_SIZE_LENGTH:], "little"), len(view) * _MAX_EXPANSION, limit) + 1
    while not decompressor.eof:
        piece = view[position : position + piece_bytes] if decompressor.needs_input else b""
        if decompressor.needs_input and not piece:
            raise CorruptRecordError(f"gzip: expected the end of a member, found the end of all {len(view)}")
        try:
            output = decompressor.decompress(piece, room)
        except _IsalError as error:
            raise CorruptRecordError(f"gzip: expected a member, found {error}") from error
        remaining -= len(output)
        if remaining < 0:
            raise DecompressionLimitError(f"gzip: expected at most {limit} more bytes, found more")
        outputs.append(output)
        position += len(piece)
        room = min(remaining, _FURTHER_ROOM_BYTES) + 1
    return b"".join(outputs), position - len(decompressor.unused_data)


def compress(data: bytes | memoryview, level: int | None, magic: int) -> bytes:
    if level is None or level in _ISAL_LEVELS:
        return isal_zlib.compress(data, level or _DEFAULT_LEVEL, _GZIP_WINDOW_BITS)
    compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    return compressor.compress(data) + compressor.flush()
