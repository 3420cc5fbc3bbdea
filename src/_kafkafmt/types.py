"""The plain types of the record format. `kafkafmt.types` is where users find them."""

from enum import IntEnum
from typing import NamedTuple


class Codec(IntEnum):
    """Compression codec, as the low three bits of the attributes name it."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Who set the timestamps: the producer, or the broker on append. v0 has none."""

    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class TooLargeRecord(NamedTuple):
    """A record that is larger than a batch may be: its number in the batch that it stands in, and its offset there.

    `size_in_bytes` is that of a batch which it has to itself.
    """

    batch_index: int
    offset: int
    size_in_bytes: int
