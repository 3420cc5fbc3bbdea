"""List the offsets of logs that are read again and again.

A broker that has not got the newest metadata does not know a new partition. So a missing partition may exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kafkafmt.scanning.brokers.cluster import SourceBrokers
    from kafkafmt.scanning.data_loss import Offsets
    from kafkafmt.types import TopicPartition


class Attempts(NamedTuple):
    """How often to list the offsets before a missing partition counts as deleted, and the pause in seconds."""

    times: int = 3
    interval_seconds: float = 1.0


class LogOffsets(NamedTuple):
    """The first offset and the end of each log."""

    first: Offsets
    ends: Offsets


def list_logs(
    cluster: SourceBrokers,
    find: Callable[[SourceBrokers], Collection[TopicPartition]],
    known: Offsets,
    attempts: Attempts,
) -> LogOffsets:
    """Return the offsets of the partitions that `find` returns. Raises BrokerError.

    If a known partition is missing, or its end is below the known offset, it lists them again.
    """
    for attempt in range(attempts.times):
        if attempt:
            time.sleep(attempts.interval_seconds)
        partitions = find(cluster)
        found = LogOffsets(cluster.beginnings(partitions), cluster.ends(partitions))
        if all(found.ends.get(one, -1) >= offset for one, offset in known.items()):
            break
    return found
