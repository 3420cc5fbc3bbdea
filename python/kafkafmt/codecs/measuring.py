"""How much a payload decompresses to, found without holding it: for messages about what a limit has refused."""

from __future__ import annotations

from cramjam import DecompressionError

from kafkafmt.codecs import open_stream, snappy_
from kafkafmt.codecs.streams import PIECE_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.types import Codec

_MOST_BYTES = 2**40  # which no batch comes to


def decompressed_bytes(codec: Codec | int, payload: memoryview) -> int | None:
    """What `payload` holds, in bytes; None where it is damaged, and of a codec that there is none of."""
    try:
        if codec == Codec.SNAPPY:  # a block is made as a whole, and says how large it is
            return snappy_.decompressed_bytes(payload)
        stream = open_stream(codec, payload, limit=_MOST_BYTES)
        size = 0
        while piece := stream.read(PIECE_BYTES):
            size += len(piece)
    except (KafkaFormatError, DecompressionError):
        return None
    return size
