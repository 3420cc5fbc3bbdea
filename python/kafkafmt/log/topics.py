"""Which topics of a log directory are read: one rule for all commands, jobs and data sources.

Kafka's own topics, as `__consumer_offsets`, `__transaction_state` and `__cluster_metadata`, have names that begin with
two underscores. They are left out, unless they are asked for:

- by a pattern or a name that matches them (`--topics '*'`, the option `topics`), or
- by the path of a partition's folder or of a segment.

Checks of files (`verify`) look at every file, so that no damage is missed.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable
from pathlib import Path

from kafkafmt.types import TopicPartition

_INTERNAL_PREFIX = "__"


def is_internal_topic(topic: str) -> bool:
    """Whether a topic is one of Kafka's own.

    >>> [is_internal_topic(topic) for topic in ("__consumer_offsets", "_schemas", "orders")]
    [True, False, False]
    """
    return topic.startswith(_INTERNAL_PREFIX)


def topic_filter(pattern: str | None) -> Callable[[str], bool]:
    """Return what tells whether a topic is to be read: by a shell pattern, or without one all but Kafka's own."""
    if pattern is None:
        return lambda topic: not is_internal_topic(topic)
    return lambda topic: fnmatch.fnmatchcase(topic, pattern)


def left_out_in_words(directory: Path, remedy: str) -> str | None:
    """Which of Kafka's own topics in a log directory are left out, in one line that ends in `remedy`; None if none are.

    The folder of a partition names that partition, so that nothing is left out of it.
    """
    if TopicPartition.from_folder_name(directory.absolute().name) is not None:
        return None
    with os.scandir(directory) as entries:
        found = [TopicPartition.from_folder_name(entry.name) for entry in entries]
    names = sorted({one.topic for one in found if one is not None and is_internal_topic(one.topic)})
    return f"left out: {', '.join(names)}, Kafka's own; {remedy}" if names else None
