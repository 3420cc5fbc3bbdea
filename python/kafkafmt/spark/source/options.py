"""The options of the source: what a user asks for, parsed and checked before any file is looked at."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.spark.locations import FILE_SYSTEM_OPTIONS
from kafkafmt.spark.values import (
    Given,
    one_of,
    parse_arrow_size,
    parse_boolean,
    parse_names,
    parse_number,
    parse_pattern,
    parse_size,
)
from kafkafmt.types import TopicPartition

UNITS = ("records", "batches")
ISOLATIONS = ("read_uncommitted", "read_committed")
ON_CORRUPT = ("fail", "skip", "keep")
DEFAULT_SPLIT_BYTES = 128 * 1024 * 1024
DEFAULT_BATCH_BYTES = 4 * 1024 * 1024

_KNOWN = (
    "path",
    "paths",
    "unit",
    "columns",
    "includeHeaders",
    "topics",
    "subscribe",
    "subscribePattern",
    "topic",
    "partition",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "isolation",
    "onCorrupt",
    "verify",
    "maxDecompressedBytes",
    "splitBytes",
    "maxBatchBytes",
    *FILE_SYSTEM_OPTIONS,
)
_BATCH_ONLY = ("endingOffsets", "endingTimestamp")
_STREAM_ONLY = (
    "failOnDataLoss",
    "maxBytesPerTrigger",
    "maxRowsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxFilesPerTrigger",
)
# As Kafka's ListOffsets and Spark's JSON have them.
LATEST, _EARLIEST = -1, -2
_MAX_INT, _MAX_LONG = 2**31 - 1, 2**63 - 1


class Amount(NamedTuple):
    """So much to read, or at the most."""

    size_in_bytes: int = _MAX_LONG
    rows: int = _MAX_LONG
    files: int = _MAX_LONG

    def fits(self, most: Amount) -> bool:
        return all(own <= other for own, other in zip(self, most, strict=True))

    def plus(self, other: Amount) -> Amount:
        return Amount(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: Amount) -> Amount:
        return Amount(*(a - b for a, b in zip(self, other, strict=True)))


NOTHING, UNLIMITED = Amount(0, 0, 0), Amount()


@dataclass(frozen=True)
class Bound:
    """Where the reading of each partition begins or ends; with neither, where its log does.

    offsets: a partition that is to be read from, or to, its log's own end on that side has None; one that a stream
    begins to read at its other end has LATEST.
    is_latest: that is so for all partitions.
    timestamp: in milliseconds; stands for the offset of the first record with it or a later one.
    """

    offsets: Mapping[TopicPartition, int | None] | None = None
    timestamp: int | None = None
    is_latest: bool = False


@dataclass(frozen=True)
class TopicSelection:
    """Which topics: those of these names, that one of `globs` matches or `pattern` does as a whole; else every one."""

    names: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    pattern: str | None = None

    def __contains__(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        if self.is_everything or topic in self.names:
            return True
        return any(fnmatchcase(topic, glob) for glob in self.globs)

    @property
    def is_everything(self) -> bool:
        return not (self.names or self.globs) and self.pattern is None

    def unmatched(self, topics: Iterable[str]) -> str | None:
        """The first name, glob or pattern that stands for none of `topics`; None where all stand for some."""
        topics = list(topics)
        parts = [TopicSelection(names=(name,)) for name in self.names]
        parts += [TopicSelection(globs=(glob,)) for glob in self.globs]
        parts += [self] if self.pattern is not None else []
        missing = [part for part in parts if not any(topic in part for topic in topics)]
        return next((part.pattern or (part.names + part.globs)[0] for part in missing), None)


@dataclass(frozen=True)
class ReadOptions:
    """What is to be read, and how; see the README for each option.

    file_system: what holds for the file system of every URI, as `list_segments` takes it; credentials may be in it.
    """

    paths: tuple[str, ...]
    unit: str = "records"
    columns: tuple[str, ...] | None = None
    include_headers: bool = False
    topics: TopicSelection = field(default_factory=TopicSelection)
    topic_partition: TopicPartition | None = None
    starting: Bound = field(default_factory=Bound)
    ending: Bound = field(default_factory=Bound)
    isolation: str = "read_uncommitted"
    on_corrupt: str = "fail"
    verify: bool = True
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    split_bytes: int = DEFAULT_SPLIT_BYTES
    max_batch_bytes: int = DEFAULT_BATCH_BYTES
    file_system: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Those of a read of what is there.

        Raises ValueError, in one line, for an unknown option, one of streams, and a value that cannot be.
        """
        given = _given(options)
        given.ensure_none_of(_STREAM_ONLY, "streams have it, as spark.readStream makes them")
        return cls.of(given, can_be_stream=False)

    @classmethod
    def parse_any(cls, options: Mapping[str, str]) -> ReadOptions:
        """As `parse`, where it is not known yet whether they are those of a stream."""
        return cls.of(_given(options), can_be_stream=True)

    @classmethod
    def of(cls, given: Given, *, can_be_stream: bool) -> ReadOptions:
        unit = given.parse("unit", one_of(UNITS), "records")
        on_corrupt = given.parse("onCorrupt", one_of(ON_CORRUPT), "fail")
        if on_corrupt == "keep" and unit == "records":
            raise ValueError(
                "onCorrupt: keep needs unit=batches, as damage is no record; expected fail or skip"
            )
        return cls(
            paths=_paths(given),
            unit=unit,
            columns=given.parse("columns", _columns, None),
            include_headers=given.parse("includeHeaders", parse_boolean, False),
            topics=_topics(given),
            topic_partition=_topic_partition(given),
            starting=_starting(given, can_be_latest=can_be_stream),
            ending=_bound(given, "ending", own="latest", own_number=LATEST),
            isolation=given.parse("isolation", one_of(ISOLATIONS), "read_uncommitted"),
            on_corrupt=on_corrupt,
            verify=given.parse("verify", parse_boolean, True),
            max_decompressed_bytes=given.parse(
                "maxDecompressedBytes", parse_size, DEFAULT_MAX_DECOMPRESSED_BYTES
            ),
            split_bytes=given.parse("splitBytes", parse_size, DEFAULT_SPLIT_BYTES),
            max_batch_bytes=given.parse("maxBatchBytes", parse_arrow_size, DEFAULT_BATCH_BYTES),
            file_system={name: given.parse(name, str, "") for name in FILE_SYSTEM_OPTIONS if name in given},
        )


@dataclass(frozen=True)
class StreamOptions:
    """What a stream reads, how it goes on where records were deleted before they were read, and how far at a time."""

    read: ReadOptions
    fails_on_data_loss: bool = True
    limit: Amount = UNLIMITED

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Raises ValueError, in one line, for an unknown option, one that no stream has, and a value that cannot be."""
        given = _given(options)
        given.ensure_none_of(_BATCH_ONLY, "a stream does not take it")
        given.ensure_one_of("maxRowsPerTrigger", "maxOffsetsPerTrigger")
        most_rows = given.parse("maxRowsPerTrigger", _parse_count, UNLIMITED.rows)
        return cls(
            ReadOptions.of(given, can_be_stream=True),
            given.parse("failOnDataLoss", parse_boolean, True),
            Amount(
                given.parse("maxBytesPerTrigger", parse_size, UNLIMITED.size_in_bytes),
                given.parse("maxOffsetsPerTrigger", _parse_count, most_rows),
                given.parse("maxFilesPerTrigger", _parse_count, UNLIMITED.files),
            ),
        )


def _given(options: Mapping[str, str]) -> Given:
    return Given(options, (*_KNOWN, *_STREAM_ONLY))


def _parse_count(value: str) -> int:
    return parse_number(value, _MAX_LONG, least=1)


def _path_list(value: str) -> tuple[str, ...]:
    """As Spark hands on what `load` was given several of."""
    try:
        paths = json.loads(value)
    except json.JSONDecodeError:
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise ValueError("expected a JSON array of paths")
    return tuple(paths)


def _columns(value: str) -> tuple[str, ...]:
    names = parse_names(value)
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("expected each column once, in any case")
    return names


def _paths(given: Given) -> tuple[str, ...]:
    alone: tuple[str, ...] = (given.parse("path", str, ""),)
    paths = given.parse("paths", _path_list, alone)
    if "" in paths:
        raise ValueError(
            "no path: expected log directories, segment files or globs, as load(path) or load([path])"
        )
    return paths


def _topics(given: Given) -> TopicSelection:
    given.ensure_one_of("topics", "subscribe", "subscribePattern")
    none: tuple[str, ...] = ()
    return TopicSelection(
        names=given.parse("subscribe", parse_names, none),
        globs=given.parse("topics", parse_names, none),
        pattern=given.parse("subscribePattern", parse_pattern, None),
    )


def _topic_partition(given: Given) -> TopicPartition | None:
    if ("topic" in given) != ("partition" in given):
        raise ValueError("options topic and partition: expected both or neither")
    if "topic" not in given:
        return None
    return TopicPartition(
        given.parse("topic", str, ""),
        given.parse("partition", lambda value: parse_number(value, _MAX_INT), 0),
    )


def _starting(given: Given, *, can_be_latest: bool) -> Bound:
    if can_be_latest and given.parse("startingOffsets", str.lower, "") == "latest":
        given.ensure_one_of("startingOffsets", "startingTimestamp")
        return Bound(is_latest=True)
    other = LATEST if can_be_latest else None
    return _bound(given, "starting", own="earliest", own_number=_EARLIEST, other_number=other)


def _bound(given: Given, prefix: str, *, own: str, own_number: int, other_number: int | None = None) -> Bound:
    """own: what stands for the log's own end on this side, which is the default; other: for its other end."""
    given.ensure_one_of(f"{prefix}Offsets", f"{prefix}Timestamp")

    def offsets(value: str) -> Mapping[TopicPartition, int | None] | None:
        return None if value.lower() == own else _offsets(value, own, own_number, other_number)

    return Bound(
        given.parse(f"{prefix}Offsets", offsets, None),
        given.parse(f"{prefix}Timestamp", lambda value: parse_number(value, _MAX_LONG), None),
    )


def _offsets(
    value: str, own: str, own_number: int, other_number: int | None
) -> dict[TopicPartition, int | None]:
    """Spark's JSON, {"topic": {"0": 23, "1": -2}}: -2 is earliest, -1 latest."""
    expected = f'expected {own} or JSON as {{"topic": {{"0": 23, "1": {own_number}}}}}'
    try:
        given = json.loads(value)
    except json.JSONDecodeError:
        raise ValueError(expected) from None
    found: dict[TopicPartition, int | None] = {}
    for topic, partitions in given.items() if isinstance(given, dict) else [("", None)]:
        for partition, offset in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            is_offset = type(offset) is int and (
                0 <= offset <= _MAX_LONG or offset in (own_number, other_number)
            )
            if not partition.isdecimal() or not is_offset:
                raise ValueError(expected)
            found[TopicPartition(topic, int(partition))] = None if offset == own_number else offset
    return found
