"""The options of the sink: what a user asks for, parsed and checked before any row is looked at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kafkafmt.builder import DEFAULT_BATCH_SIZE, RecordBatchBuilder
from kafkafmt.log.appending import MAX_INT32
from kafkafmt.log.writer import DEFAULT_SEGMENT_BYTES
from kafkafmt.spark.locations import without_secrets
from kafkafmt.spark.values import Given, one_of, parse_number, parse_size
from kafkafmt.types import Codec, TopicPartition

UNITS = ("records", "batches")
OFFSETS = ("keep", "dense")
DEFAULT_BUFFER_BYTES = 64 * 1024 * 1024

# What says how batches are built, and so has no meaning for batches that are there already.
_OF_RECORDS = ("codec", "level", "magic", "batchSize")
_KNOWN = ("path", "unit", "offsets", "topic", "partition", "segmentBytes", "maxBufferBytes", *_OF_RECORDS)
# What Spark puts among the options of a stream.
OF_STREAMS = ("checkpointLocation", "queryName")
_CODECS = tuple(codec.name.lower() for codec in Codec)
_MAX_MAGIC = 2
_LEVEL = re.compile(r"[+-]?\d{1,3}")
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<root>//[^/]*)?(?P<path>/.*)?")


@dataclass(frozen=True)
class WriteOptions:
    """What is to be written, and how; see the README for each option.

    unit, offsets: None where the data decides. topic, partition: of all rows, whatever their columns say.
    of_records: the names of those options that were given and say how batches are built.
    """

    folder: Path
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
    of_records: tuple[str, ...] = ()

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
        """Raises ValueError, in one line, for an unknown option and for a value that cannot be."""
        given = Given(options, _KNOWN + OF_STREAMS if streaming else _KNOWN)
        magic = given.parse("magic", lambda value: parse_number(value, _MAX_MAGIC), _MAX_MAGIC)
        codec = given.parse("codec", lambda value: Codec[one_of(_CODECS)(value).upper()], Codec.NONE)
        level = given.parse("level", _parse_level, None)
        RecordBatchBuilder(magic, codec, level=level)  # raises ValueError for what does not go together
        parsed = cls(
            folder=_folder(given),
            unit=given.parse("unit", one_of(UNITS), None),
            offsets=given.parse("offsets", one_of(OFFSETS), None),
            topic=given.parse("topic", parse_topic, None),
            partition=given.parse("partition", lambda value: parse_number(value, MAX_INT32), None),
            codec=codec,
            level=level,
            magic=magic,
            batch_size=given.parse("batchSize", _parse_int32_size, DEFAULT_BATCH_SIZE),
            segment_bytes=given.parse("segmentBytes", _parse_int32_size, DEFAULT_SEGMENT_BYTES),
            max_buffer_bytes=given.parse("maxBufferBytes", parse_size, DEFAULT_BUFFER_BYTES),
            of_records=tuple(name for name in _OF_RECORDS if name in given),
        )
        if parsed.unit is not None:
            parsed.ensure_fits(parsed.unit)
        return parsed

    def ensure_fits(self, unit: str) -> None:
        """Raise ValueError for an option that has no meaning for rows of that unit."""
        if unit == "batches" and self.of_records:
            raise ValueError(
                f"option {self.of_records[0]}: batches are written as they are; expected it with unit=records"
            )


def is_topic(name: str) -> bool:
    """Is it a name that Kafka allows: 249 letters, digits, dots, dashes and underscores at the most, not . or ..?"""
    return name not in (".", "..") and TopicPartition.from_folder_name(f"{name}-0") is not None


def _folder(given: Given) -> Path:
    path = given.parse("path", str, "")
    if not path:
        raise ValueError(
            "no path: expected a log directory, as save(path) or start(path); of a table of the catalog Spark tells "
            "none: INSERT INTO takes a temporary view USING kafkafmt OPTIONS (path ...)"
        )
    match = _URI.fullmatch(path)
    if match is None or (match["scheme"].lower() != "file" and match["root"] is None):
        return Path(path).absolute()
    if match["scheme"].lower() != "file":
        raise ValueError(
            f"{without_secrets(path)}: expected a local or a mounted folder, since a commit renames files, which "
            "object stores cannot: write to such a folder, then copy it there"
        )
    if match["root"] not in (None, "//", "//localhost") or not match["path"]:
        raise ValueError(f"{path}: expected file:///path")
    return Path(match["path"])


def parse_topic(value: str) -> str:
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
        raise ValueError("expected 2^31 - 1 bytes at the most")
    return size
