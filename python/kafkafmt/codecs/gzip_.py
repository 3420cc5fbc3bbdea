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
# A decompressor copies what it has not used, so later members are fed in pieces: else many cost n squared.
_PIECE_BYTES = 64 * 1024
_IsalError: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]  # its stub says: an instance


def decompress(data: bytes | memoryview, limit: int) -> bytes:
    decompressor = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
    try:
        output = decompressor.decompress(data, limit + 1)
    except _IsalError as error:
        raise CorruptRecordError(f"gzip: expected a gzip member, found {error}") from error
    if len(output) > limit:
        raise _limit_error(limit)
    if not decompressor.eof:
        raise _truncation_error(len(data))
    unused = len(decompressor.unused_data)
    if unused:
        return _decompress_further_members(memoryview(data)[len(data) - unused :], output, limit)
    return output


def _decompress_further_members(data: memoryview, first: bytes, limit: int) -> bytes:
    outputs = [first]
    remaining = limit - len(first)
    position = 0
    while data[position : position + 2] == _MEMBER_MAGIC:
        decompressor = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
        while not decompressor.eof:
            piece = data[position : position + _PIECE_BYTES]
            if not piece:
                raise _truncation_error(len(data))
            try:
                output = decompressor.decompress(piece, remaining + 1)
            except _IsalError as error:
                raise CorruptRecordError(f"gzip: expected another gzip member, found {error}") from error
            remaining -= len(output)
            if remaining < 0:
                raise _limit_error(limit)
            outputs.append(output)
            position += len(piece)
        position -= len(decompressor.unused_data)
    return b"".join(outputs)


def compress(data: bytes | memoryview, level: int | None, magic: int) -> bytes:
    if level is None or level in _ISAL_LEVELS:
        return isal_zlib.compress(data, level or _DEFAULT_LEVEL, _GZIP_WINDOW_BITS)
    compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    return compressor.compress(data) + compressor.flush()


def compress_bound(size: int) -> int:
    # A header and a trailer of 18 bytes; blocks that do not compress are stored, with a header each.
    return size + (size >> 8) + 64


def _limit_error(limit: int) -> DecompressionLimitError:
    return DecompressionLimitError(f"gzip: expected at most {limit} bytes, found more")


def _truncation_error(size: int) -> CorruptRecordError:
    return CorruptRecordError(f"gzip: expected the end of a member, found the end of its {size} bytes")
