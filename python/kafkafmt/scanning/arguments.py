"""Check the arguments of `kafkafmt.scan`, and convert them to what a source takes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from kafkafmt._util.names import unknown_name
from kafkafmt._util.user_errors import UserError
from kafkafmt.columns.read import COLUMNS
from kafkafmt.log.topics import topic_names
from kafkafmt.scanning.errors import ScanError
from kafkafmt.scanning.selection import TopicSelection, topic_selection
from kafkafmt.storage import RemotePath
from kafkafmt.types import TopicPartition, milliseconds

if TYPE_CHECKING:
    from kafkafmt.decode.decoding import Decoding
    from kafkafmt.decode.options import Format

Path: TypeAlias = "str | os.PathLike[str] | RemotePath"
Partition: TypeAlias = "TopicPartition | tuple[str, int]"
# The first offset, and the one after the last; None is the start or the end of the partition.
OffsetBounds: TypeAlias = "tuple[int | None, int | None]"
Offsets: TypeAlias = (
    "OffsetBounds | Mapping[TopicPartition, OffsetBounds] | Mapping[tuple[str, int], OffsetBounds]"
)
Timestamps: TypeAlias = "tuple[int | datetime | None, int | datetime | None]"

DEFAULT_COLUMNS = tuple(name for name in COLUMNS if name != "headers")


def parse_paths(source: Path | Iterable[Path]) -> tuple[str | RemotePath, ...]:
    """Return the paths and URIs of a source. Raises ScanError without any."""
    try:
        given = [source] if isinstance(source, (str, os.PathLike, RemotePath)) else source
        paths = tuple(path if isinstance(path, RemotePath) else os.fspath(path) for path in given)
    except TypeError:
        paths = ()
    if not paths or not all(isinstance(path, (str, RemotePath)) and path for path in paths):
        raise ScanError(f"source: expected a path, a URI, or several of them, found {source!r}")
    return paths


def parse_topics(
    topics: str | Iterable[str] | None, partitions: Iterable[TopicPartition] | None
) -> TopicSelection:
    """Return the topics by names and globs; without them, those of the partitions. Raises ScanError."""
    if topics is None:
        return TopicSelection(names=tuple(sorted({one.topic for one in partitions or ()})))
    try:
        given = topic_names(topics)
    except (AttributeError, TypeError):  # no text
        given = ()
    if not given or not all(given):
        raise ScanError(f"topics: expected a name, a glob or several of them, found {topics!r}")
    return topic_selection(dict.fromkeys(given))


def parse_partitions(partitions: Partition | Iterable[Partition] | None) -> frozenset[TopicPartition] | None:
    """Return the partitions; None for all. Raises ScanError."""
    if partitions is None:
        return None
    is_one = isinstance(partitions, tuple) and isinstance(next(iter(partitions), None), str)
    given: Iterable[Any] = [partitions] if is_one else partitions
    try:
        found = [_partition(one) for one in given]
    except TypeError:
        found = []
    if not found or None in found:
        raise ScanError(f"partitions: expected a TopicPartition or several of them, found {partitions!r}")
    return frozenset(one for one in found if one is not None)


def _partition(given: Any) -> TopicPartition | None:
    """Return a partition; None if it is not one."""
    if not isinstance(given, tuple) or len(given) != 2:
        return None
    topic, partition = given
    return TopicPartition(topic, partition) if isinstance(topic, str) and type(partition) is int else None


def parse_columns(columns: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names of the columns, by default all but headers. Raises ScanError."""
    if columns is None:
        return DEFAULT_COLUMNS
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for name in names:
        if name not in COLUMNS:
            raise ScanError(unknown_name("column", str(name), COLUMNS))
        if names.count(name) > 1:
            raise ScanError(f"columns: expected each once, found {name} twice")
    if not names:
        raise ScanError("columns: expected one at least, found none")
    return names


def parse_offsets(offsets: Offsets | None) -> OffsetBounds | Mapping[TopicPartition, OffsetBounds]:
    """Return the bounds of all partitions, or of each. Raises ScanError."""
    if offsets is None:
        return (None, None)
    if isinstance(offsets, Mapping):
        found = {}
        for given, bounds in offsets.items():
            one = _partition(given)
            if one is None:
                raise ScanError(f"offsets: expected (start, end) by TopicPartition, found the key {given!r}")
            found[one] = _offset_bounds(bounds, f"offsets of {one}")
        return found
    return _offset_bounds(offsets, "offsets")


def _offset_bounds(bounds: object, what: str) -> OffsetBounds:
    if (
        not isinstance(bounds, Sequence)
        or len(bounds) != 2
        or not all(one is None or (type(one) is int and one >= 0) for one in bounds)
    ):
        raise ScanError(f"{what}: expected (start, end) of offsets or None, found {bounds!r}")
    start, end = bounds
    if start is not None and end is not None and start > end:
        raise ScanError(f"{what}: the start {start} is after the end {end}")
    return start, end


def parse_timestamps(timestamps: Timestamps | None) -> tuple[int | None, int | None]:
    """Return the bounds in milliseconds. Raises ScanError."""
    if timestamps is None:
        return None, None
    if not isinstance(timestamps, Sequence) or len(timestamps) != 2:
        raise ScanError(
            f"timestamps: expected (from, to) of datetimes, milliseconds or None, found {timestamps!r}"
        )
    start, end = (None if one is None else _rounded_up(one) for one in timestamps)
    if start is not None and end is not None and start > end:
        raise ScanError(f"timestamps: the start {timestamps[0]} is after the end {timestamps[1]}")
    return start, end


def _rounded_up(time: int | datetime) -> int:
    """Return milliseconds. A record, whose time is in milliseconds, is at or after both or neither of the times."""
    try:
        found = milliseconds(time, "timestamps")
    except (TypeError, ValueError) as error:
        raise ScanError(str(error)) from None
    return found + 1 if isinstance(time, datetime) and time.microsecond % 1000 else found


def parse_decoding(decode: object, columns: Iterable[str]) -> Decoding:
    """Return the decoding of a format of values, or the given one. Raises ScanError."""
    from kafkafmt.decode.decoding import Decoding

    try:
        decoding = Decoding(value=cast("Format", decode)) if isinstance(decode, str) else decode
    except UserError as error:
        raise ScanError(f"decode: {error}") from None
    if not isinstance(decoding, Decoding):
        raise ScanError(
            f"decode: expected a Decoding, or the format of values, found {type(decode).__name__}"
        )
    if not any(side in columns for side in decoding.sides()):
        raise ScanError(
            f"{' and '.join(decoding.sides())}: expected among the columns, as decode has its format"
        )
    return decoding
