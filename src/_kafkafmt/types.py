"""The enums of the record format. `kafkafmt.types` is where users find them."""

from enum import IntEnum


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
