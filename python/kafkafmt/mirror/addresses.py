"""Addresses of sources and targets: `kafka://host:port[,host:port]/topic[,topic|regex]`, a folder, or its URI."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import translate
from pathlib import Path
from typing import TypeAlias

from kafkafmt.storage import StoragePath, is_uri, storage_path

# The default topic at the target for a mirror's offset map.
OFFSET_MAP_TOPIC = "kafkafmt-mirror-offsets"

_SCHEME = "kafka://"
_SERVER = re.compile(r"(?:\[[^\]\s]+\]|[^\s:\[\],/]+):(?P<port>\d{1,5})")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
# A comma separates parts, except within a repetition or a class of characters: `a{1,2}`, `[a,b]`.
_PART = re.compile(r"(?:\\.|\{[^}]*\}|\[(?:\\.|[^\]])*\]|[^,])+")
# `\1` and `(?(1)...)`, which count the groups of the whole expression.
_NUMBERED_GROUP = re.compile(r"(?<!\\)(?:\\\\)*(?:\\[1-9]|\(\?\(\d)")
_ALL_TOPICS = rf"^(?!__|{re.escape(OFFSET_MAP_TOPIC)}$).*$"
# Brokers list only topics that the user may describe.
_HIDDEN = ", or this user lacks the right Describe on it"


@dataclass(frozen=True)
class ClusterAddress:
    """A cluster and its selected topics: names, regular expressions that match whole names, and globs.

    Without any, all topics are selected except Kafka's own, whose names begin with two underscores, and the default
    topic for offset maps.
    """

    servers: tuple[str, ...]
    topics: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{_SCHEME}{','.join(self.servers)}" + (f"/{self.topics_text}" if self.selects_topics else "")

    def with_topics(self, topics: Iterable[str]) -> ClusterAddress:
        """Return the address with topics by names and globs. Raises ValueError if it has topics already.

        >>> parse_address("kafka://localhost:9092").with_topics(["orders", "page-*"]).matches("page-views")
        True
        """
        if self.selects_topics:
            raise ValueError(
                f"expected no topics in the address of the cluster, too, found {self.topics_text}"
            )
        given = tuple(topics)
        names = tuple(one for one in given if _TOPIC.fullmatch(one))
        return replace(self, topics=names, globs=tuple(one for one in given if one not in names))

    @property
    def selects_topics(self) -> bool:
        """Whether topics were named."""
        return bool(self.topics_text)

    @property
    def topics_text(self) -> str:
        """Names, globs and regular expressions as they were given, with commas between them."""
        return ",".join((*self.topics, *self.globs, *self.patterns))

    @property
    def expressions(self) -> tuple[str, ...]:
        """The regular expressions, also those of globs."""
        return (*map(translate, self.globs), *self.patterns)

    @property
    def pattern(self) -> str | None:
        """One regular expression that matches the selected topics, for a subscription; None if only names are given."""
        expressions = self.expressions
        if self.topics and not expressions:
            return None
        if not expressions:
            return _ALL_TOPICS
        return "^(?:" + "|".join((*map(re.escape, self.topics), *expressions)) + ")$"

    def matches(self, topic: str) -> bool:
        """Return whether a topic of that name is selected."""
        if self.selects_topics:
            return topic in self.topics or any(re.fullmatch(one, topic) for one in self.expressions)
        return re.fullmatch(_ALL_TOPICS, topic) is not None

    def missing(self, found: Iterable[str]) -> str | None:
        """Return what is missing: names without a topic, or a glob or regular expression that matches none; or None.

        found: the names of all topics.

        >>> parse_address("kafka://localhost:9092").with_topics(["orders", "page-*"]).missing(["orders"])
        "no topic matches 'page-*', or this user lacks the right Describe on it"
        """
        there = {*found}
        names = sorted({*self.topics} - there)
        if names:
            return f"no topic {', '.join(names)}{_HIDDEN}"
        if not self.selects_topics and not any(map(self.matches, there)):
            return f"no topic but Kafka's own{_HIDDEN}"
        given = zip((*self.globs, *self.patterns), self.expressions, strict=True)
        for one, expression in given:
            if not any(re.fullmatch(expression, topic) for topic in there):
                return f"no topic matches {one!r}{_HIDDEN}"
        return None


Address: TypeAlias = ClusterAddress | StoragePath


def parse_address(text: str) -> Address:
    """Parse the address of a cluster, or the path or URI of a folder.

    Raises ValueError, which says what is wrong with the text. Raises OSError if the file system of a URI cannot be
    opened, and ImportError without PyArrow.

    >>> parse_address("kafka://localhost:9092/orders,clicks-.*")
    ClusterAddress(servers=('localhost:9092',), topics=('orders',), patterns=('clicks-.*',), globs=())
    """
    if not text.startswith(_SCHEME):
        if not text:
            raise ValueError(
                f"{text!r} is neither a folder nor {_SCHEME}HOST:PORT[,HOST:PORT][/TOPIC[,TOPIC|REGEX]]"
            )
        if not is_uri(text):
            return Path(text)
        try:
            return storage_path(text)
        except ValueError as error:
            raise ValueError(
                f"{error}; a cluster is {_SCHEME}HOST:PORT[,HOST:PORT][/TOPIC[,TOPIC|REGEX]]"
            ) from None
    if "@" in text:  # the text has a password, so it is not shown
        raise ValueError(
            f"expected {_SCHEME}HOST:PORT[,HOST:PORT][/TOPIC[,TOPIC|REGEX]] without a user: a file of settings has "
            "names and passwords (see --help)"
        )
    servers, _, topics = text.removeprefix(_SCHEME).partition("/")
    for server in servers.split(","):
        match = _SERVER.fullmatch(server)
        if match is None or not 1 <= int(match["port"]) <= 65535:
            raise ValueError(f"{text!r}: expected HOST:PORT, found {server!r}")
    try:
        parts = split_names(topics)
        names = tuple(part for part in parts if _TOPIC.fullmatch(part))
        patterns = tuple(part for part in parts if not _TOPIC.fullmatch(part))
        _ensure_joinable(patterns)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    return ClusterAddress(tuple(servers.split(",")), names, patterns)


def split_names(text: str) -> list[str]:
    """Split names and regular expressions at commas. Raises ValueError if that is not what the text has.

    >>> split_names("orders,clicks-[a,b]{1,2}")
    ['orders', 'clicks-[a,b]{1,2}']
    """
    parts = _PART.findall(text)
    if ",".join(parts) != text:
        raise ValueError(f"expected names separated by commas, found {text!r}")
    for part in parts:
        try:
            re.compile(part)
        except re.error as error:
            raise ValueError(f"{part!r} is no regular expression: {error}") from None
    return parts


def _ensure_joinable(patterns: Iterable[str]) -> None:
    """Raise ValueError if regular expressions have another meaning when they are joined for a subscription."""
    groups = 0
    for pattern in patterns:
        if groups and _NUMBERED_GROUP.search(pattern):
            raise ValueError(
                f"{pattern!r} refers to a group by its number after an expression with groups: "
                "expected a group with a name, (?P<name>...) and (?P=name)"
            )
        groups += re.compile(pattern).groups
    try:
        re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    except re.error as error:
        raise ValueError(
            f"expected flags within a group, as (?i:...), and names of groups that differ, found: {error}"
        ) from None
