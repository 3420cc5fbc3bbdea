"""The options of the sink. They are parsed and checked before any row is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kafkafmt._util.options import Option, Options
from kafkafmt._util.sizes import size_text
from kafkafmt.build.builder import DEFAULT_BATCH_SIZE, RecordBatchBuilder
from kafkafmt.log.batch_writer import MAX_INT32
from kafkafmt.log.writer import DEFAULT_SEGMENT_BYTES
from kafkafmt.spark.sink.manifest import StreamBatch, parse_query
from kafkafmt.spark.values import (
    FILE_SYSTEM_HELP,
    one_of,
    parse_long,
    parse_number,
    parse_partition,
    parse_size,
)
from kafkafmt.storage import StoragePath
from kafkafmt.storage.locations import FILE_SYSTEM_OPTIONS, Storages, without_secrets
from kafkafmt.types import Codec, TopicPartition

UNITS = ("records", "batches")
OFFSETS = ("keep", "dense")
DEFAULT_BUFFER_BYTES = 64 * 1024 * 1024

# The options that control how batches are built. They have no meaning for rows that are batches.
_OF_RECORDS = ("codec", "level", "magic", "batchSize")
_OF_TRANSACTIONS = ("txnAppId", "txnVersion")
_CODECS = tuple(codec.name.lower() for codec in Codec)
_MAX_MAGIC = 2
_LEVEL = re.compile(r"[+-]?\d{1,3}")


def is_topic(name: str) -> bool:
    """Return whether Kafka allows the name: up to 249 letters, digits, `.`, `_` and `-`, and neither `.` nor `..`."""
    return name not in (".", "..") and TopicPartition.from_folder_name(f"{name}-0") is not None


def parse_topic(value: str) -> str:
    """Parse the name of a topic."""
    if not is_topic(value):
        raise ValueError("expected a topic's name: up to 249 letters, digits, '.', '_' and '-'")
    return value


def _parse_level(value: str) -> int:
    if not _LEVEL.fullmatch(value.strip()):
        raise ValueError("expected a codec's level, as 9")
    return int(value)


def _parse_int32_size(value: str) -> int:
    size = parse_size(value)
    if size > MAX_INT32:
        raise ValueError("expected at most 2^31 - 1 bytes")
    return size


def _parse_codec(value: str) -> Codec:
    return Codec[one_of(_CODECS)(value).upper()]


def _parse_magic(value: str) -> int:
    return parse_number(value, _MAX_MAGIC)


# The partition of the rows, for both sinks.
TARGET_OPTIONS = (
    Option(
        "topic",
        parse_topic,
        None,
        "the topic of all rows, instead of their column; required without such a column",
    ),
    Option("partition", parse_partition, None, "the partition of all rows; required without such a column"),
)
SINK_OPTIONS = (
    Option("path", str, "", "the log directory: a local or a mounted folder, or a URI of an object store"),
    Option("unit", one_of(UNITS), None, "`records` or `batches`; by default the columns decide"),
    *TARGET_OPTIONS,
    Option(
        "offsets",
        one_of(OFFSETS),
        None,
        "`keep` those of the data, or `dense`: numbered from the end of the log on; by default the columns decide",
    ),
    Option("codec", _parse_codec, "none", "`none`, `gzip`, `snappy`, `lz4` or `zstd`", "compression"),
    Option("level", _parse_level, None, "the compression level of the codec"),
    Option("magic", _parse_magic, str(_MAX_MAGIC), "the message format"),
    Option(
        "batchSize",
        _parse_int32_size,
        size_text(DEFAULT_BATCH_SIZE),
        "bytes of a batch before it is compressed",
    ),
    Option(
        "segmentBytes", _parse_int32_size, size_text(DEFAULT_SEGMENT_BYTES), "the most bytes of a segment"
    ),
    Option(
        "maxBufferBytes",
        parse_size,
        size_text(DEFAULT_BUFFER_BYTES),
        "the most bytes that a task buffers before it writes them",
    ),
    Option(
        "txnAppId",
        parse_query,
        None,
        "of batch writes: the name of the job, for `txnVersion`: up to 100 letters, digits, `.`, `_` and `-`",
    ),
    Option(
        "txnVersion",
        parse_long,
        None,
        "of batch writes: the number of this run of the job. A write whose number, or a higher one, was committed with "
        "this `txnAppId` is left out, with a warning",
    ),
    *(Option(name, str, None, FILE_SYSTEM_HELP) for name in FILE_SYSTEM_OPTIONS),
)
# The options that Spark adds to those of a stream.
OF_STREAMS = tuple(Option(name, str, None, "of Spark") for name in ("checkpointLocation", "queryName"))


@dataclass(frozen=True)
class WriteOptions:
    """The parsed options of a write; `SINK_OPTIONS` describes each.

    unit, offsets: None if the columns decide. topic, partition: of all rows, instead of their columns. of_records: the
    names of the given options that control how batches are built. transaction: of `txnAppId` and `txnVersion`.
    """

    folder: StoragePath
    unit: str | None = None
    offsets: str | None = None
    topic: str | None = None
    partition: int | None = None
    codec: Codec = Codec.NONE
    level: int | None = None
    magic: int = _MAX_MAGIC
    batch_size: int = DEFAULT_BATCH_SIZE
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    max_buffer_bytes: int = DEFAULT_BUFFER_BYTES
    transaction: StreamBatch | None = None
    of_records: tuple[str, ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
        """Parse the options of a write. Raises ValueError, in one line, for an unknown option or an invalid value."""
        given = Options(options, SINK_OPTIONS + OF_STREAMS if streaming else SINK_OPTIONS)
        RecordBatchBuilder(
            **given.in_snake_case("magic", "codec", "level")
        )  # raises ValueError for values that cannot be combined
        parsed = cls(
            folder=_folder(given),
            **given.in_snake_case("unit", "offsets", "topic", "partition", "batchSize", "segmentBytes"),
            **given.in_snake_case("codec", "level", "magic", "maxBufferBytes"),
            transaction=_transaction(given, streaming=streaming),
            of_records=tuple(name for name in _OF_RECORDS if name in given),
        )
        if parsed.unit is not None:
            parsed.ensure_fits(parsed.unit)
        return parsed

    def ensure_fits(self, unit: str) -> None:
        """Raise ValueError if a given option has no meaning for rows of that unit."""
        if unit == "batches" and self.of_records:
            raise ValueError(
                f"option {self.of_records[0]}: batches are written as they are; expected it with unit=records"
            )


def _transaction(given: Options, *, streaming: bool) -> StreamBatch | None:
    """Return the identity of a batch write, or None. Raises ValueError for one option alone, and in a stream."""
    found = [name for name in _OF_TRANSACTIONS if name in given]
    if not found:
        return None
    if streaming:
        raise ValueError(f"option {found[0]}: a stream numbers its batches; expected it with a batch write")
    if len(found) == 1:
        raise ValueError(f"option {found[0]}: expected both {' and '.join(_OF_TRANSACTIONS)}")
    return StreamBatch(given["txnAppId"], given["txnVersion"], of_application=True)


def _folder(given: Options) -> StoragePath:
    path = given["path"]
    if not path:
        raise ValueError(
            "no path: expected a log directory, as save(path) or start(path); of a table of the catalog Spark tells "
            "none: INSERT INTO takes a temporary view USING kafkafmt OPTIONS (path ...)"
        )
    settings = {name: given[name] for name in FILE_SYSTEM_OPTIONS if name in given}
    folder = Storages(settings).locate(path)
    if isinstance(folder, Path):
        given.ensure_none_of(
            settings, "a local folder has no such setting; expected it with the URI of a store"
        )
    elif not folder.storage.is_writable:
        raise ValueError(f"{without_secrets(path)}: expected a store, found a read-only view of one")
    return folder.absolute()
