"""The options of the source. They are parsed and checked before any file is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kafkafmt._util.options import Option, Options
from kafkafmt._util.sizes import size_text
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.scanning.options import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_SPLIT_BYTES,
    LogReadOptions,
    OptionNames,
)
from kafkafmt.scanning.selection import LATEST
from kafkafmt.spark.selection import parse_bound, parse_starting, parse_topic_selection
from kafkafmt.spark.values import (
    FILE_SYSTEM_HELP,
    MAX_LONG,
    json_value,
    one_of,
    parse_arrow_size,
    parse_boolean,
    parse_columns,
    parse_count,
    parse_long,
    parse_names,
    parse_partition,
    parse_pattern,
    parse_size,
)
from kafkafmt.storage import is_uri
from kafkafmt.storage.locations import FILE_SYSTEM_OPTIONS, VIEW_OPTIONS
from kafkafmt.types import ISOLATIONS, TopicPartition

# Units that are the state in internal topics: see `state_units`.
STATE_UNITS = ("offsets", "transactions", "metadata")
UNITS = ("records", "batches", *STATE_UNITS)
ON_CORRUPT = ("fail", "skip", "keep")
_NAMES = OptionNames(
    "startingOffsets", "endingOffsets", "topics=*", "checkOverlaps=true", "option maxDecompressedBytes"
)


def _path_list(value: str) -> tuple[str, ...]:
    """Parse the JSON array that Spark makes of a list of paths given to `load`. Raises ValueError."""
    paths = json_value(value)
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise ValueError("expected a JSON array of paths")
    return tuple(paths)


# The range of a read, for both sources.
BOUNDS = (
    Option(
        "startingOffsets",
        str,
        "earliest",
        '`earliest`, or JSON for each partition, as Spark\'s Kafka source takes it: `{"orders": {"0": 23, "1": -2}}`. '
        "A stream may begin at `latest`",
    ),
    Option("endingOffsets", str, "latest", "`latest`, or such JSON. A stream has no end"),
    Option(
        "startingTimestamp",
        parse_long,
        None,
        "milliseconds. Each partition begins at its first record whose timestamp is at or after this time",
    ),
    Option(
        "endingTimestamp",
        parse_long,
        None,
        "milliseconds. Each partition ends before its first record whose timestamp is at or after it, or at its end",
    ),
)
SOURCE_OPTIONS = (
    Option("path", str, "", "a log directory, a partition folder, a segment file, or a glob; local or a URI"),
    Option("paths", _path_list, None, "several paths, as from `load([...])`"),
    Option(
        "unit",
        one_of(UNITS),
        "records",
        "`records`; `batches`: every header field, `file`, `position`, `size`, and the bytes as `batch`; or a state: "
        "`offsets` of groups, `transactions`, the `metadata` of a cluster",
    ),
    Option(
        "columns",
        parse_columns,
        None,
        "the columns to read, as `.schema(...)`. Columns that are not selected are not materialised",
    ),
    Option("includeHeaders", parse_boolean, "false", "`true` adds the column `headers`"),
    Option(
        "topics",
        parse_names,
        None,
        "names and globs, separated by commas. Without this option and the next two, Kafka's own topics in a log "
        "directory are left out: their names begin with two underscores. `*`, or the path of a partition folder, "
        "reads them",
    ),
    Option("subscribe", parse_names, None, "names, separated by commas"),
    Option("subscribePattern", parse_pattern, None, "a regular expression for whole names"),
    Option(
        "topic",
        str,
        None,
        "required, with `partition`, for a folder that is not named `<topic>-<partition>`, and an error for a folder "
        "of another partition. It selects nothing: `subscribe` and `topics` do",
    ),
    Option("partition", parse_partition, None, "required with `topic`"),
    *BOUNDS,
    Option(
        "isolation",
        one_of(ISOLATIONS),
        "read_uncommitted",
        "`read_committed` leaves out aborted transactions, and ends before the first open one. For this the driver "
        "reads the headers of a partition's last segment, or of all segments without `.txnindex` and `.snapshot` files",
    ),
    Option(
        "onCorrupt",
        one_of(ON_CORRUPT),
        "fail",
        "`fail`; `skip`, with a warning in the log of the executor; or, with `unit=batches`, `keep`: a row whose "
        "column `damage` contains the error",
    ),
    Option("verify", parse_boolean, "true", "whether CRCs are checked"),
    Option(
        "fromSegmentStart",
        parse_boolean,
        "false",
        "`false`: records below the log start offset are deleted, and are not read; `log-start-offset-checkpoint` in "
        "the log directory contains it. `true`: each partition begins at its first segment",
    ),
    Option(
        "checkOverlaps",
        parse_boolean,
        None,
        "whether the driver looks up the end of each segment. If segments overlap, each offset is then read once, with "
        "a warning. By default `true` for local folders, and `false` for others, as it costs some requests for each "
        "segment. With `false`, a task that finds such offsets fails the query",
    ),
    Option(
        "maxDecompressedBytes",
        parse_size,
        size_text(DEFAULT_MAX_DECOMPRESSED_BYTES),
        "the most bytes that one batch may decompress to",
    ),
    Option(
        "splitBytes",
        parse_size,
        size_text(DEFAULT_SPLIT_BYTES),
        "about the bytes that a task reads: larger segments are cut between batches, small ones share a task",
    ),
    Option(
        "maxBatchBytes", parse_arrow_size, size_text(DEFAULT_BATCH_BYTES), "about the size of an Arrow batch"
    ),
    *(Option(name, str, None, FILE_SYSTEM_HELP) for name in FILE_SYSTEM_OPTIONS),
    Option(
        "key_ring",
        str,
        None,
        "the path of the key ring for encrypted tiered storage and backups, which all executors have",
    ),
    Option("generation", str, None, "the generation of a backup that is read; by default the last one"),
)
_PATH_OPTIONS = (*FILE_SYSTEM_OPTIONS, *VIEW_OPTIONS)
# The options of a unit that is a state. endingTimestamp is the time of the state.
_OF_STATE = (
    "path",
    "paths",
    "unit",
    "columns",
    "endingTimestamp",
    "onCorrupt",
    "maxBatchBytes",
    *_PATH_OPTIONS,
)
STREAM_OPTIONS = (
    Option(
        "failOnDataLoss",
        parse_boolean,
        "true",
        "whether a stream fails if offsets were deleted before they were read",
    ),
    Option("maxBytesPerTrigger", parse_size, None, "the most bytes that a micro-batch reads"),
    Option("maxRowsPerTrigger", parse_count, None, "the most offsets that a micro-batch reads"),
    Option("maxOffsetsPerTrigger", parse_count, None, "the same, by its name in Spark's Kafka source"),
    Option("maxFilesPerTrigger", parse_count, None, "the most segments that a micro-batch reads"),
)
BATCH_ONLY = ("endingOffsets", "endingTimestamp")
_STREAM_ONLY = tuple(option.name for option in STREAM_OPTIONS)


class Amount(NamedTuple):
    """An amount to read, or a limit: bytes, rows (offsets) and segment files."""

    size_in_bytes: int = MAX_LONG
    rows: int = MAX_LONG
    files: int = MAX_LONG

    def fits(self, most: Amount) -> bool:
        """Return whether no number exceeds that of `most`."""
        return all(own <= other for own, other in zip(self, most, strict=True))

    def plus(self, other: Amount) -> Amount:
        """Return the sum of two amounts."""
        return Amount(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: Amount) -> Amount:
        """Return the difference of two amounts."""
        return Amount(*(a - b for a, b in zip(self, other, strict=True)))


NOTHING, UNLIMITED = Amount(0, 0, 0), Amount()


@dataclass(frozen=True, kw_only=True)
class ReadOptions(LogReadOptions):
    """The parsed options of a read; `SOURCE_OPTIONS` describes each. The unit may also be a state."""

    columns: tuple[str, ...] | None = None
    include_headers: bool = False
    names: OptionNames = _NAMES

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parse the options of a batch read.

        Raises ValueError, in one line, for an unknown option, an option of streams, and an invalid value.
        """
        given = _given(options)
        given.ensure_none_of(_STREAM_ONLY, "streams have it, as spark.readStream makes them")
        return cls.of(given, can_be_stream=False)

    @classmethod
    def parse_any(cls, options: Mapping[str, str]) -> ReadOptions:
        """Parse the options of a batch read or a stream. Raises ValueError, in one line."""
        return cls.of(_given(options), can_be_stream=True)

    @classmethod
    def of(cls, options: Options, *, can_be_stream: bool) -> ReadOptions:
        unit = options["unit"]
        if options["onCorrupt"] == "keep" and unit != "batches":
            raise ValueError(
                "onCorrupt: keep needs unit=batches, as damage is no record; expected fail or skip"
            )
        if unit in STATE_UNITS:
            options.ensure_only(_OF_STATE, f"unit={unit} does not take it")
        if unit == "metadata":
            if options["onCorrupt"] == "skip":
                raise ValueError("onCorrupt: unit=metadata needs all records of the log; expected fail")
            if len(_paths(options)) != 1:
                raise ValueError(f"unit=metadata: expected one path, found {len(_paths(options))}")
        if not any(map(is_uri, _paths(options))):
            options.ensure_none_of(
                _PATH_OPTIONS, "a local folder has no such setting; expected it with the URI of a store"
            )
        return cls(
            paths=_paths(options),
            topics=parse_topic_selection(options),
            topic_partition=_topic_partition(options),
            starting=parse_starting(options, can_be_latest=can_be_stream),
            ending=parse_bound(options, "ending", own="latest", own_number=LATEST),
            **options.in_snake_case("unit", "columns", "includeHeaders", "isolation", "onCorrupt", "verify"),
            **options.in_snake_case(
                "fromSegmentStart", "maxDecompressedBytes", "splitBytes", "maxBatchBytes"
            ),
            checks_overlaps=options["checkOverlaps"],
            file_system={name: options[name] for name in _PATH_OPTIONS if name in options},
        )


@dataclass(frozen=True)
class StreamOptions:
    """The parsed options of a stream: those of the read, failOnDataLoss, and the limit of a micro-batch."""

    read: ReadOptions
    fails_on_data_loss: bool = True
    limit: Amount = UNLIMITED

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Parse the options of a stream. Raises ValueError, in one line, for unknown, wrong and invalid options."""
        given = _given(options)
        given.ensure_none_of(BATCH_ONLY, "a stream does not take it")
        given.ensure_one_of("maxRowsPerTrigger", "maxOffsetsPerTrigger")
        if given["unit"] in STATE_UNITS:
            raise ValueError(
                f"unit={given['unit']}: a stream cannot read a state; expected records or batches"
            )
        limits = (
            given["maxBytesPerTrigger"],
            given["maxOffsetsPerTrigger"] or given["maxRowsPerTrigger"],
            given["maxFilesPerTrigger"],
        )
        return cls(
            ReadOptions.of(given, can_be_stream=True),
            given["failOnDataLoss"],
            Amount(
                *(most if limit is None else limit for limit, most in zip(limits, UNLIMITED, strict=True))
            ),
        )


def _given(options: Mapping[str, str]) -> Options:
    return Options(options, (*SOURCE_OPTIONS, *STREAM_OPTIONS))


def _paths(options: Options) -> tuple[str, ...]:
    paths: tuple[str, ...] = options["paths"] or (options["path"],)
    if "" in paths:
        raise ValueError(
            "no path: expected log directories, segment files or globs, as load(path) or load([path])"
        )
    return paths


def _topic_partition(options: Options) -> TopicPartition | None:
    if ("topic" in options) != ("partition" in options):
        raise ValueError("options topic and partition: expected both or neither")
    return TopicPartition(options["topic"], options["partition"]) if "topic" in options else None
