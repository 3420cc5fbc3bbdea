"""Send records in new batches, to recompress or repartition them, or to call a handler with each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from _kafkafmt.batches.scan import BatchRun
from _kafkafmt.client.murmur2 import murmur2
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.deep import columns_of, contiguous_records
from kafkafmt.mirror.handlers import HandlerError, NewRecord, handled_record
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import PartitionError
from kafkafmt.mirror.statistics import Moved, Statistics
from kafkafmt.mirror.targets.sender import Sent
from kafkafmt.net import Producer, UndeliveredError
from kafkafmt.records.runs import chunk_ranges, first_offset, slice_run

if TYPE_CHECKING:
    from kafkafmt.client.accumulator import RecordsFuture
    from kafkafmt.types import TopicPartition

# Records of so many bytes of batches become objects together. Compressed batches may have many records.
_PART_BYTES = 64 * 1024
_COLUMNS = ("timestamp", "key", "value", "headers")


class RecordSender:
    """Sends records with a Producer. config: keyword arguments of the producer. statistics: get its splits.

    Without a handler and repartitioning, records stay columns and do not become objects. With repartitioning, records
    without a key go to the partition of the same number, modulo the target's number of partitions.
    """

    def __init__(self, config: dict[str, Any], statistics: Statistics, options: MirrorOptions) -> None:
        self._producer = Producer(**config)
        statistics.batch_metrics.append(self._producer.batch_metrics)
        self._handler = options.handler
        self._repartitions, self._names = options.repartitions, options.names
        self._max_decompressed_bytes = options.memory.max_decompressed_bytes
        self._partitions: dict[str, int] = {}

    @property
    def keeps_partitions(self) -> bool:
        return not self._repartitions

    def configure_topic(self, topic: str, config: TopicConfig) -> None:
        self._partitions[topic] = config.partitions or 1

    def send(self, topic_partition: TopicPartition, run: BatchRun) -> Iterator[Sent]:
        if self._handler is None and not self._repartitions:
            yield from self._send_columns(topic_partition, run)
            return
        position: int | None = None
        for part in _parts(run):
            yield from self._send_seen(topic_partition, part, position)
            position = int(part.index["last_offset"][-1]) + 1

    def _send_seen(
        self, topic_partition: TopicPartition, run: BatchRun, position: int | None
    ) -> Iterator[Sent]:
        """Send a part of a run. position: the end of the part before it."""
        try:
            sources, by_partition = self._seen(topic_partition, run)
        except HandlerError as error:
            error.resume_offset = first_offset(run)
            raise
        except KafkaFormatError as error:
            raise PartitionError(str(error), position) from None
        if not sources:
            return
        futures = [
            self._send(self._names.target(topic_partition.topic), partition, records)
            for partition, records in by_partition.items()
        ]
        yield Sent(
            min(first_offset(run), sources[0]),  # the header of a wrapper has no first offset
            int(run.index["last_offset"][-1]) + 1,
            futures,
            Moved(len(run), len(sources), int(run.index["size"].sum())),
            "deep",
            None if self._repartitions else np.array(sources),
            np.ones(len(sources), np.int64),
            int(run.index["max_timestamp"][-1]),
        )

    @property
    def producer(self) -> Producer:
        return self._producer

    def send_keyed(self, topic: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        for key, value in records:
            self._producer.send(topic, value, key=key, partition=0)

    def close(self, timeout: float) -> None:
        with suppress(UndeliveredError):  # the target knows which records are under way
            self._producer.close(timeout)

    def _send_columns(self, topic_partition: TopicPartition, run: BatchRun) -> Iterator[Sent]:
        topic, partition = self._names.target_partition(topic_partition)
        position: int | None = None
        begin, begun = 0, -1
        try:
            for records in contiguous_records(run, self._max_decompressed_bytes):
                first = 0
                for columns in records.numpy_batches((*_COLUMNS, "offset")):
                    timestamps, keys, values, headers = (cast("Any", columns[name]) for name in _COLUMNS)
                    offsets: Any = columns["offset"]
                    future = self._producer.send_columns(
                        topic, timestamps, keys, values, headers, partition=partition
                    )
                    number = int(run.index["last_offset"].searchsorted(offsets[0]))
                    stop = int(run.index["last_offset"].searchsorted(offsets[-1])) + 1
                    size = int(run.index["size"][max(first, number) : stop].sum())
                    batches = stop - max(first, number)
                    first = stop
                    position = int(offsets[-1]) + 1
                    if number != begun:  # the header of a wrapper has no first offset
                        begin, begun = min(first_offset(run, number), int(offsets[0])), number
                    yield Sent(
                        begin,
                        position,
                        [future],
                        Moved(batches, len(offsets), size),
                        "deep",
                        offsets.copy(),
                        np.ones(len(offsets), np.int64),
                        int(timestamps[-1]),
                    )
        except KafkaFormatError as error:
            raise PartitionError(str(error), position) from None

    def _seen(
        self, topic_partition: TopicPartition, run: BatchRun
    ) -> tuple[list[int], dict[int, list[NewRecord]]]:
        """Return the source's offset of each record to send, and the records by target partition."""
        sources: list[int] = []
        by_partition: defaultdict[int, list[NewRecord]] = defaultdict(list)
        for records in contiguous_records(run, self._max_decompressed_bytes):
            for record in records.records():
                made: NewRecord | None = NewRecord(record.key, record.value, record.headers, record.timestamp)
                if self._handler is not None:
                    made = handled_record(self._handler, topic_partition, record)
                if made is not None:
                    sources.append(record.offset)
                    by_partition[self._partition(topic_partition, made.key)].append(made)
        return sources, by_partition

    def _partition(self, topic_partition: TopicPartition, key: bytes | None) -> int:
        if not self._repartitions:
            return topic_partition.partition
        count = self._partitions[topic_partition.topic]
        return topic_partition.partition % count if key is None else (murmur2(key) & 0x7FFFFFFF) % count

    def _send(self, topic: str, partition: int, records: list[NewRecord]) -> RecordsFuture:
        return self._producer.send_columns(topic, *columns_of(records), partition=partition)


def _parts(run: BatchRun) -> Iterator[BatchRun]:
    """Yield a run in small parts, of at least one batch: as Python objects their records need much more memory."""
    for first, stop in chunk_ranges(run.index["size"], _PART_BYTES):
        yield slice_run(run, first, stop)
