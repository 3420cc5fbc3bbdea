"""Send batches as they are, except those that a broker would refuse (KIP-712), and small ones, which are combined."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kafkafmt.build.builder import RecordBatchBuilder
from kafkafmt.build.combining import BatchCombiner, record_combiner
from kafkafmt.build.forwarding import BatchForwarder
from kafkafmt.client.limits import MAX_BATCHES_PER_REQUEST
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.statistics import Moved, Statistics
from kafkafmt.mirror.targets.sender import Sent
from kafkafmt.net import RawProducer, UndeliveredError
from kafkafmt.records.runs import first_offset

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.types import Isolation, TopicPartition

# So many records are one batch: of some hundred bytes each, they take less than any topic's limit.
_KEYED_RECORDS = 512


class BatchSender:
    """Sends batches with a RawProducer and a BatchForwarder for each topic.

    Small batches are combined if the options say so, and if the target takes one batch of a partition in a request.
    A target that takes many, such as `kafkafmt serve`, gets them as they are, because they cost no requests there.

    config: keyword arguments of the producer.
    """

    def __init__(self, config: dict[str, Any], statistics: Statistics, options: MirrorOptions) -> None:
        self._batch_size = int(config["batch_size"])
        self._producer = RawProducer(**{**config, "max_batches_per_request": "auto"})
        self._statistics = statistics
        statistics.batch_metrics.append(self._producer.batch_metrics)
        self._options, self._names = options, options.names
        self._max_decompressed_bytes = options.memory.max_decompressed_bytes
        self._kernel = record_combiner(self._max_decompressed_bytes) if options.is_adaptive else None
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
            combiner=self._combiner(config),
        )
        self._forwarders[topic] = forwarder
        self._statistics.forwarding.append(forwarder.stats)

    def _combiner(self, config: TopicConfig) -> BatchCombiner | None:
        takes_many = int(config.configs.get(MAX_BATCHES_PER_REQUEST, 1)) > 1
        if self._kernel is None or takes_many:
            return None
        isolation: Isolation = "read_committed" if self._options.is_committed else "read_uncommitted"
        return BatchCombiner(self._batch_size, isolation=isolation, kernel=self._kernel, reuses_memory=True)

    def send(self, topic_partition: TopicPartition, run: BatchRun) -> Iterator[Sent]:
        topic, partition = topic_partition
        target = self._names.target(topic)
        begin, begun = 0, -1
        for forwarded in self._forwarders[topic].forward(run):
            sources, counts = forwarded.source_arrays()
            number = int(run.index["last_offset"].searchsorted(sources[0]))
            if number != begun:  # the header of a wrapper has no first offset
                begin, begun = min(first_offset(run, number), int(sources[0])), number
            yield Sent(
                begin,
                int(sources[-1] + counts[-1]),
                [self._producer.send_run(target, forwarded.run, partition=partition, verify=False)],
                Moved(forwarded.source_batches, int(counts.sum()), forwarded.source_bytes),
                forwarded.way,
                sources,
                counts,
                int(forwarded.run.index["max_timestamp"][-1]),
            )

    @property
    def producer(self) -> RawProducer:
        return self._producer

    def send_keyed(self, topic: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        now_ms = time.time_ns() // 1_000_000
        for first in range(0, len(records), _KEYED_RECORDS):
            builder = RecordBatchBuilder()
            for key, value in records[first : first + _KEYED_RECORDS]:
                builder.append(now_ms, key, value)
            self._producer.send(topic, builder.build(), partition=0)

    def close(self, timeout: float) -> None:
        with suppress(UndeliveredError):  # the target knows which batches are under way
            self._producer.close(timeout)
