"""zstd frames, one or several, with or without their content size.

A frame with a content size is decompressed at once, if that size is allowed and possible. For a frame without one,
which Kafka's Java writes, the block headers are read first: they tell where the frame ends and its maximum size.
Working memory is limited by that maximum, and not by the window that the frame declares.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

from kafkafmt.codecs.streams import CHUNK_BYTES, PayloadStream
from kafkafmt.codecs.zstd_library import zstandard
from kafkafmt.errors import CorruptRecordError, DecompressionLimitError

LEVELS = range(-7, 23)

_DEFAULT_LEVEL = 3  # Kafka's
_MAX_BLOCK_BYTES = 128 * 1024
_BLOCK_HEADER_LENGTH = 3
_RLE_BLOCK, _COMPRESSED_BLOCK = 1, 2  # 0 is a raw block
_CHECKSUM_LENGTH = 4
_MIN_BLOCK_LENGTH = _BLOCK_HEADER_LENGTH + 1  # the smallest block that is not empty: one byte, repeated
_MAX_EXPANSION = _MAX_BLOCK_BYTES // _MIN_BLOCK_LENGTH
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"  # after a byte 0x50 to 0x5f, before an int32 size
_SKIPPABLE_HEADER_LENGTH = 8
_WINDOW_DESCRIPTOR_OFFSET = 5
_MIN_WINDOW_LOG, _MIN_REDUCED_WINDOW_LOG, _MAX_WINDOW_LOG = 10, 17, 31
_NO_ROOM_MESSAGE = "did not decompress full frame"
# The output size of the first attempt, relative to the input and at least: almost every payload fits.
_LIKELY_EXPANSION, _LIKELY_BYTES = 16, 1024 * 1024
# Contexts with more working memory than this are not kept.
_MAX_KEPT_BYTES = 8 * 1024 * 1024
# The memory of a decompressor that streams, without the window.
_STREAM_BYTES = 512 * 1024

# Two threads must not use a context at once: a caller removes it from here, and adds it again afterwards.
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
            pass  # several frames, or damage: reading frame by frame distinguishes them
    outputs, remaining = [], limit
    for frame in _frames(memoryview(data)):
        outputs.append(_decompress_frame(frame, remaining))
        remaining -= len(outputs[-1])
    return b"".join(outputs)


def open_stream(data: bytes | memoryview, limit: int) -> PayloadStream:
    view = memoryview(data)
    state_bytes = max((frame.state_bytes for frame in _frames(view)), default=0)
    return PayloadStream(_chunks(view, limit), min(state_bytes, limit + _STREAM_BYTES))


class _Frame(NamedTuple):
    """A frame: its bytes, the most bytes that its blocks can hold, its declared content size, and its window size."""

    view: memoryview
    bound: int
    content_size: int
    window_size: int

    @property
    def is_sized(self) -> bool:
        return self.content_size != zstandard.CONTENTSIZE_UNKNOWN

    @property
    def max_bytes(self) -> int:
        return min(self.bound, self.content_size) if self.is_sized else self.bound

    @property
    def is_streamed(self) -> bool:
        """Whether the frame may hold more than its window. Otherwise streaming would save no memory."""
        return self.max_bytes > self.window_size

    @property
    def state_bytes(self) -> int:
        return self.window_size + _STREAM_BYTES if self.is_streamed else self.max_bytes


def _frames(view: memoryview) -> Iterator[_Frame]:
    """Yield the frames of a payload. Each is checked to be whole. Raises CorruptRecordError."""
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
        yield _Frame(rest[:length], bound, header.content_size, header.window_size)
        position += length


def _chunks(view: memoryview, limit: int) -> Iterator[bytes]:
    remaining = limit
    for frame in _frames(view):
        whole = not frame.is_streamed
        for output in (_decompress_frame(frame, remaining),) if whole else _chunks_of_frame(frame, limit):
            remaining -= len(output)
            if remaining < 0:
                raise _limit_error(limit)
            yield output


def _chunks_of_frame(frame: _Frame, limit: int) -> Iterator[bytes]:
    """Yield the content of a frame that is larger than its window. A large window is reduced to the limit."""
    view = frame.view
    if frame.window_size > max(limit, _MAX_KEPT_BYTES):
        view = _with_window_for(min(frame.max_bytes, limit), view, frame.window_size)
    # A kept decompressor is not used, because it would keep the memory of the stream.
    reader = zstandard.ZstdDecompressor(max_window_size=1 << _MAX_WINDOW_LOG).stream_reader(view)
    try:
        while output := reader.read(CHUNK_BYTES):
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


def _decompress_frame(frame: _Frame, limit: int) -> bytes:
    if not frame.is_sized:
        view = frame.view
        if frame.window_size > _MAX_KEPT_BYTES:
            view = _with_window_for(min(frame.bound, limit), view, frame.window_size)
        return _decompress_unsized(view, frame.bound, limit)
    if frame.content_size > limit:
        raise _limit_error(limit)
    if frame.content_size > frame.bound:
        raise CorruptRecordError(f"zstd: expected blocks of {frame.content_size} bytes, found {frame.bound}")
    try:
        return _decompress_once(frame.view, frame.content_size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptRecordError(f"zstd: expected a frame, found {error}") from error


def _decompress_unsized(frame: memoryview, bound: int, limit: int) -> bytes:
    most = min(bound, limit) or 1  # the library takes 0 for "no size"
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
    """Return the frame with its window reduced to `size`, the most bytes of its output.

    A window is the history of the output, so a larger one is useless. The frame is copied only if its window is larger.
    """
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
    """Return the position where the blocks end, and the most bytes that they can hold."""
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
