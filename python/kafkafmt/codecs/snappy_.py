"""snappy: xerial's framing, which Kafka writes, and the raw block, which some clients write.

    magic 0x82 "SNAPPY" 0x00 | version int32 | compatible version int32 | { size int32 | raw block } ...

The two versions come in either byte order. As in Java's SnappyInputStream, a framing may be followed by
another. All blocks are measured first, then decompressed into one buffer of the exact size: cramjam, which
python-snappy wraps, does that without a copy, python-snappy does not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from cramjam import DecompressionError
from cramjam import snappy as raw_snappy

from kafkafmt.errors import CorruptRecordError, DecompressionLimitError

_MAGIC = b"\x82SNAPPY\x00"
_HEADER = _MAGIC + struct.pack(">ii", 1, 1)
_SIZE = struct.Struct(">i")
_BLOCK_BYTES = 32 * 1024  # of Java's SnappyOutputStream
_MAX_EXPANSION = 22  # the densest element is 3 bytes that copy 64


def decompress(data: bytes | memoryview, limit: int) -> bytearray:
    view = memoryview(data)
    is_xerial = data[: len(_MAGIC)] == _MAGIC
    try:
        size = sum(map(_length, _xerial_blocks(view))) if is_xerial else _length(view)
        if size > limit:
            raise DecompressionLimitError(f"snappy: expected at most {limit} bytes, found {size}")
        output = bytearray(size)
        if not is_xerial:
            raw_snappy.decompress_raw_into(view, output)
            return output
        room = memoryview(output)
        for block in _xerial_blocks(view):
            length = _length(block)
            raw_snappy.decompress_raw_into(block, room[:length])
            room = room[length:]
    except DecompressionError as error:
        raise CorruptRecordError(f"snappy: expected a raw block, found {error}") from error
    return output


def _length(block: memoryview) -> int:
    """Return the length that a raw block declares, if it can be true."""
    length = raw_snappy.decompress_raw_len(block)
    if length > len(block) * _MAX_EXPANSION:
        raise CorruptRecordError(f"snappy: expected {len(block)} bytes to hold {length}, found too few")
    return length


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    """The blocks, one by one: millions of tiny ones in one payload are never held."""
    end = len(view)
    position = 0
    while position != end:
        if view[position : position + len(_MAGIC)] == _MAGIC:
            position = _after_header(view, position)
            continue
        if end - position < _SIZE.size:
            raise CorruptRecordError(f"snappy: expected a block size, found {end - position} bytes")
        (size,) = _SIZE.unpack_from(view, position)
        position += _SIZE.size
        if size < 1 or size > end - position:
            raise CorruptRecordError(f"snappy: expected a block of {size} bytes, found {end - position}")
        yield view[position : position + size]
        position += size


def _after_header(view: memoryview, position: int) -> int:
    room = len(view) - position
    if room < len(_HEADER):
        raise CorruptRecordError(f"snappy: expected a header of {len(_HEADER)} bytes, found {room}")
    (version,) = _SIZE.unpack_from(view, position + len(_MAGIC))
    if version < 1:  # Java's own test; 1 in the other byte order passes it
        raise CorruptRecordError(f"snappy: expected version 1 or later, found {version}")
    return position + len(_HEADER)


def compress(data: bytes | memoryview, level: int | None, magic: int) -> bytes:
    view = memoryview(data)
    output = bytearray(compress_bound(len(view)))
    room = memoryview(output)
    room[: len(_HEADER)] = _HEADER
    position = len(_HEADER)
    for start in range(0, len(view), _BLOCK_BYTES):
        block_position = position + _SIZE.size
        size = raw_snappy.compress_raw_into(view[start : start + _BLOCK_BYTES], room[block_position:])
        _SIZE.pack_into(output, position, size)
        position = block_position + size
    return bytes(room[:position])


def compress_bound(size: int) -> int:
    whole, rest = divmod(size, _BLOCK_BYTES)
    bound = len(_HEADER) + whole * (_SIZE.size + _raw_bound(_BLOCK_BYTES))
    return bound + _SIZE.size + _raw_bound(rest) if rest else bound


def _raw_bound(size: int) -> int:
    return 32 + size + size // 6
