"""Send batches as they are, except those that a broker would refuse (KIP-712)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from kafkafmt.build.forwarding import BatchForwarder
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.mirror.targets.cluster import Sent
from kafkafmt.net import RawProducer, UndeliveredError
from kafkafmt.records.runs import first_offset

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.build.forwarding import ForwardedRun
    from kafkafmt.types import TopicPartition


class BatchSender:
    """Sends batches with a RawProducer and a BatchForwarder for each topic.

    config: keyword arguments of the producer.
    max_decompressed_bytes: the most bytes that a batch may decompress to, if it must be opened.
    """

    def __init__(self, config: dict[str, Any], statistics: Statistics, max_decompressed_bytes: int) -> None:
        self._producer = RawProducer(**{**config, "max_batches_per_request": "auto"})
        self._statistics = statistics
        self._max_decompressed_bytes = max_decompressed_bytes
        self._forwarders: dict[str, BatchForwarder] = {}

    keeps_partitions = True

    def configure_topic(self, topic: str, config: TopicConfig) -> None:
        limit = config.configs.get("max.message.bytes")
        forwarder = BatchForwarder(
            max_message_bytes=None if limit is None else int(limit),
            is_log_append_time=config.configs.get("message.timestamp.type") == "LogAppendTime",
            clears_producer_state=False,
            verify=False,
            max_decompressed_bytes=self._max_decompressed_bytes,
        )
        self._forwarders[topic] = forwarder
        self._statistics.forwarding.append(forwarder.stats)

    def send(self, topic_partition: TopicPartition, run: BatchRun) -> Iterator[Sent]:
        topic, partition = topic_partition
        for forwarded in self._forwarders[topic].forward(run):
            sent, rows = forwarded.run, forwarded.run.index
            sources, counts = _source_ranges(forwarded)
            number = int(run.index["last_offset"].searchsorted(sources[0]))
            yield Sent(
                first_offset(run, number),
                int(sources[-1] + counts[-1]),
                [self._producer.send_run(topic, sent, partition=partition, verify=False)],
                len(sent),
                int(rows["size"].sum()),
                sources,
                counts,
            )

    def close(self, timeout: float) -> None:
        with suppress(UndeliveredError):  # the target knows which batches are under way
            self._producer.close(timeout)


def _source_ranges(forwarded: ForwardedRun) -> tuple[Any, Any]:
    """Return the source's offsets of the records: first offsets and counts of ranges."""
    rows = forwarded.run.index
    if len(rows) > 1:  # a run of several batches has only unchanged ones
        return rows["base_offset"].astype(np.int64), rows["count"].astype(np.int64)
    ranges = forwarded.source_ranges(0)
    return np.array([one.first_offset for one in ranges]), np.array([one.length for one in ranges])
