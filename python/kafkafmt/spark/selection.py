"""Which topics a read is of, and from which offsets to which: what both sources are asked for in the same words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kafkafmt.spark.values import MAX_LONG, Given, parse_names, parse_number, parse_pattern
from kafkafmt.types import TopicPartition

# As Kafka's ListOffsets and Spark's JSON have them.
LATEST, EARLIEST = -1, -2


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


def ensure_all_named(name: str, bound: Bound, partitions: Mapping[str, TopicPartition | None]) -> None:
    """As Spark's Kafka source has it: offsets are given for all partitions that are read, and for no other.

    partitions: those that are read, by how they are told.
    """
    if bound.offsets is None:
        return
    missing = [told for told, partition in partitions.items() if partition not in bound.offsets]
    if missing:
        raise ValueError(
            f"{name}: expected an offset for every partition, found none for {', '.join(missing)}"
        )
    unknown = set(bound.offsets) - set(partitions.values())
    if unknown:
        raise ValueError(f"{name}: {', '.join(map(str, sorted(unknown)))}: no such partition here")


def parse_topic_selection(given: Given) -> TopicSelection:
    """What topics, subscribe and subscribePattern say."""
    given.ensure_one_of("topics", "subscribe", "subscribePattern")
    none: tuple[str, ...] = ()
    return TopicSelection(
        names=given.parse("subscribe", parse_names, none),
        globs=given.parse("topics", parse_names, none),
        pattern=given.parse("subscribePattern", parse_pattern, None),
    )


def parse_starting(given: Given, *, can_be_latest: bool) -> Bound:
    """What startingOffsets and startingTimestamp say; latest, of all or of some, where a read may begin there."""
    if can_be_latest and given.parse("startingOffsets", str.lower, "") == "latest":
        given.ensure_one_of("startingOffsets", "startingTimestamp")
        return Bound(is_latest=True)
    other = LATEST if can_be_latest else None
    return parse_bound(given, "starting", own="earliest", own_number=EARLIEST, other_number=other)


def parse_bound(
    given: Given, prefix: str, *, own: str, own_number: int, other_number: int | None = None
) -> Bound:
    """own: what stands for the log's own end on this side, which is the default; other: for its other end."""
    given.ensure_one_of(f"{prefix}Offsets", f"{prefix}Timestamp")

    def offsets(value: str) -> Mapping[TopicPartition, int | None] | None:
        return None if value.lower() == own else _parse_offsets(value, own, own_number, other_number)

    return Bound(
        given.parse(f"{prefix}Offsets", offsets, None),
        given.parse(f"{prefix}Timestamp", lambda value: parse_number(value, MAX_LONG), None),
    )


def _parse_offsets(
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
                0 <= offset <= MAX_LONG or offset in (own_number, other_number)
            )
            if not partition.isdecimal() or not is_offset:
                raise ValueError(expected)
            found[TopicPartition(topic, int(partition))] = None if offset == own_number else offset
    return found
