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

from kafkafmt.codecs.streams import PIECE_BYTES, PayloadStream
from kafkafmt.errors import CorruptRecordError, DecompressionLimitError

LEVELS = range(-7, 23)

_DEFAULT_LEVEL = 3  # Kafka's
_MAX_BLOCK_BYTES = 128 * 1024
_BLOCK_HEADER_LENGTH = 3
_RLE_BLOCK, _COMPRESSED_BLOCK = 1, 2  # what else there is, 0, is raw
_CHECKSUM_LENGTH = 4
_MIN_BLOCK_LENGTH = _BLOCK_HEADER_LENGTH + 1  # the smallest that holds anything: a run of one byte
_MAX_EXPANSION = _MAX_BLOCK_BYTES // _MIN_BLOCK_LENGTH
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"  # after a byte 0x50 to 0x5f, before an int32 size
_SKIPPABLE_HEADER_LENGTH = 8
_WINDOW_DESCRIPTOR_OFFSET = 5
_MIN_WINDOW_LOG, _MIN_REDUCED_WINDOW_LOG, _MAX_WINDOW_LOG = 10, 17, 31
_NO_ROOM_MESSAGE = "did not decompress full frame"
# Room for the first go: almost every payload fits.
_LIKELY_EXPANSION, _LIKELY_BYTES = 16, 1024 * 1024
# Contexts with more working memory than this are not kept.
_MAX_KEPT_BYTES = 8 * 1024 * 1024
# What a decompressor takes that streams, beside the window.
_STREAM_BYTES = 512 * 1024

# No context may serve two threads at once: whoever uses one takes it out.
_idle_decompressors: deque[zstandard.ZstdDecompressor] = deque(maxlen=16)
_idle_compressors: defaultdict[int, deque[zstandard.ZstdCompressor]] = defaultdict(lambda: deque(maxlen=16))


def decompress(data: bytes | memoryview, limit: int) -> bytes:
    try:
        content_size = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"zstd: expected a frame, found {error}") from error
    if 0 < content_size <= limit and content_size <= len(data) * _MAX_EXPANSION:
        try:
            return _decompress_once(data, content_size, allow_extra_data=False)
        except zstandard.ZstdError:
            pass  # several frames, or damage, which the walk can tell apart
    view = memoryview(data)
    output, position = _decompress_frame(view, limit)
    if position == len(view):
        return output
    outputs = [output]
    remaining = limit - len(output)
    while position != len(view):
        output, length = _decompress_frame(view[position:], remaining)
        outputs.append(output)
        remaining -= len(output)
        position += length
    return b"".join(outputs)


def open_stream(data: bytes | memoryview, limit: int) -> PayloadStream:
    view = memoryview(data)
    state_bytes = max((frame.state_bytes for frame in _frames(view)), default=0)
    return PayloadStream(_pieces(view, limit), min(state_bytes, limit + _STREAM_BYTES))


class _Frame(NamedTuple):
    """A frame, how many bytes it can hold at most, and its window."""

    view: memoryview
    bound: int
    window_size: int

    @property
    def is_streamed(self) -> bool:
        """Whether it may hold more than its window, which is held anyway."""
        return self.bound > self.window_size

    @property
    def state_bytes(self) -> int:
        return self.window_size + _STREAM_BYTES if self.is_streamed else self.bound


def _frames(view: memoryview) -> Iterator[_Frame]:
    """The frames of a payload, each known to be whole."""
    position = 0
    while position < len(view) or not position:
        rest = view[position:]
        if rest[1:4] == _SKIPPABLE_MAGIC and rest[0] & 0xF0 == 0x50:
            position += _skippable_length(rest)
            continue
        try:
            header = zstandard.get_frame_parameters(rest)
            start = zstandard.frame_header_size(rest)
        except zstandard.ZstdError as error:
            raise CorruptRecordError(f"zstd: expected a frame, found {error}") from error
        length, bound = _measure_blocks(rest, start, min(header.window_size, _MAX_BLOCK_BYTES))
        length += _CHECKSUM_LENGTH if header.has_checksum else 0
        if length > len(rest):
            raise _truncation_error(rest)
        if header.content_size != zstandard.CONTENTSIZE_UNKNOWN:
            bound = min(bound, header.content_size)
        yield _Frame(rest[:length], bound, header.window_size)
        position += length


def _pieces(view: memoryview, limit: int) -> Iterator[bytes]:
    remaining = limit
    for frame in _frames(view):
        if frame.is_streamed:
            outputs = _pieces_of_frame(frame, limit)
        else:
            outputs = iter((_decompress_frame(frame.view, remaining)[0],))
        for output in outputs:
            remaining -= len(output)
            if remaining < 0:
                raise _limit_error(limit)
            yield output


def _pieces_of_frame(frame: _Frame, limit: int) -> Iterator[bytes]:
    """A frame that may hold more than its window, which may be no larger than what is taken of it."""
    view = frame.view
    if frame.window_size > max(limit, _MAX_KEPT_BYTES):
        view = _with_window_for(min(frame.bound, limit), view, frame.window_size)
    # Not one that is kept: what it streamed with stays with it.
    reader = zstandard.ZstdDecompressor(max_window_size=1 << _MAX_WINDOW_LOG).stream_reader(view)
    try:
        while output := reader.read(PIECE_BYTES):
            yield output
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"zstd: expected a frame, found {error}") from error


def _decompress_once(data: bytes | memoryview, max_output_size: int, allow_extra_data: bool) -> bytes:
    try:
        decompressor = _idle_decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _MAX_WINDOW_LOG)
    output = decompressor.decompress(data, max_output_size, False, allow_extra_data)
    if decompressor.memory_size() <= _MAX_KEPT_BYTES:
        _idle_decompressors.append(decompressor)
    return output


def _decompress_frame(view: memoryview, limit: int) -> tuple[bytes, int]:
    """Return what the frame that `view` begins with holds, and its length."""
    if view[1:4] == _SKIPPABLE_MAGIC and view[0] & 0xF0 == 0x50:
        return b"", _skippable_length(view)
    try:
        header = zstandard.get_frame_parameters(view)
        position = zstandard.frame_header_size(view)
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"zstd: expected a frame, found {error}") from error
    length, bound = _measure_blocks(view, position, min(header.window_size, _MAX_BLOCK_BYTES))
    if header.has_checksum:
        length += _CHECKSUM_LENGTH
    if length > len(view):
        raise _truncation_error(view)
    frame = view[:length]
    if header.content_size == zstandard.CONTENTSIZE_UNKNOWN:
        if header.window_size > _MAX_KEPT_BYTES:
            frame = _with_window_for(min(bound, limit), frame, header.window_size)
        return _decompress_unsized(frame, bound, limit), length
    if header.content_size > limit:
        raise _limit_error(limit)
    if header.content_size > bound:
        raise CorruptRecordError(f"zstd: expected blocks of {header.content_size} bytes, found {bound}")
    try:
        return _decompress_once(frame, header.content_size, allow_extra_data=False), length
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"zstd: expected a frame, found {error}") from error


def _decompress_unsized(frame: memoryview, bound: int, limit: int) -> bytes:
    most = min(bound, limit) or 1  # to the library, 0 would be no number
    room = min(most, max(len(frame) * _LIKELY_EXPANSION, _LIKELY_BYTES))
    while (output := _decompress_in_room(frame, room)) is None:
        if room >= bound:
            raise CorruptRecordError(f"zstd: expected at most {bound} bytes of these blocks, found more")
        if room == most:
            raise _limit_error(limit)
        room = min(most, room * 4)
    if len(output) > limit:
        raise _limit_error(limit)
    return output


def _decompress_in_room(frame: memoryview, room: int) -> bytes | None:
    try:
        return _decompress_once(frame, room, allow_extra_data=True)
    except zstandard.ZstdError as error:
        if _NO_ROOM_MESSAGE in str(error):
            return None
        raise CorruptRecordError(f"zstd: expected a frame, found {error}") from error


def _with_window_for(size: int, frame: memoryview, window_size: int) -> memoryview:
    """Return the frame, its window cut to its output: a window is history, and there is no more than that."""
    window_log = max(size.bit_length(), _MIN_REDUCED_WINDOW_LOG)
    if 1 << window_log >= window_size:
        return frame
    data = bytearray(frame)
    data[_WINDOW_DESCRIPTOR_OFFSET] = window_log - _MIN_WINDOW_LOG << 3
    return memoryview(data)


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


def _limit_error(limit: int) -> DecompressionLimitError:
    return DecompressionLimitError(f"zstd: expected at most {limit} more bytes, found more")


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
