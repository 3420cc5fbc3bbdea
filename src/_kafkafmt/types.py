"""The plain types of the record format. Users import them from `kafkafmt.types`."""

from datetime import datetime, timedelta, timezone
from enum import IntEnum
from operator import index
from typing import TYPE_CHECKING, NamedTuple, TypeAlias


class Codec(IntEnum):
    """A compression codec, with its id in the low three bits of the attributes.

    `Codec` accepts an id, or a name in upper or lower case.

    >>> Codec("lz4")
    <Codec.LZ4: 3>
    """

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    if TYPE_CHECKING:

        def __new__(cls, value: int | str) -> "Codec": ...

    @classmethod
    def _missing_(cls, value: object) -> "Codec | None":
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


CodecLike: TypeAlias = Codec | str


def as_codec(value: CodecLike, name: str = "codec") -> Codec:
    """Return the codec for a `Codec`, its number, or its name in upper or lower case.

    Raises ValueError for another number or name, and TypeError for anything else. Both name the argument by `name`.
    """
    if type(value) is Codec:
        return value
    try:
        return Codec[value.upper()] if isinstance(value, str) else Codec(index(value))
    except TypeError:
        message = f"{name}: expected a Codec or the name of one, found {type(value).__name__}"
        raise TypeError(message) from None
    except (KeyError, ValueError):
        names = ", ".join(codec.name.lower() for codec in Codec)
        raise ValueError(f"{name}: expected one of {names}, found {value!r}") from None


class TimestampType(IntEnum):
    """Who set the timestamps: the producer, or the broker on append. v0 has none."""

    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class ControlRecordType(IntEnum):
    """The type of a control record, from its key; UNKNOWN for a type that Kafka does not define."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class ControlRecord(NamedTuple):
    """The content of a control record. coordinator_epoch: set for COMMIT and ABORT, None for other types."""

    type: ControlRecordType
    coordinator_epoch: int | None


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


def milliseconds(value: int | datetime, name: str = "timestamp") -> int:
    """Return milliseconds since the epoch for an int of milliseconds, or an aware datetime, which is rounded down.

    Raises ValueError for a naive datetime, and TypeError for anything else. Both name the argument by `name`.

    >>> milliseconds(datetime(2024, 1, 1, tzinfo=timezone.utc))
    1704067200000
    """
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise ValueError(f"{name}: expected a datetime with a timezone, found the naive {value!r}")
        return (value - _EPOCH) // _MILLISECOND
    try:
        return index(value)
    except TypeError:
        message = f"{name}: expected milliseconds as an int, or a datetime, found {type(value).__name__}"
        raise TypeError(message) from None


class TooLargeRecord(NamedTuple):
    """A record that is too large for a batch: its number and its offset in the batch that contains it.

    `size_in_bytes` is the size of a batch with this record alone.
    """

    batch_index: int
    offset: int
    size_in_bytes: int


class LastRecord(NamedTuple):
    """The last record of a key. value: None for a tombstone. timestamp: in milliseconds, -1 for none."""

    key: bytes
    value: bytes | None
    offset: int
    timestamp: int
