"""Select the topics of a log directory that are read: one rule for all commands, jobs and data sources.

The names of Kafka's own topics, such as `__consumer_offsets`, `__transaction_state` and `__cluster_metadata`, begin
with two underscores. They are left out, and one line names them, unless the user selects them:

- by a name or a glob that matches them (`--topics '*'`, the option `topics`), or
- by the path of a partition's folder or of a segment.

`verify` checks the files of all topics, so that it misses no damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Protocol, TypeAlias

from kafkafmt.storage import StoragePath, storage_of
from kafkafmt.types import TopicPartition

# The log of a broker that is also a controller (KIP-595). It lies beside the partitions, but is not a topic of clients.
METADATA_TOPIC = "__cluster_metadata"
METADATA_LOG = TopicPartition(METADATA_TOPIC, 0)

# A name or a glob of topics, or several of them, as a list or with commas. None selects all topics but Kafka's own.
Topics: TypeAlias = "str | Sequence[str] | None"

_INTERNAL_PREFIX = "__"


class HasPartition(Protocol):
    """A segment, or a log."""

    @property
    def topic_partition(self) -> TopicPartition | None: ...


def is_internal_topic(topic: str) -> bool:
    """Whether a topic is one of Kafka's own.

    >>> [is_internal_topic(topic) for topic in ("__consumer_offsets", "_schemas", "orders")]
    [True, False, False]
    """
    return topic.startswith(_INTERNAL_PREFIX)


def topic_names(topics: str | Iterable[str]) -> tuple[str, ...]:
    """Return names and globs one by one. Commas separate them: no name of a topic has one.

    >>> topic_names("orders, page-*"), topic_names(["orders", "clicks,users"])
    (('orders', 'page-*'), ('orders', 'clicks', 'users'))
    """
    given = [topics] if isinstance(topics, str) else topics
    return tuple(one.strip() for names in given for one in names.split(","))


def topic_matches(topic: str, topics: str | Sequence[str]) -> bool:
    """Whether a topic has one of these names, or matches one of these globs.

    >>> [topic_matches(topic, ("orders", "page-*")) for topic in ("orders", "page-views", "clicks")]
    [True, True, False]
    """
    return any(fnmatchcase(topic, one) for one in topic_names(topics))


def is_chosen(where: TopicPartition | None, topics: Topics, *, is_named: bool) -> bool:
    """Whether a partition is read; `where` is None for a folder that is not named for a partition.

    topics: names and globs, of which the topic must match one. If None, all partitions are read except those of Kafka's
    own topics that no path names.
    is_named: a path or pattern names the partition.
    """
    topic = "" if where is None else where.topic
    if topics is None:
        return is_named or not is_internal_topic(topic)
    return topic_matches(topic, topics)


def selection_error(found: Iterable[TopicPartition | None], topics: Topics, *, is_empty: bool) -> str | None:
    """Return why a selection fails: a name or a glob matches no topic, or nothing is chosen. None if it does not fail.

    found: all partitions, chosen or not. is_empty: whether `is_chosen` chooses none of them.
    """
    if topics is None:
        return "no topic but Kafka's own" if is_empty else None
    names = {"" if one is None else one.topic for one in found}
    missing = next(
        (one for one in topic_names(topics) if not any(fnmatchcase(name, one) for name in names)), None
    )
    return None if missing is None else f"no topic matches {missing!r}"


def left_out_in_words(directory: StoragePath, remedy: str) -> str | None:
    """Return a line that names Kafka's own topics in a log directory, as `topics_left_out_in_words`.

    For the folder of a partition it returns None, as the user has selected that partition.
    """
    if TopicPartition.from_folder_name(directory.absolute().name) is not None:
        return None
    with storage_of(directory).entries(directory) as entries:
        found = [TopicPartition.from_folder_name(entry.name) for entry in entries]
    return _in_words({one.topic for one in found if one is not None}, remedy)


def topics_left_out_in_words(
    found: Iterable[HasPartition], chosen: Iterable[HasPartition], remedy: str
) -> str | None:
    """Return a line that names those of Kafka's own topics that were found and not chosen, and ends in `remedy`.

    Returns None if there are none.
    """
    topics, others = (
        {one.topic_partition.topic for one in some if one.topic_partition is not None}
        for some in (found, chosen)
    )
    return _in_words(topics - others, remedy)


def _in_words(topics: Iterable[str], remedy: str) -> str | None:
    names = sorted(filter(is_internal_topic, topics))
    return f"left out: {', '.join(names)}, Kafka's own; {remedy}" if names else None
