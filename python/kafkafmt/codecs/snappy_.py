"""snappy in xerial's framing, which Kafka writes, and as a raw block, which some clients write.

    magic 0x82 "SNAPPY" 0x00 | version int32 | compatible version int32 | { size int32 | raw block } ...

The two versions occur in either byte order. Kafka and franz-go do not check them, nor does this module. Another header
may follow a block, as in Java's SnappyInputStream.

python-snappy compresses. cramjam, on which it is built, decompresses, because it can write into a given buffer. All
blocks of a payload are measured first, and then decompressed into one buffer of the exact size.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from cramjam import DecompressionError
from cramjam import snappy as raw_snappy
from snappy import compress as compress_block

from kafkafmt.codecs.streams import PayloadStream
from kafkafmt.errors import CorruptRecordError, DecompressionLimitError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAGIC = b"\x82SNAPPY\x00"
_HEADER = _MAGIC + struct.pack(">ii", 1, 1)
_SIZE = struct.Struct(">i")
_ONE_BLOCK = struct.Struct(f">{len(_HEADER)}si")  # the header, and the size of the only block
_BLOCK_BYTES = 32 * 1024  # of Java's SnappyOutputStream
_MAX_EXPANSION = 22  # the densest element is 3 bytes that copy 64


def decompress(data: bytes | memoryview, limit: int) -> bytearray:
    try:
        if _is_one_block(data):
            return _decompress_block(data[_ONE_BLOCK.size :], limit)
        if data[: len(_MAGIC)] == _MAGIC:
            return _decompress_blocks(memoryview(data), limit)
        return _decompress_block(data, limit)
    except DecompressionError as error:
        raise CorruptRecordError(f"snappy: expected a raw block, found {error}") from error


def _is_one_block(data: bytes | memoryview) -> bool:
    """Return whether this is a framing of one block, as Kafka writes it for a batch of up to 32 KiB."""
    if len(data) <= _ONE_BLOCK.size:
        return False
    return _ONE_BLOCK.unpack_from(data) == (_HEADER, len(data) - _ONE_BLOCK.size)


def decompressed_bytes(data: memoryview) -> int:
    """Return the decompressed size in bytes that the blocks of `data` declare."""
    if data[: len(_MAGIC)] == _MAGIC:
        return sum(map(_length, _xerial_blocks(data)))
    return _length(data)


def _decompress_block(block: bytes | memoryview, limit: int) -> bytearray:
    size = _length(block)
    if size > limit:
        raise _limit_error(limit, size)
    output = bytearray(size)
    raw_snappy.decompress_raw_into(block, output)
    return output


def _decompress_blocks(view: memoryview, limit: int) -> bytearray:
    size = decompressed_bytes(view)
    if size > limit:
        raise _limit_error(limit, size)
    output = bytearray(size)
    room: Any = np.frombuffer(output, np.uint8)  # without the GIL, cramjam writes into no memoryview
    for block in _xerial_blocks(view):
        length = _length(block)
        raw_snappy.decompress_raw_into(block, room[:length])
        room = room[length:]
    return output


def open_stream(data: bytes | memoryview, limit: int) -> PayloadStream:
    view = memoryview(data)
    try:
        blocks = _xerial_blocks(view) if view[: len(_MAGIC)] == _MAGIC else iter((view,))
        largest = max(map(_length, blocks), default=0)
    except DecompressionError as error:
        raise CorruptRecordError(f"snappy: expected a raw block, found {error}") from error
    return PayloadStream(_chunks(view, limit), largest)


def _chunks(view: memoryview, limit: int) -> Iterator[bytearray]:
    remaining = limit
    for block in _xerial_blocks(view) if view[: len(_MAGIC)] == _MAGIC else iter((view,)):
        try:
            output = _decompress_block(block, remaining)
        except DecompressionError as error:
            raise CorruptRecordError(f"snappy: expected a raw block, found {error}") from error
        remaining -= len(output)
        yield output


def _limit_error(limit: int, size: int) -> DecompressionLimitError:
    return DecompressionLimitError(f"snappy: expected at most {limit} bytes, found {size}")


def _length(block: bytes | memoryview) -> int:
    """Return the length that a raw block declares. Raises CorruptRecordError if the block cannot hold as much."""
    length = raw_snappy.decompress_raw_len(block)
    if length > len(block) * _MAX_EXPANSION:
        raise CorruptRecordError(f"snappy: expected {len(block)} bytes to hold {length}, found too few")
    return length


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    """Yield the blocks one by one, because a payload may have millions of tiny ones."""
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
    return position + len(_HEADER)


def compress(data: bytes | memoryview, level: int | None, magic: int) -> bytes:
    if 0 < len(data) <= _BLOCK_BYTES:  # most payloads; this is faster than the loop below
        block: bytes = compress_block(data)
        return _ONE_BLOCK.pack(_HEADER, len(block)) + block
    view = memoryview(data)
    chunks: list[Buffer] = [_HEADER]
    for start in range(0, len(view), _BLOCK_BYTES):
        block = compress_block(view[start : start + _BLOCK_BYTES])
        chunks += (_SIZE.pack(len(block)), block)
    return b"".join(chunks)
