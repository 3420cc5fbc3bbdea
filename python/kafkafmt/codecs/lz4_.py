"""lz4 frames, one or several, with the header checksum of message format v0.

    magic int32 | FLG | BD | [content size int64] | HC | { block size int32 | block | [checksum] } ...
    | end mark, an int32 of 0 | [content checksum]

HC is the checksum of the header. Kafka's first implementation computed it over the magic number, too. Format v0 keeps
that; later formats compute it as lz4 defines it. `compress` writes the checksum of its format, and `decompress` accepts
both in every format. Kafka does not check HC in format v0; `ignoring_header_checksum` is for that.

Kafka's Java reads independent blocks only, and stops at the first end mark. This module also reads linked blocks and
further frames. It ignores bytes after a frame that do not begin another one. A frame of one compressed block, as
Kafka's Java writes it, goes to the block decompressor directly, which is faster.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import Any

from kafkafmt.codecs.lz4_header import header_checksum
from kafkafmt.codecs.streams import CHUNK_BYTES, PayloadStream
from kafkafmt.errors import CorruptRecordError, DecompressionLimitError

if sys.version_info >= (3, 14):
    from kafkafmt.codecs import cramjam_lz4 as lz4_block
    from kafkafmt.codecs import cramjam_lz4 as lz4_frame
else:
    import lz4.block as lz4_block
    import lz4.frame as lz4_frame

# The range of Kafka's compression.lz4.level. 1, 2 and None are the fast mode, as 9 is in Kafka; 12 to 17 are the same.
LEVELS = range(1, 18)

_FRAME_MAGIC = b"\x04\x22\x4d\x18"
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"  # after a byte 0x50 to 0x5f
_FLG_OFFSET = len(_FRAME_MAGIC)
_BD_OFFSET = _FLG_OFFSET + 1
_HC_OFFSET = _BD_OFFSET + 1  # in the headers that Kafka writes; with a content size 8 more
_CONTENT_SIZE_FLAG, _CONTENT_SIZE_LENGTH = 0x08, 8
_DICTIONARY_FLAG = 0x01
_BD_64_KIB_BLOCKS = 0x40
_BLOCK_BYTES = 64 * 1024
_INDEPENDENT_FLAG, _LINKED_HISTORY_BYTES = 0x20, 128 * 1024
_END_MARK = b"\0\0\0\0"
# Kafka's headers of format v0, and of later formats: independent blocks of 64 KiB, no content size, no checksums.
_HEADERS = (_FRAME_MAGIC + b"\x60\x40\x1a", _FRAME_MAGIC + b"\x60\x40\x82")
_ONE_BLOCK = Struct(f"<{len(_HEADERS[0])}sI")  # a header, and the size of the only block
# The output size of the first attempt, relative to the input: most payloads fit, and unused memory costs nothing.
_LIKELY_EXPANSION = 8
# A context has two buffers of the block size. Contexts with larger blocks than 64 KiB are not kept.
_idle_contexts: deque[Any] = deque(maxlen=16)


def decompress(data: bytes | memoryview, limit: int) -> bytes:
    if limit >= _BLOCK_BYTES and _is_one_block(data):
        try:
            output: bytes = lz4_block.decompress(data[_ONE_BLOCK.size : -len(_END_MARK)], _BLOCK_BYTES)
            return output
        except lz4_block.LZ4BlockError:
            pass  # the frame decompressor raises the error
    return _decompress_frames(data, limit)


def _is_one_block(data: bytes | memoryview) -> bool:
    """Return whether this is a frame of one compressed block, as Kafka writes it for a batch of up to 64 KiB."""
    if len(data) <= _ONE_BLOCK.size:
        return False
    header, size = _ONE_BLOCK.unpack_from(data)
    return (
        header in _HEADERS
        and size == len(data) - _ONE_BLOCK.size - len(_END_MARK)
        and size <= _BLOCK_BYTES
        and data[-len(_END_MARK) :] == _END_MARK
    )


def _decompress_frames(data: bytes | memoryview, limit: int) -> bytes:
    output, position = _decompress_frame(data, limit)
    if position == len(data):
        return output
    view = memoryview(data)
    outputs = [output]
    remaining = limit - len(output)
    while _begins_frame(view[position:]):
        output, length = _decompress_frame(view[position:], remaining)
        outputs.append(output)
        remaining -= len(output)
        position += length
    return b"".join(outputs)


def _begins_frame(view: memoryview) -> bool:
    return view[:4] == _FRAME_MAGIC or (view[1:4] == _SKIPPABLE_MAGIC and view[0] & 0xF0 == 0x50)


def _decompress_frame(data: bytes | memoryview, limit: int) -> tuple[bytes, int]:
    """Return the content of the frame that `data` begins with, and the length of the frame.

    If the content exceeds `limit`, DecompressionLimitError is raised.
    """
    try:
        context = _idle_contexts.pop()
    except IndexError:
        context = lz4_frame.create_decompression_context()
    room = min(limit, len(data) * _LIKELY_EXPANSION + _BLOCK_BYTES) + 1
    try:
        output, position, ended = lz4_frame.decompress_chunk(context, data, max_length=room)
    except RuntimeError as error:
        view = memoryview(data)
        if not _has_checksum_of_v0(view):
            raise CorruptRecordError(f"lz4: expected a frame, found {error}") from error
        context, position = _context_past_header_of_v0(view)
        output, ended = b"", False
    if not ended or len(output) > limit:
        output, position = _continue_frame(context, memoryview(data), output, position, limit)
    if data[_BD_OFFSET] == _BD_64_KIB_BLOCKS:
        _idle_contexts.append(context)
    return output, position


def _continue_frame(
    context: Any, view: memoryview, output: bytes, position: int, limit: int
) -> tuple[bytes, int]:
    """Decompress the rest of a frame from `position`; return its whole content, and its length.

    output: the content up to `position`.
    """
    outputs = [output]
    ended = False
    remaining = limit - len(output)
    while remaining >= 0 and not ended:
        rest = view[position:]
        room = min(remaining, len(rest) * _LIKELY_EXPANSION + _BLOCK_BYTES) + 1
        try:
            output, consumed, ended = lz4_frame.decompress_chunk(context, rest, max_length=room)
        except RuntimeError as error:
            raise CorruptRecordError(f"lz4: expected a block, found {error}") from error
        if not ended and not output and not consumed:
            raise CorruptRecordError(f"lz4: expected the end of a frame, found the end of all {len(view)}")
        outputs.append(output)
        position += consumed
        remaining -= len(output)
    if remaining < 0:
        raise DecompressionLimitError(f"lz4: expected at most {limit} more bytes, found more")
    return b"".join(outputs), position


def open_stream(data: bytes | memoryview, limit: int) -> PayloadStream:
    if limit >= _BLOCK_BYTES and _is_one_block(data):
        return PayloadStream(_only_chunk(data, limit), _BLOCK_BYTES)
    view = memoryview(data)
    state_bytes = CHUNK_BYTES
    if len(view) > _BD_OFFSET:  # two buffers of the block size, and the history of linked blocks
        state_bytes += 2 * (_BLOCK_BYTES << 2 * max((view[_BD_OFFSET] >> 4 & 7) - 4, 0))
        state_bytes += 0 if view[_FLG_OFFSET] & _INDEPENDENT_FLAG else _LINKED_HISTORY_BYTES
    return PayloadStream(_chunks(view, limit), state_bytes)


def _only_chunk(data: bytes | memoryview, limit: int) -> Iterator[bytes]:
    yield decompress(data, limit)


def _chunks(view: memoryview, limit: int) -> Iterator[bytes]:
    position, remaining = 0, limit
    while not position or _begins_frame(view[position:]):
        context, position = _begin_frame(view, position)
        ended = False
        while not ended:
            room = min(remaining + 1, CHUNK_BYTES)
            try:
                output, consumed, ended = lz4_frame.decompress_chunk(
                    context, view[position:], max_length=room
                )
            except RuntimeError as error:
                raise CorruptRecordError(f"lz4: expected a block, found {error}") from error
            if not ended and not output and not consumed:
                raise CorruptRecordError(
                    f"lz4: expected the end of a frame, found the end of all {len(view)}"
                )
            position += consumed
            remaining -= len(output)
            if remaining < 0:
                raise DecompressionLimitError(f"lz4: expected at most {limit} bytes, found more")
            if output:
                yield output


def _begin_frame(view: memoryview, position: int) -> tuple[Any, int]:
    """Return a context for the frame at `position`, and the position to continue from.

    A header with v0's checksum is given to the context with the checksum that lz4 expects; the position is after it.
    """
    frame = view[position:]
    if _has_checksum_of_v0(frame):
        context, length = _context_past_header_of_v0(frame)
        return context, position + length
    return lz4_frame.create_decompression_context(), position


def ignoring_header_checksum(data: bytes | memoryview) -> bytes | memoryview:
    """Return the frame with a correct header checksum, because Kafka does not check it in message format v0.

    The data is not copied if its header is one of Kafka's.
    """
    if data[: len(_HEADERS[0])] in _HEADERS:
        return data
    view = memoryview(data)
    if len(view) <= _HC_OFFSET or view[:_FLG_OFFSET] != _FRAME_MAGIC or view[_FLG_OFFSET] & _DICTIONARY_FLAG:
        return data
    offset = _checksum_offset(view)
    if offset >= len(view):
        return data
    checksum = header_checksum(bytes(view[_FLG_OFFSET:offset]))
    return b"".join((view[:offset], bytes((checksum,)), view[offset + 1 :]))


def _checksum_offset(frame: bytes | memoryview) -> int:
    return _HC_OFFSET + _CONTENT_SIZE_LENGTH if frame[_FLG_OFFSET] & _CONTENT_SIZE_FLAG else _HC_OFFSET


def _has_checksum_of_v0(frame: memoryview) -> bool:
    if (
        len(frame) <= _HC_OFFSET
        or frame[:_FLG_OFFSET] != _FRAME_MAGIC
        or frame[_FLG_OFFSET] & _DICTIONARY_FLAG
    ):
        return False
    offset = _checksum_offset(frame)
    return offset < len(frame) and frame[offset] == header_checksum(bytes(frame[:offset]))


def _context_past_header_of_v0(frame: memoryview) -> tuple[Any, int]:
    offset = _checksum_offset(frame)
    described = bytes(frame[_FLG_OFFSET:offset])
    header = _FRAME_MAGIC + described + bytes((header_checksum(described),))
    context = lz4_frame.create_decompression_context()
    try:
        lz4_frame.decompress_chunk(context, header)
    except RuntimeError as error:
        raise CorruptRecordError(f"lz4: expected a frame header, found {error}") from error
    return context, offset + 1


def compress(data: bytes | memoryview, level: int | None, magic: int) -> bytes:
    frame: bytes = lz4_frame.compress(
        data,
        compression_level=level or 0,
        block_size=lz4_frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    if magic > 0:
        return frame
    checksum = header_checksum(frame[:_HC_OFFSET])
    return b"".join((frame[:_HC_OFFSET], bytes((checksum,)), memoryview(frame)[_HC_OFFSET + 1 :]))
