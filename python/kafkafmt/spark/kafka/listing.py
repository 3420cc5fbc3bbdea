"""List the offsets of the logs that a stream reads.

A broker that has not got the newest metadata does not know a new partition. So a missing partition may exist.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kafkafmt.scanning.brokers.cluster import SourceBrokers
    from kafkafmt.spark.kafka.subscription import Subscription
    from kafkafmt.spark.stream_offsets import Offsets


class Attempts(NamedTuple):
    """How often to list the offsets before a missing partition counts as deleted, and the pause in seconds."""

    times: int = 3
    interval_seconds: float = 1.0


class LogOffsets(NamedTuple):
    """The first offset and the end of each log."""

    first: Offsets
    ends: Offsets


def list_logs(
    cluster: SourceBrokers, subscription: Subscription, known: Offsets, attempts: Attempts
) -> LogOffsets:
    """Return the offsets of the selected partitions. Raises BrokerError.

    If a known partition is missing, or its end is below the known offset, it lists them again.
    """
    for attempt in range(attempts.times):
        if attempt:
            time.sleep(attempts.interval_seconds)
        partitions = subscription.find(cluster)
        found = LogOffsets(cluster.beginnings(partitions), cluster.ends(partitions))
        if all(found.ends.get(one, -1) >= offset for one, offset in known.items()):
            break
    return found
