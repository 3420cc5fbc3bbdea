"""The names of the package zstandard that `zstd_` uses, on `compression.zstd` of the standard library.

It serves from Python 3.14 on: zstandard has no wheels for free-threaded Python.
"""

from __future__ import annotations

from typing import NamedTuple

from compression import zstd
from compression.zstd import ZstdError

__all__ = [
    "CONTENTSIZE_UNKNOWN",
    "ZstdCompressor",
    "ZstdDecompressor",
    "ZstdError",
    "frame_content_size",
    "frame_header_size",
    "get_frame_parameters",
]

CONTENTSIZE_UNKNOWN = 2**64 - 1

_MAGIC = b"\x28\xb5\x2f\xfd"
_SKIPPABLE_MAGIC = b"\x2a\x4d\x18"  # after a byte 0x50 to 0x5f
_DESCRIPTOR_OFFSET = len(_MAGIC)
_SINGLE_SEGMENT, _RESERVED, _HAS_CHECKSUM = 0x20, 0x08, 0x04
_CONTENT_SIZE_LENGTHS = (0, 2, 4, 8)
_DICTIONARY_ID_LENGTHS = (0, 1, 2, 4)
_LEAST_WINDOW_LOG, _MOST_WINDOW_LOG = 10, 31
_LOW_LEVEL, _MEMORY_OF_LOW_LEVELS, _MEMORY_OF_HIGH_LEVELS = 5, 8 << 20, 1 << 30
_NO_ROOM = "did not decompress full frame"  # as zstandard says it


class FrameParameters(NamedTuple):
    """The header of a frame (RFC 8878, 3.1.1.1), and its length in bytes."""

    content_size: int
    window_size: int
    has_checksum: bool
    header_size: int


def get_frame_parameters(data: bytes | memoryview) -> FrameParameters:
    """Read the header of a frame. Raises ZstdError."""
    view = memoryview(data)
    if view[:_DESCRIPTOR_OFFSET] != _MAGIC or len(view) <= _DESCRIPTOR_OFFSET:
        raise ZstdError("another magic number than that of a frame, or too few bytes for its header")
    descriptor = view[_DESCRIPTOR_OFFSET]
    is_single = bool(descriptor & _SINGLE_SEGMENT)
    position = _DESCRIPTOR_OFFSET + 1
    size_length = _CONTENT_SIZE_LENGTHS[descriptor >> 6] or int(is_single)
    header_size = position + (not is_single) + _DICTIONARY_ID_LENGTHS[descriptor & 3] + size_length
    if descriptor & _RESERVED or len(view) < header_size:
        raise ZstdError("a header with the reserved bit, or too few bytes for a header")
    window_size = 0
    if not is_single:
        log = _LEAST_WINDOW_LOG + (view[position] >> 3)
        if log > _MOST_WINDOW_LOG:
            raise ZstdError(f"a window of 2^{log} bytes")
        window_size = (1 << log) + ((1 << log) >> 3) * (view[position] & 7)
    content_size = CONTENTSIZE_UNKNOWN
    if size_length:
        content_size = int.from_bytes(view[header_size - size_length : header_size], "little")
        content_size += 256 if size_length == 2 else 0
    has_checksum = bool(descriptor & _HAS_CHECKSUM)
    return FrameParameters(
        content_size, content_size if is_single else window_size, has_checksum, header_size
    )


def frame_content_size(data: bytes | memoryview) -> int:
    """Return the content size that a frame declares, -1 if it declares none. Raises ZstdError."""
    view = memoryview(data)
    if view[1:_DESCRIPTOR_OFFSET] == _SKIPPABLE_MAGIC and view[0] & 0xF0 == 0x50:
        return 0  # a skippable frame
    size = get_frame_parameters(view).content_size
    return -1 if size == CONTENTSIZE_UNKNOWN else size


def frame_header_size(data: bytes | memoryview) -> int:
    """Return the length of the header of a frame. Raises ZstdError."""
    return get_frame_parameters(data).header_size


class ZstdDecompressor:
    """Decompresses frames, each with a decompressor of its own: those of the standard library serve one frame."""

    def __init__(self, max_window_size: int = 1 << 27) -> None:
        self._options = {zstd.DecompressionParameter.window_log_max: max_window_size.bit_length() - 1}

    def decompress(
        self,
        data: bytes | memoryview,
        max_output_size: int,
        read_across_frames: bool = False,
        allow_extra_data: bool = True,
    ) -> bytes:
        """Decompress one frame of at most `max_output_size` bytes. Raises ZstdError for a larger or damaged one."""
        decompressor = zstd.ZstdDecompressor(options=self._options)
        output: bytes = decompressor.decompress(data, max_output_size)
        if not decompressor.eof and decompressor.decompress(b"", 1):
            raise ZstdError(_NO_ROOM)
        if not decompressor.eof:
            raise ZstdError("the end of the bytes before that of the frame")
        if decompressor.unused_data and not allow_extra_data:
            raise ZstdError(f"{len(decompressor.unused_data)} bytes after the frame")
        return output

    def memory_size(self) -> int:
        """Return the bytes that are kept between two calls."""
        return 0

    def stream_reader(self, data: bytes | memoryview) -> _Reader:
        """Return a reader of the content of a frame."""
        return _Reader(zstd.ZstdDecompressor(options=self._options), data)


class _Reader:
    def __init__(self, decompressor: zstd.ZstdDecompressor, data: bytes | memoryview) -> None:
        self._decompressor = decompressor
        self._data = data

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size` of them; none at the end."""
        if self._decompressor.eof:
            return b""
        output: bytes = self._decompressor.decompress(self._data, size)
        self._data = b""
        return output


class ZstdCompressor:
    """Compresses data into frames with their content size. level: as in `zstd_.LEVELS`."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._compressor = zstd.ZstdCompressor(level)

    def compress(self, data: bytes | memoryview) -> bytes:
        """Return the frame of `data`."""
        self._compressor.set_pledged_input_size(len(data))
        frame: bytes = self._compressor.compress(data, self._compressor.FLUSH_FRAME)
        return frame

    def memory_size(self) -> int:
        """Return a bound of the bytes that are kept between two calls, as the library does not tell them."""
        return _MEMORY_OF_LOW_LEVELS if self._level <= _LOW_LEVEL else _MEMORY_OF_HIGH_LEVELS
