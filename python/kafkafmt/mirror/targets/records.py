"""Records sent in batches that are made anew: to recompress or to repartition, or where a handler sees each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from _kafkafmt.murmur2 import murmur2
from _kafkafmt.scan import BatchRun
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.reading import first_offset
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.deep import columns_of, stretch_records
from kafkafmt.mirror.handlers import HandlerError, NewRecord, handled_record
from kafkafmt.mirror.moving import PartitionError
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.targets.cluster import Sent
from kafkafmt.net import Producer, UndeliveredError

if TYPE_CHECKING:
    from kafkafmt.accumulator import RecordsFuture
    from kafkafmt.types import TopicPartition

# Of batches whose records are made objects together; they may be compressed to a small part of those.
_PART_BYTES = 64 * 1024
_COLUMNS = ("timestamp", "key", "value", "headers")


class RecordSender:
    """A producer of records. config: of the producer.

    Without a handler, and to the same partition, records are columns all the way. Those without a key stay in their
    partition, or go to that of its number modulo the target's count.
    """

    def __init__(self, config: dict[str, Any], options: MirrorOptions) -> None:
        self._producer = Producer(**config)
        self._handler = options.handler
        self._repartitions = options.repartitions
        self._max_decompressed_bytes = options.memory.max_decompressed_bytes
        self._partitions: dict[str, int] = {}

    @property
    def keeps_partitions(self) -> bool:
        return not self._repartitions

    def learn(self, topic: str, config: TopicConfig) -> None:
        self._partitions[topic] = config.partitions or 1

    def send(self, topic_partition: TopicPartition, run: BatchRun) -> Iterator[Sent]:
        if self._handler is None and not self._repartitions:
            yield from self._send_columns(topic_partition, run)
            return
        for part in _parts(run):
            yield from self._send_seen(topic_partition, part)

    def _send_seen(self, topic_partition: TopicPartition, run: BatchRun) -> Iterator[Sent]:
        try:
            sources, by_partition = self._seen(topic_partition, run)
        except HandlerError as error:
            error.resume_offset = first_offset(run)
            raise
        except KafkaFormatError as error:
            raise PartitionError(str(error), first_offset(run)) from None
        if not sources:
            return
        futures = [
            self._send(topic_partition.topic, partition, records)
            for partition, records in by_partition.items()
        ]
        yield Sent(
            first_offset(run),
            int(run.index["last_offset"][-1]) + 1,
            futures,
            len(run),
            int(run.index["size"].sum()),
            None if self._repartitions else np.array(sources),
            np.ones(len(sources), np.int64),
        )

    def close(self, timeout: float) -> None:
        with suppress(UndeliveredError):  # the target knows what is under way
            self._producer.close(timeout)

    def _send_columns(self, topic_partition: TopicPartition, run: BatchRun) -> Iterator[Sent]:
        topic, partition = topic_partition
        position = first_offset(run)
        try:
            for records in stretch_records(run, self._max_decompressed_bytes):
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
                    yield Sent(
                        first_offset(run, number),
                        position,
                        [future],
                        batches,
                        size,
                        offsets.copy(),
                        np.ones(len(offsets), np.int64),
                    )
        except KafkaFormatError as error:
            raise PartitionError(str(error), position) from None

    def _seen(
        self, topic_partition: TopicPartition, run: BatchRun
    ) -> tuple[list[int], dict[int, list[NewRecord]]]:
        """The source's offset of each record that goes on, and the records by the partition they go to."""
        sources: list[int] = []
        by_partition: defaultdict[int, list[NewRecord]] = defaultdict(list)
        for records in stretch_records(run, self._max_decompressed_bytes):
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
    """A run in parts of a few bytes, or of one batch: their records become Python objects, which take many more."""
    ends = run.index["size"].cumsum(dtype="i8")
    first, done = 0, 0
    while first < len(run):
        stop = max(int(ends.searchsorted(done + _PART_BYTES, "right")), first + 1)
        yield BatchRun(run.buffer, run.index[first:stop], run.origin)
        first, done = stop, int(ends[stop - 1])
