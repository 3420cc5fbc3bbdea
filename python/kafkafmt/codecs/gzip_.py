"""gzip (RFC 1952), one member or several, through ISA-L.

Bytes after a member that do not begin another one are ignored, as in Java's GZIPInputStream. ISA-L has levels 1 to 3,
whose output is about as small as that of zlib's levels 3 and 4. zlib compresses at levels 4 to 9: it is many times
slower, and its output is a few per cent smaller.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct

from isal import igzip_lib, isal_zlib

from kafkafmt.codecs.streams import CHUNK_BYTES, PayloadStream
from kafkafmt.errors import CorruptRecordError, DecompressionLimitError

LEVELS = range(1, 10)

_ISAL_LEVELS = range(1, 4)
_DEFAULT_LEVEL = 2
_GZIP_WINDOW_BITS = 31
_MEMBER_MAGIC = b"\x1f\x8b"
_SIZE = Struct("<I")  # the last field of a member: its decompressed size
_MAX_EXPANSION = 1032  # of deflate: 258 bytes from 2 bits
# A decompressor copies its unused input. With larger inputs, a payload of many members would cost quadratic time.
_INPUT_BYTES = 16 * 1024
# The memory of a decompressor, including its unused input.
_STATE_BYTES = 112 * 1024
_IsalError: type[Exception] = igzip_lib.IsalError  # type: ignore[assignment]  # its stub says: an instance


def decompress(data: bytes | memoryview, limit: int) -> bytes:
    length = len(data)
    # A payload ends with the size of its last member, which is mostly its only one. An exact size is fastest.
    size = _SIZE.unpack_from(data, length - _SIZE.size)[0] if length >= _SIZE.size else 0
    if 0 < size <= min(limit, length * _MAX_EXPANSION):
        decompressor = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
        output = _inflate(decompressor, data, size + 1)
        if decompressor.eof and not decompressor.unused_data and len(output) <= limit:
            return output
    return b"".join(_chunks(memoryview(data), limit))


def open_stream(data: bytes | memoryview, limit: int) -> PayloadStream:
    return PayloadStream(_chunks(memoryview(data), limit), _STATE_BYTES + CHUNK_BYTES)


def _chunks(view: memoryview, limit: int) -> Iterator[bytes]:
    position, remaining = 0, limit
    while True:
        decompressor = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
        while not decompressor.eof:
            chunk = view[position : position + _INPUT_BYTES] if decompressor.needs_input else view[:0]
            if decompressor.needs_input and not chunk:
                raise CorruptRecordError(
                    f"gzip: expected the end of a member, found the end of all {len(view)}"
                )
            output = _inflate(decompressor, chunk, min(remaining + 1, CHUNK_BYTES))
            position += len(chunk)
            remaining -= len(output)
            if remaining < 0:
                raise DecompressionLimitError(f"gzip: expected at most {limit} bytes, found more")
            if output:
                yield output
        position -= len(decompressor.unused_data)
        if view[position : position + len(_MEMBER_MAGIC)] != _MEMBER_MAGIC:
            return


def _inflate(decompressor: igzip_lib.IgzipDecompressor, chunk: bytes | memoryview, room: int) -> bytes:
    try:
        return decompressor.decompress(chunk, room)
    except _IsalError as error:
        raise CorruptRecordError(f"gzip: expected a member, found {error}") from error


def compress(data: bytes | memoryview, level: int | None, magic: int) -> bytes:
    if level is None or level in _ISAL_LEVELS:
        return isal_zlib.compress(data, level or _DEFAULT_LEVEL, _GZIP_WINDOW_BITS)
    compressor = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    return compressor.compress(data) + compressor.flush()
