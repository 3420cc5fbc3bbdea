"""Kafka's configuration properties of topics, with their valid values (Kafka's `LogConfig`).

These are the properties of Kafka 3.9 and of 4.x, which no longer has message formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from kafkafmt.log.batch_writer import MAX_INT32

MAX_MESSAGE_BYTES, SEGMENT_BYTES, TIMESTAMP_TYPE, DOWNCONVERSION_ENABLE = (
    "max.message.bytes",
    "segment.bytes",
    "message.timestamp.type",
    "message.downconversion.enable",
)

# The properties whose values are lists, and their defaults.
LISTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "follower.replication.throttled.replicas": "",
    "leader.replication.throttled.replicas": "",
}

_MAX_INT64 = 2**63 - 1
_BOOLEANS = {"true": True, "false": False}

# Returns a text on the expected values; None if the value is valid.
_Check: TypeAlias = Callable[[str], str | None]


def _integer(least: int, most: int) -> _Check:
    def check(value: str) -> str | None:
        digits = value.removeprefix("-")
        is_integer = digits.isascii() and digits.isdecimal() and len(digits) < 20
        return None if is_integer and least <= int(value) <= most else f"{least} to {_bound(most)}"

    return check


def _bound(most: int) -> str:
    return {MAX_INT32: "2^31 - 1", _MAX_INT64: "2^63 - 1"}.get(most, str(most))


def _int32(least: int) -> _Check:
    return _integer(least, MAX_INT32)


def _int64(least: int) -> _Check:
    return _integer(least, _MAX_INT64)


def _ratio(value: str) -> str | None:
    try:
        return None if 0 <= float(value) <= 1 else "0 to 1"
    except ValueError:
        return "0 to 1"


def _gzip_level(value: str) -> str | None:
    return None if value in {"-1", *"123456789"} else "-1 or 1 to 9"


def _one_of(*known: str) -> _Check:
    return lambda value: None if value in known else " or ".join(known)


def _some_of(*known: str) -> _Check:
    def check(value: str) -> str | None:
        parts = [part.strip() for part in value.split(",")]
        return None if set(parts) <= {*known, ""} else f"some of {', '.join(known)}"

    return check


def _boolean(value: str) -> str | None:
    return None if value.lower() in _BOOLEANS else "true or false"


def _anything(value: str) -> str | None:
    return None


_CHECKS: Mapping[str, _Check] = {
    "cleanup.policy": _some_of("compact", "delete"),
    "compression.gzip.level": _gzip_level,
    "compression.lz4.level": _integer(1, 17),
    "compression.type": _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    "compression.zstd.level": _integer(-131072, 22),
    "delete.retention.ms": _int64(0),
    "file.delete.delay.ms": _int64(0),
    "flush.messages": _int64(1),
    "flush.ms": _int64(0),
    "follower.replication.throttled.replicas": _anything,
    "index.interval.bytes": _int32(0),
    "leader.replication.throttled.replicas": _anything,
    "local.retention.bytes": _int64(-2),
    "local.retention.ms": _int64(-2),
    "max.compaction.lag.ms": _int64(1),
    MAX_MESSAGE_BYTES: _int32(0),
    DOWNCONVERSION_ENABLE: _boolean,
    "message.format.version": _anything,
    "message.timestamp.after.max.ms": _int64(0),
    "message.timestamp.before.max.ms": _int64(0),
    "message.timestamp.difference.max.ms": _int64(0),
    TIMESTAMP_TYPE: _one_of("CreateTime", "LogAppendTime"),
    "min.cleanable.dirty.ratio": _ratio,
    "min.compaction.lag.ms": _int64(0),
    "min.insync.replicas": _int32(1),
    "preallocate": _boolean,
    "remote.log.copy.disable": _boolean,
    "remote.log.delete.on.disable": _boolean,
    "remote.storage.enable": _boolean,
    "retention.bytes": _int64(-_MAX_INT64 - 1),
    "retention.ms": _int64(-1),
    SEGMENT_BYTES: _int32(14),
    "segment.index.bytes": _int32(4),
    "segment.jitter.ms": _int64(0),
    "segment.ms": _int64(1),
    "unclean.leader.election.enable": _boolean,
}


def check_property(name: str, value: str) -> None:
    """Raise ValueError for a property that Kafka does not have, and for an invalid value.

    >>> check_property("retention.ms", "-1")
    >>> check_property("retention.ms", "-2")
    Traceback (most recent call last):
    ValueError: retention.ms: expected -1 to 2^63 - 1, found '-2'
    """
    if name not in _CHECKS:
        raise ValueError(f"Unknown topic config name: {name[:300]}")
    expected = _CHECKS[name](value)
    if expected is not None:
        raise ValueError(f"{name}: expected {expected}, found {value[:300]!r}")


def boolean(value: str) -> bool:
    """Convert the value of a boolean property that `check_property` has accepted."""
    return _BOOLEANS[value.lower()]
