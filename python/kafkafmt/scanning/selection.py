"""The topics and the range of offsets of a read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kafkafmt.types import TopicPartition

# The values in Kafka's ListOffsets and in Spark's JSON.
LATEST, EARLIEST = -1, -2

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Bound:
    """The start or the end of a read in each partition. Without fields, it is the start or the end of the log.

    offsets: the offset of each partition. None means the start of the log for a start, its end for an end. A start may
    also be LATEST, the end of the log.
    is_latest: whether all partitions start at the end of their logs.
    timestamp: in milliseconds. The bound is the offset of the first record at or after it.
    """

    offsets: Mapping[TopicPartition, int | None] | None = None
    timestamp: int | None = None
    is_latest: bool = False


@dataclass(frozen=True)
class TopicSelection:
    """The topics with one of `names`, or that match one of `globs`, or `pattern`. Without fields, all topics.

    is_anywhere: the pattern may match a part of a name. Otherwise it matches all of it.
    """

    names: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    pattern: str | None = None
    is_anywhere: bool = False

    def __contains__(self, topic: str) -> bool:
        if self.pattern is not None:
            match = re.search if self.is_anywhere else re.fullmatch
            return match(self.pattern, topic) is not None
        if self.is_everything or topic in self.names:
            return True
        return any(fnmatchcase(topic, glob) for glob in self.globs)

    @property
    def is_everything(self) -> bool:
        """Whether all topics are selected."""
        return not (self.names or self.globs) and self.pattern is None

    def unmatched(self, topics: Iterable[str]) -> str | None:
        """Return the first name, glob or pattern that matches none of `topics`; None if each matches one."""
        topics = list(topics)
        parts = [TopicSelection(names=(name,)) for name in self.names]
        parts += [TopicSelection(globs=(glob,)) for glob in self.globs]
        parts += [self] if self.pattern is not None else []
        missing = [part for part in parts if not any(topic in part for topic in topics)]
        return next((part.pattern or (part.names + part.globs)[0] for part in missing), None)


def topic_selection(topics: Iterable[str]) -> TopicSelection:
    """Return the selection of topics by names and by globs, which have `*`, `?` or `[`."""
    given = list(topics)
    globs = [name for name in given if _GLOB.search(name)]
    return TopicSelection(names=tuple(name for name in given if name not in globs), globs=tuple(globs))


def ensure_all_named(name: str, bound: Bound, partitions: Mapping[str, TopicPartition | None]) -> None:
    """Raise ValueError unless `bound` has offsets for all partitions and no others, as in Spark's Kafka source.

    name: of the option, for messages. partitions: the partitions that are read, by their names in messages.
    """
    if bound.offsets is None:
        return
    missing = [one for one, partition in partitions.items() if partition not in bound.offsets]
    if missing:
        raise ValueError(
            f"{name}: expected an offset for every partition, found none for {', '.join(missing)}"
        )
    unknown = set(bound.offsets) - set(partitions.values())
    if unknown:
        raise ValueError(f"{name}: {', '.join(map(str, sorted(unknown)))}: no such partition here")
