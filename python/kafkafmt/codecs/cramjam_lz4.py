"""The functions of the packages lz4.frame and lz4.block that `lz4_` uses, on the block functions of cramjam.

They serve from Python 3.14 on: the package lz4 has no wheels for free-threaded Python. Frames are read and written
here. cramjam decompresses a block into memory of at most the frame's block size, so output is bounded. Blocks that
refer to earlier blocks are decompressed in Python, which is slow; Kafka's clients do not write them.
"""

from __future__ import annotations

from collections.abc import Sequence

from cramjam import DecompressionError
from cramjam import lz4 as blocks

from _kafkafmt.crc.xxh32 import XXH32, xxh32
from kafkafmt.codecs.lz4_header import header_checksum

BLOCKSIZE_MAX64KB = 4

_FRAME_MAGIC = b"\x04\x22\x4d\x18"
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"  # after a byte 0x50 to 0x5f, before an int32 size
_SKIPPABLE_HEADER_LENGTH = 8
_DESCRIPTOR_OFFSET = len(_FRAME_MAGIC)
_SHORTEST_HEADER = _DESCRIPTOR_OFFSET + 3
_VERSION, _INDEPENDENT, _BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM, _DICTIONARY = 1, 32, 16, 8, 4, 1
_RESERVED_FLAGS, _RESERVED_SIZES = 0x02, 0x8F
_SIZE_LENGTH, _CONTENT_SIZE_LENGTH, _CHECKSUM_LENGTH = 4, 8, 4
_STORED_BLOCK = 0x80000000
_BLOCK_BYTES = 64 * 1024
_HISTORY_BYTES = 64 * 1024
_KAFKAS_HEADER = _FRAME_MAGIC + b"\x60\x40\x82"  # independent blocks of 64 KiB, no content size, no checksums
_END_MARK = bytes(_SIZE_LENGTH)
_LEAST_HIGH_LEVEL = 3  # lower levels are the fast mode
_MAX_EXPANSION = 255  # of a block: each byte that continues a length adds at most as much


class LZ4BlockError(Exception):
    """A block is damaged."""


def decompress(source: bytes | memoryview, uncompressed_size: int) -> bytes:
    """Decompress a block of at most `uncompressed_size` bytes."""
    return bytes(_decompressed(source, uncompressed_size))


def _decompressed(source: bytes | memoryview, most: int) -> memoryview:
    # No more than the block can hold: clearing 4 MiB takes a millisecond, and a payload may have millions of blocks.
    output = bytearray(min(most, len(source) * _MAX_EXPANSION))
    try:
        size = blocks.decompress_block_into(source, output, len(output))
    except DecompressionError as error:
        raise LZ4BlockError(str(error)) from error
    return memoryview(output)[:size]


def compress(
    data: bytes | memoryview, *, compression_level: int, block_size: int, block_linked: bool, store_size: bool
) -> bytes:
    """Return a frame as Kafka's clients write it: the other arguments are always those of its header."""
    pieces: Sequence[bytes | memoryview]
    if compression_level < _LEAST_HIGH_LEVEL:
        view = memoryview(data)
        pieces = [
            _fast_block(view[start : start + _BLOCK_BYTES]) for start in range(0, len(view), _BLOCK_BYTES)
        ]
    else:
        pieces = _high_blocks(data, compression_level)
    return b"".join((_KAFKAS_HEADER, *pieces, _END_MARK))


def _fast_block(block: memoryview) -> bytes:
    packed = memoryview(blocks.compress_block(block, store_size=False))
    if len(packed) < len(block):
        return b"".join((len(packed).to_bytes(_SIZE_LENGTH, "little"), packed))
    return b"".join(((len(block) | _STORED_BLOCK).to_bytes(_SIZE_LENGTH, "little"), block))


def _high_blocks(data: bytes | memoryview, level: int) -> list[memoryview]:
    """Return the blocks of a frame of cramjam without their checksums. Its function for one block has no levels."""
    compressor = blocks.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # it takes nothing else
    frame = memoryview(bytes(compressor.finish()))
    pieces = []
    position = len(_KAFKAS_HEADER)
    while frame[position : position + _SIZE_LENGTH] != _END_MARK:
        size = int.from_bytes(frame[position : position + _SIZE_LENGTH], "little") & ~_STORED_BLOCK
        pieces.append(frame[position : position + _SIZE_LENGTH + size])
        position += _SIZE_LENGTH + size + _CHECKSUM_LENGTH
    return pieces


class _Context:
    """The state of a frame that is read in pieces. `flags` is 0 before the header."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.flags = 0
        self.block_bytes = 0
        self.bytes_left: int | None = None  # of the content, if its size is declared
        self.history = b""
        self.content_checksum = XXH32()  # of what was decompressed, if the frame has one
        self.output = memoryview(b"")  # decompressed and not returned yet


def create_decompression_context() -> _Context:
    """Return the state of a frame before its first byte. It can be used again after the end of a frame."""
    return _Context()


def decompress_chunk(
    context: _Context, data: bytes | memoryview, *, max_length: int = -1
) -> tuple[bytes, int, bool]:
    """Decompress the next bytes of a frame. Return the output, the bytes that were read, and whether the frame ended.

    Output has at most `max_length` bytes; -1 for no limit. Only whole blocks are read. Raises RuntimeError for damage.
    """
    view = memoryview(data)
    position, room = 0, max_length
    outputs: list[memoryview] = []
    while True:
        if context.output:
            part = context.output if room < 0 else context.output[:room]
            outputs.append(part)
            context.output = context.output[len(part) :]
            room = room if room < 0 else room - len(part)
            if context.output:
                return b"".join(outputs), position, False
        rest = view[position:]
        length, has_ended = _read_block(context, rest) if context.flags else _read_header(context, rest)
        position += length
        if has_ended:
            context.begin()
        if has_ended or not length:
            return b"".join(outputs), position, has_ended


def _read_header(context: _Context, rest: memoryview) -> tuple[int, bool]:
    """Read the header of a frame, or a whole skippable frame. Return the bytes read, and whether the frame ended."""
    if rest[1:_DESCRIPTOR_OFFSET] == _SKIPPABLE_MAGIC and rest[0] & 0xF0 == 0x50:
        length = _SKIPPABLE_HEADER_LENGTH
        length += int.from_bytes(rest[_DESCRIPTOR_OFFSET:_SKIPPABLE_HEADER_LENGTH], "little")
        is_whole = _SKIPPABLE_HEADER_LENGTH <= length <= len(rest)
        return (length, True) if is_whole else (0, False)
    if rest[:_DESCRIPTOR_OFFSET] != _FRAME_MAGIC[: len(rest)]:
        raise RuntimeError("another magic number than that of a frame")
    if len(rest) < _SHORTEST_HEADER:
        return 0, False
    flags, sizes = rest[_DESCRIPTOR_OFFSET], rest[_DESCRIPTOR_OFFSET + 1]
    if flags >> 6 != _VERSION or flags & _RESERVED_FLAGS or sizes & _RESERVED_SIZES or sizes >> 4 < 4:
        raise RuntimeError(f"a header with flags {flags:#x} and sizes {sizes:#x}, which no frame has")
    if flags & _DICTIONARY:
        raise RuntimeError("a frame that needs a dictionary")
    end = _SHORTEST_HEADER - 1 + (_CONTENT_SIZE_LENGTH if flags & _CONTENT_SIZE else 0)
    if len(rest) <= end:
        return 0, False
    if rest[end] != header_checksum(bytes(rest[_DESCRIPTOR_OFFSET:end])):
        raise RuntimeError("a header whose checksum does not match")
    context.flags = flags
    context.block_bytes = _BLOCK_BYTES << 2 * ((sizes >> 4) - 4)
    if flags & _CONTENT_SIZE:
        context.bytes_left = int.from_bytes(rest[_SHORTEST_HEADER - 1 : end], "little")
    return end + 1, False


def _read_block(context: _Context, rest: memoryview) -> tuple[int, bool]:
    """Read a block, or the end of a frame. Return the bytes read, 0 for a part of one, and whether it was the end."""
    if len(rest) < _SIZE_LENGTH:
        return 0, False
    size = int.from_bytes(rest[:_SIZE_LENGTH], "little")
    if not size:
        length = _SIZE_LENGTH + (_CHECKSUM_LENGTH if context.flags & _CONTENT_CHECKSUM else 0)
        if length > len(rest):
            return 0, False
        if context.bytes_left:
            raise RuntimeError(f"the end of a frame {context.bytes_left} bytes before that of its content")
        if context.flags & _CONTENT_CHECKSUM:
            _check("content", context.content_checksum.digest(), rest[_SIZE_LENGTH:length])
        return length, True
    is_stored, size = bool(size & _STORED_BLOCK), size & ~_STORED_BLOCK
    if size > context.block_bytes:
        raise RuntimeError(f"a block of {size} bytes in a frame of blocks of {context.block_bytes}")
    length = _SIZE_LENGTH + size + (_CHECKSUM_LENGTH if context.flags & _BLOCK_CHECKSUM else 0)
    if length > len(rest):
        return 0, False
    block = rest[_SIZE_LENGTH : _SIZE_LENGTH + size]
    if context.flags & _BLOCK_CHECKSUM:
        _check("block", xxh32(block), rest[_SIZE_LENGTH + size : length])
    context.output = block if is_stored else _content(context, block)
    if not context.flags & _INDEPENDENT:
        context.history = (context.history + context.output)[-_HISTORY_BYTES:]
    if context.flags & _CONTENT_CHECKSUM:
        context.content_checksum.update(context.output)
    if context.bytes_left is not None:
        context.bytes_left -= len(context.output)
        if context.bytes_left < 0:
            raise RuntimeError("more content than the header of the frame declares")
    return length, False


def _check(what: str, computed: int, stored: memoryview) -> None:
    expected = int.from_bytes(stored, "little")
    if computed != expected:
        raise RuntimeError(f"a {what} checksum of {expected:08x}, computed {computed:08x}")


def _content(context: _Context, block: memoryview) -> memoryview:
    if not context.history:
        try:
            return _decompressed(block, context.block_bytes)
        except LZ4BlockError as error:
            raise RuntimeError(str(error)) from error
    try:
        return _linked(block, context.history, context.block_bytes)
    except IndexError:
        raise RuntimeError("a block that ends within a sequence") from None


def _linked(block: memoryview, history: bytes, most: int) -> memoryview:
    """Decompress a block that refers to the content before it. Raises IndexError or RuntimeError for a damaged one."""
    output = bytearray(history)
    position, end = 0, len(history) + most
    while True:
        token = block[position]
        size, position = _length(block, position + 1, token >> 4)
        if size > len(block) - position or size > end - len(output):
            raise RuntimeError(f"{size} literals, which do not fit")
        output += block[position : position + size]
        position += size
        if position == len(block):
            return memoryview(output)[len(history) :]
        distance = block[position] | block[position + 1] << 8
        size, position = _length(block, position + 2, token & 15)
        size += 4
        if not 0 < distance <= len(output) or size > end - len(output):
            raise RuntimeError(f"{size} bytes from {distance} bytes before, which do not exist or do not fit")
        start = len(output) - distance
        while size > 0:  # the copy may overlap what it writes
            part = output[start : start + min(size, len(output) - start)]
            output += part
            size -= len(part)


def _length(block: memoryview, position: int, nibble: int) -> tuple[int, int]:
    """Return a length, which may continue after its token, and the position after it."""
    length = nibble
    if nibble == 15:
        more = 255
        while more == 255:
            more = block[position]
            length += more
            position += 1
    return length, position
