"""Measure the decompressed size of a payload without holding its output, for messages about an exceeded limit."""

from __future__ import annotations

from cramjam import DecompressionError

from kafkafmt.codecs import open_stream, snappy_
from kafkafmt.codecs.streams import CHUNK_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.types import Codec

_MAX_BYTES = 2**40  # more than any batch has


def decompressed_bytes(codec: Codec | int, payload: memoryview) -> int | None:
    """Return the decompressed size of `payload` in bytes; None if it is damaged or the codec is unknown."""
    try:
        if codec == Codec.SNAPPY:  # a stream would hold whole blocks; each block declares its size
            return snappy_.decompressed_bytes(payload)
        stream = open_stream(codec, payload, limit=_MAX_BYTES)
        size = 0
        while chunk := stream.read(CHUNK_BYTES):
            size += len(chunk)
    except (KafkaFormatError, DecompressionError):
        return None
    return size
