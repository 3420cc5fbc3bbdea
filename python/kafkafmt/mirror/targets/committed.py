"""Count the records that a `read_committed` reader sees from an offset of the target on."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors
import numpy as np
from kafka import TopicPartition as KafkaTopicPartition

from kafkafmt.client.raw_consumer import RawConsumer

if TYPE_CHECKING:
    from kafkafmt.mirror.clusters import MirrorCluster
    from kafkafmt.types import TopicPartition

_POLL_MS = 500
_SECONDS = 30.0


def committed_records(cluster: MirrorCluster, topic_partition: TopicPartition, first: int) -> int:
    """Return how many committed records a partition has from offset `first` on, without opening batches.

    Raises KafkaTimeoutError if the partition cannot be read to the end of its committed records.
    """
    end = cluster.bounds([topic_partition], is_committed=True)[topic_partition][1]
    asked = KafkaTopicPartition(*topic_partition)
    config = {
        **cluster.config_of(RawConsumer),
        "group_id": None,
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        "trim_first_batch": False,
        "metrics_enabled": False,
    }
    count, deadline = 0, time.monotonic() + _SECONDS
    with closing(RawConsumer(**config)) as consumer:
        consumer.assign([asked])
        consumer.seek(asked, first)
        while (consumer.position(asked) or 0) < end:
            for runs in consumer.poll_runs(_POLL_MS).values():
                for run in runs:
                    rows = run.index
                    count += int(np.minimum(rows["count"], rows["last_offset"] - first + 1).sum())
                    deadline = time.monotonic() + _SECONDS
            if time.monotonic() > deadline:
                raise kafka_errors.KafkaTimeoutError(f"{topic_partition}: not read to offset {end}")
    return count
