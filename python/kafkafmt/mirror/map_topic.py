"""Read and write the compacted topic of an offset map. It has one partition, for one order of its records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from time import monotonic
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition

from kafkafmt.client.kafka_python import kafka_python_config
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.refusals import IDEMPOTENT_WRITE, Right, naming_refusals
from kafkafmt.net import Producer
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.mirror.clusters import MirrorCluster
    from kafkafmt.types import Isolation

_POLL_MS = 1000
_SAVE_SECONDS = 15.0
# How long a reader waits for records: until a transaction in the topic has ended, or its partition has a leader.
_PATIENCE_SECONDS = 30.0


class MapTopic:
    """Reads a topic to its end, once and again, and writes to it. The first write creates it if it is missing.

    isolation: what `read_on` reads. With read_committed it waits until earlier transactions have ended.
    """

    def __init__(self, name: str, cluster: MirrorCluster, isolation: Isolation) -> None:
        self._name, self._cluster, self._isolation = name, cluster, isolation
        self._partition = KafkaTopicPartition(name, 0)
        self._producer: Producer | None = None
        self._consumer: KafkaConsumer | None = None
        self._was_missing = False

    def create(self) -> None:
        """Create the topic if it is missing. Raises MirrorError."""
        if not self._cluster.has_topic(self._name):  # one that exists needs no right to create it
            self._cluster.create_topic(self._name, TopicConfig(1, {"cleanup.policy": "compact"}))

    def read_on(self, patience: float = _PATIENCE_SECONDS) -> Iterator[Any]:
        """Yield the records that were written since the last call; the first call begins at the first record.

        Raises KafkaTimeoutError if nothing arrives for `patience` seconds before the end that the topic has now, and
        UnansweredError if a broker does not know the topic yet. The records that were yielded are not yielded again.
        """
        if self._consumer is None:
            if not self._exists():
                return
            self._consumer = self._open_consumer(self._isolation)
            self._consumer.seek_to_beginning(self._partition)
        with self._naming_refusals("reading the offset map", "Read"):
            yield from self._records(self._consumer, patience)

    def uncommitted(self) -> Iterator[Any]:
        """Yield the records after those of `read_on`, of transactions that are open or were aborted, too."""
        if self._consumer is None:
            return
        with closing(self._open_consumer("read_uncommitted")) as consumer:
            position = self._consumer.position(self._partition, timeout_ms=_POLL_MS)
            if position is None:
                consumer.seek_to_beginning(self._partition)
            else:
                consumer.seek(self._partition, position)
            with self._naming_refusals("reading the offset map", "Read"):
                yield from self._records(consumer, _PATIENCE_SECONDS)

    def write(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write records, keys and values, and wait until they are durable. Raises KafkaError, and MirrorError."""
        if self._producer is None:
            self.create()
            self._producer = Producer(**{**self._cluster.config_of(Producer), "acks": "all"})
        with self._naming_refusals("writing the offset map", "Write"):
            futures = [self._producer.send(self._name, value, key=key, partition=0) for key, value in records]
            for future in futures:
                future.get(_SAVE_SECONDS)

    def close(self) -> None:
        """Close the connections."""
        if self._consumer is not None:
            self._consumer.close()
        if self._producer is not None:
            self._producer.close(_SAVE_SECONDS)

    def _naming_refusals(self, tried: str, operation: str) -> AbstractContextManager[None]:
        rights = Right(operation, "topic", self._name), IDEMPOTENT_WRITE
        return naming_refusals(self._cluster.address, tried, *rights)

    def _exists(self) -> bool:
        """Return whether the topic exists. All brokers are asked only once: each partition reads the map."""
        if self._was_missing:
            return bool(self._cluster.partition_counts([self._name]))
        self._was_missing = not self._cluster.has_topic(self._name)
        return not self._was_missing

    def _open_consumer(self, isolation: Isolation) -> KafkaConsumer:
        config = {**self._cluster.config_of(KafkaConsumer), "group_id": None, "enable_auto_commit": False}
        consumer = KafkaConsumer(**kafka_python_config(config), isolation_level=isolation)
        consumer.assign([self._partition])
        return consumer

    def _records(self, consumer: KafkaConsumer, patience: float) -> Iterator[Any]:
        """Yield the records up to the end. Raises KafkaTimeoutError if nothing arrives for `patience` seconds."""
        end = self._cluster.end_offset(TopicPartition(self._name, 0))
        deadline = monotonic() + patience
        # The position is not known while the partition has no leader.
        while (position := consumer.position(self._partition, timeout_ms=_POLL_MS) or 0) < end:
            for records in consumer.poll(_POLL_MS).values():
                yield from records
                deadline = monotonic() + patience
            if monotonic() > deadline:
                raise kafka_errors.KafkaTimeoutError(
                    f"{self._name}: expected records from offset {position} up to offset {end}, and none has arrived "
                    f"for {patience:.0f} s: a transaction is still open, or the partition has no leader"
                )


def as_json(value: Mapping[str, Any]) -> bytes:
    """Return a key or a value of a record of the topic."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
