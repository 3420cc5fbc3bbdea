"""zstd frames, one or several, with or without their content size.

A frame that tells its content size is decompressed in one go, once that size is known to be allowed and
possible. For one that does not (Kafka's Java writes those) the block headers are walked first: they say where
it ends and how much it can hold at most. Working memory follows that, not the window that the frame asks for.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

import zstandard

from kafkafmt.errors import CorruptRecordError, DecompressionLimitError

LEVELS = range(-7, 23)

_DEFAULT_LEVEL = 3  # Kafka's
_MAX_BLOCK_BYTES = 128 * 1024
_BLOCK_HEADER_LENGTH = 3
_RAW_BLOCK, _RLE_BLOCK, _COMPRESSED_BLOCK = 0, 1, 2
_CHECKSUM_LENGTH = 4
_MIN_BLOCK_LENGTH = _BLOCK_HEADER_LENGTH + 1  # the smallest that holds anything: a run of one byte
_MAX_EXPANSION = _MAX_BLOCK_BYTES // _MIN_BLOCK_LENGTH
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"  # after a byte 0x50 to 0x5f, before an int32 size
_SKIPPABLE_HEADER_LENGTH = 8
_WINDOW_DESCRIPTOR_OFFSET = 5
_MIN_WINDOW_LOG, _MIN_REDUCED_WINDOW_LOG, _MAX_WINDOW_LOG = 10, 17, 31
# Room for the first go: almost every payload fits.
_LIKELY_EXPANSION, _LIKELY_BYTES = 16, 1024 * 1024
# Contexts with more working memory than this are not kept.
_MAX_KEPT_BYTES = 8 * 1024 * 1024

# No context may serve two threads at once: whoever uses one takes it out.
_idle_decompressors: deque[zstandard.ZstdDecompressor] = deque(maxlen=16)
_idle_compressors: defaultdict[int, deque[zstandard.ZstdCompressor]] = defaultdict(lambda: deque(maxlen=16))


class _Frame(NamedTuple):
    data: memoryview
    content_size: int  # CONTENTSIZE_UNKNOWN where the frame does not tell
    bound: int  # what its blocks can hold at most
    window_size: int


def decompress(data: bytes | memoryview, limit: int) -> bytes:
    try:
        content_size = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"zstd: expected a frame, found {error}") from error
    if 0 < content_size <= limit and content_size <= len(data) * _MAX_EXPANSION:
        try:
            return _decompress_once(data, 0, last=True)
        except zstandard.ZstdError:
            pass  # several frames, or damage, which the walk can tell apart
    outputs = []
    remaining = limit
    for frame in _frames(memoryview(data)):
        output = _decompress_frame(frame, remaining)
        if output is None:
            raise DecompressionLimitError(f"zstd: expected at most {limit} bytes, found more")
        remaining -= len(output)
        outputs.append(output)
    return outputs[0] if len(outputs) == 1 else b"".join(outputs)


def _decompress_once(data: bytes | memoryview, max_output_size: int, *, last: bool = False) -> bytes:
    try:
        decompressor = _idle_decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _MAX_WINDOW_LOG)
    output = decompressor.decompress(data, max_output_size, allow_extra_data=not last)
    if decompressor.memory_size() <= _MAX_KEPT_BYTES:
        _idle_decompressors.append(decompressor)
    return output


def _decompress_frame(frame: _Frame, limit: int) -> bytes | None:
    """Return what the frame holds, None if that is more than `limit`."""
    data, bound = frame.data, min(frame.bound, limit)
    if frame.content_size != zstandard.CONTENTSIZE_UNKNOWN:
        if frame.content_size > limit:
            return None
        if frame.content_size > frame.bound:
            raise CorruptRecordError(
                f"zstd: expected blocks of {frame.content_size} bytes, found {frame.bound}"
            )
        room = bound = frame.content_size
    else:
        room = min(bound, max(len(data) * _LIKELY_EXPANSION, _LIKELY_BYTES))
        if frame.window_size > _MAX_KEPT_BYTES:
            data = _with_window_for(frame, bound)
    while True:
        try:
            return _decompress_once(data, room)
        except zstandard.ZstdError as error:
            if "did not decompress full frame" not in str(error):
                raise CorruptRecordError(f"zstd: expected a frame, found {error}") from error
        if room == bound:
            if bound < frame.bound and frame.content_size == zstandard.CONTENTSIZE_UNKNOWN:
                return None
            raise CorruptRecordError(f"zstd: expected at most {bound} bytes, found more")
        room = min(bound, room * 4)


def _with_window_for(frame: _Frame, size: int) -> memoryview:
    """The frame, its window cut to its output: a window is history, and there is no more than that."""
    window_log = max(size.bit_length(), _MIN_REDUCED_WINDOW_LOG)
    if 1 << window_log >= frame.window_size:
        return frame.data
    data = bytearray(frame.data)
    data[_WINDOW_DESCRIPTOR_OFFSET] = window_log - _MIN_WINDOW_LOG << 3
    return memoryview(data)


def _frames(view: memoryview) -> Iterator[_Frame]:
    position = 0
    while position != len(view):
        rest = view[position:]
        if rest[1:4] == _SKIPPABLE_MAGIC and rest[0] & 0xF0 == 0x50:
            position += _skippable_length(rest)
            continue
        try:
            parameters = zstandard.get_frame_parameters(rest)
            blocks_position = zstandard.frame_header_size(rest)
        except zstandard.ZstdError as error:
            raise CorruptRecordError(f"zstd: expected a frame, found {error}") from error
        block_bytes = min(parameters.window_size, _MAX_BLOCK_BYTES)
        length, bound = _measure_blocks(rest, blocks_position, block_bytes)
        if parameters.has_checksum:
            length += _CHECKSUM_LENGTH
        if length > len(rest):
            raise _truncation_error(rest)
        yield _Frame(rest[:length], parameters.content_size, bound, parameters.window_size)
        position += length


def _skippable_length(rest: memoryview) -> int:
    length = _SKIPPABLE_HEADER_LENGTH + int.from_bytes(rest[4:_SKIPPABLE_HEADER_LENGTH], "little")
    if length > len(rest):
        raise _truncation_error(rest)
    return length


def _measure_blocks(frame: memoryview, position: int, block_bytes: int) -> tuple[int, int]:
    """Return where the blocks end and how many bytes they hold at most."""
    bound = 0
    last = 0
    while not last:
        if len(frame) - position < _BLOCK_HEADER_LENGTH:
            raise _truncation_error(frame)
        header = int.from_bytes(frame[position : position + _BLOCK_HEADER_LENGTH], "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        bound += block_bytes if kind == _COMPRESSED_BLOCK else size
        position += _BLOCK_HEADER_LENGTH + (1 if kind == _RLE_BLOCK else size)
    return position, bound


def _truncation_error(frame: memoryview) -> CorruptRecordError:
    return CorruptRecordError(f"zstd: expected the end of a frame, found the end of its {len(frame)} bytes")


def compress(data: bytes | memoryview, level: int | None, magic: int) -> bytes:
    level = _DEFAULT_LEVEL if level is None else level
    idle = _idle_compressors[level]
    try:
        compressor = idle.pop()
    except IndexError:
        compressor = zstandard.ZstdCompressor(level)
    output = compressor.compress(data)
    if compressor.memory_size() <= _MAX_KEPT_BYTES:
        idle.append(compressor)
    return output


def compress_bound(size: int) -> int:
    margin = (_MAX_BLOCK_BYTES - size) >> 11 if size < _MAX_BLOCK_BYTES else 0
    return size + (size >> 8) + margin  # ZSTD_COMPRESSBOUND
