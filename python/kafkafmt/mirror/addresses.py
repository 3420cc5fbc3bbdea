"""Where batches are moved from and to: `kafka://host:port[,host:port]/topic[,topic|regex]`, or a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

# Where a mirror keeps its map of offsets at a target, unless it is told otherwise.
OFFSET_MAP_TOPIC = "kafkafmt-mirror-offsets"

_SCHEME = "kafka://"
_SERVER = re.compile(r"(?:\[[^\]\s]+\]|[^\s:\[\],/]+):(?P<port>\d{1,5})")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
# Commas between parts, not those of a repetition or a class of characters: `a{1,2}`, `[a,b]`.
_PART = re.compile(r"(?:\\.|\{[^}]*\}|\[(?:\\.|[^\]])*\]|[^,])+")


@dataclass(frozen=True)
class ClusterAddress:
    """A cluster and the topics meant: names, and regular expressions that match whole names.

    Without either all topics are meant but Kafka's own, whose names begin with two underscores, and offset maps.
    """

    servers: tuple[str, ...]
    topics: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{_SCHEME}{','.join(self.servers)}" + (f"/{self.topics_text}" if self.topics_text else "")

    @property
    def topics_text(self) -> str:
        """The topics as they were written, names first."""
        return ",".join((*self.topics, *self.patterns))

    @property
    def pattern(self) -> str | None:
        """A regular expression for all that is meant; None where names say it."""
        if self.topics and not self.patterns:
            return None
        if not self.patterns:
            return rf"^(?!__|{re.escape(OFFSET_MAP_TOPIC)}$).*$"
        return "^(?:" + "|".join((*map(re.escape, self.topics), *self.patterns)) + ")$"

    def means(self, topic: str) -> bool:
        """Is a topic of that name among those meant?"""
        pattern = self.pattern
        return topic in self.topics if pattern is None else re.fullmatch(pattern, topic) is not None


Address: TypeAlias = ClusterAddress | Path


def parse_address(text: str) -> Address:
    """What `text` stands for. Raises ValueError that says what is wrong with it.

    >>> parse_address("kafka://localhost:9092/orders,clicks-.*")
    ClusterAddress(servers=('localhost:9092',), topics=('orders',), patterns=('clicks-.*',))
    """
    if not text.startswith(_SCHEME):
        if not text or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+://", text):
            raise ValueError(
                f"{text!r} is neither a folder nor {_SCHEME}HOST:PORT[,HOST:PORT][/TOPIC[,TOPIC|REGEX]]"
            )
        return Path(text)
    servers, _, topics = text.removeprefix(_SCHEME).partition("/")
    for server in servers.split(","):
        match = _SERVER.fullmatch(server)
        if match is None or not 1 <= int(match["port"]) <= 65535:
            raise ValueError(f"{text!r}: expected HOST:PORT, found {server!r}")
    parts = _PART.findall(topics)
    if topics and ",".join(parts) != topics:
        raise ValueError(f"{text!r}: expected topics with commas between, found {topics!r}")
    names = tuple(part for part in parts if _TOPIC.fullmatch(part))
    patterns = tuple(part for part in parts if not _TOPIC.fullmatch(part))
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{text!r}: {pattern!r} is no regular expression: {error}") from None
    return ClusterAddress(tuple(servers.split(",")), names, patterns)
