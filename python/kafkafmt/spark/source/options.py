"""The options of the source: what a user asks for, parsed and checked before any file is looked at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.spark.locations import FILE_SYSTEM_OPTIONS
from kafkafmt.spark.selection import (
    LATEST,
    Bound,
    TopicSelection,
    parse_bound,
    parse_starting,
    parse_topic_selection,
)
from kafkafmt.spark.values import (
    MAX_LONG,
    Given,
    one_of,
    parse_arrow_size,
    parse_boolean,
    parse_columns,
    parse_count,
    parse_number,
    parse_size,
)
from kafkafmt.types import ISOLATIONS, TopicPartition

UNITS = ("records", "batches")
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
    "fromSegmentStart",
    "checkOverlaps",
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
_MAX_INT = 2**31 - 1


class Amount(NamedTuple):
    """So much to read, or at the most."""

    size_in_bytes: int = MAX_LONG
    rows: int = MAX_LONG
    files: int = MAX_LONG

    def fits(self, most: Amount) -> bool:
        return all(own <= other for own, other in zip(self, most, strict=True))

    def plus(self, other: Amount) -> Amount:
        return Amount(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: Amount) -> Amount:
        return Amount(*(a - b for a, b in zip(self, other, strict=True)))


NOTHING, UNLIMITED = Amount(0, 0, 0), Amount()


@dataclass(frozen=True)
class ReadOptions:
    """What is to be read, and how; see the README for each option.

    from_segment_start: whether `log-start-offset-checkpoint` is left alone, so that deleted records are read.
    checks_overlaps: whether the driver looks where each segment ends; None: of local ones alone.
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
    from_segment_start: bool = False
    checks_overlaps: bool | None = None
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
            columns=given.parse("columns", parse_columns, None),
            include_headers=given.parse("includeHeaders", parse_boolean, False),
            topics=parse_topic_selection(given),
            topic_partition=_topic_partition(given),
            starting=parse_starting(given, can_be_latest=can_be_stream),
            ending=parse_bound(given, "ending", own="latest", own_number=LATEST),
            isolation=given.parse("isolation", one_of(ISOLATIONS), "read_uncommitted"),
            on_corrupt=on_corrupt,
            verify=given.parse("verify", parse_boolean, True),
            from_segment_start=given.parse("fromSegmentStart", parse_boolean, False),
            checks_overlaps=given.parse("checkOverlaps", parse_boolean, None),
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
        most_rows = given.parse("maxRowsPerTrigger", parse_count, UNLIMITED.rows)
        return cls(
            ReadOptions.of(given, can_be_stream=True),
            given.parse("failOnDataLoss", parse_boolean, True),
            Amount(
                given.parse("maxBytesPerTrigger", parse_size, UNLIMITED.size_in_bytes),
                given.parse("maxOffsetsPerTrigger", parse_count, most_rows),
                given.parse("maxFilesPerTrigger", parse_count, UNLIMITED.files),
            ),
        )


def _given(options: Mapping[str, str]) -> Given:
    return Given(options, (*_KNOWN, *_STREAM_ONLY))


def _path_list(value: str) -> tuple[str, ...]:
    """As Spark hands on what `load` was given several of."""
    try:
        paths = json.loads(value)
    except json.JSONDecodeError:
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise ValueError("expected a JSON array of paths")
    return tuple(paths)


def _paths(given: Given) -> tuple[str, ...]:
    alone: tuple[str, ...] = (given.parse("path", str, ""),)
    paths = given.parse("paths", _path_list, alone)
    if "" in paths:
        raise ValueError(
            "no path: expected log directories, segment files or globs, as load(path) or load([path])"
        )
    return paths


def _topic_partition(given: Given) -> TopicPartition | None:
    if ("topic" in given) != ("partition" in given):
        raise ValueError("options topic and partition: expected both or neither")
    if "topic" not in given:
        return None
    return TopicPartition(
        given.parse("topic", str, ""),
        given.parse("partition", lambda value: parse_number(value, _MAX_INT), 0),
    )
