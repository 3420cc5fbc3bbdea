"""Keep provenances in the topic of an offset map, beside the ranges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition

from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.offset_stores import as_json, create_map_topic
from kafkafmt.mirror.provenance import (
    Provenance,
    ProvenanceKey,
    key_fields,
    parse_key,
    parse_value,
    value_fields,
)
from kafkafmt.net import Producer

if TYPE_CHECKING:
    from kafkafmt.mirror.clusters import MirrorCluster

_POLL_MS = 1000
_SAVE_SECONDS = 15.0


class TopicProvenanceStore:
    """Reads and writes the provenances in a topic. The first save creates the topic if it is missing.

    It passes over the ranges, and writes without a transaction: other mirrors must know a provenance before the first
    record is sent.
    """

    def __init__(self, topic: str, cluster: MirrorCluster) -> None:
        self._topic, self._cluster = topic, cluster
        self._partition = KafkaTopicPartition(topic, 0)
        self._producer: Producer | None = None
        self._consumer: KafkaConsumer | None = None
        self._known: dict[ProvenanceKey, Provenance] = {}

    def provenances(self) -> Mapping[ProvenanceKey, Provenance]:
        """Return the provenances of the cluster's topics. Raises KafkaError, and MirrorError for other records."""
        if self._consumer is None:
            if not self._cluster.describe_topics([self._topic]):
                return {}
            self._consumer = self._open_consumer()
        end = self._consumer.end_offsets([self._partition])[self._partition]
        while (self._consumer.position(self._partition, timeout_ms=_POLL_MS) or 0) < end:
            for records in self._consumer.poll(_POLL_MS).values():
                for record in records:
                    self._take(record.key, record.value)
        return self._known

    def save_provenances(self, changes: Mapping[ProvenanceKey, Provenance | None]) -> None:
        """Save or drop provenances. Raises KafkaError, and MirrorError if the topic cannot be created."""
        if self._producer is None:
            create_map_topic(self._cluster, self._topic)
            self._producer = Producer(**{**self._cluster.config_of(Producer), "acks": "all"})
        futures = [
            self._producer.send(
                self._topic,
                None if one is None else as_json(value_fields(one)),
                key=as_json(key_fields(key)),
                partition=0,
            )
            for key, one in changes.items()
        ]
        for future in futures:
            future.get(_SAVE_SECONDS)

    def close(self) -> None:
        """Close the connections."""
        if self._consumer is not None:
            self._consumer.close()
        if self._producer is not None:
            self._producer.close(_SAVE_SECONDS)

    def _open_consumer(self) -> KafkaConsumer:
        # Ranges may be part of open transactions. Provenances never are, so nothing is waited for.
        fixed = {"group_id": None, "enable_auto_commit": False, "isolation_level": "read_uncommitted"}
        consumer = KafkaConsumer(**{**self._cluster.config_of(KafkaConsumer), **fixed})
        consumer.assign([self._partition])
        consumer.seek_to_beginning(self._partition)
        return consumer

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        try:
            named = parse_key(json.loads(key or b""))
            if named is None:
                return
            if value is None:
                self._known.pop(named, None)
            else:
                self._known[named] = parse_value(value)
        except (ValueError, KeyError, TypeError):
            message = f"{self._topic}: expected entries of an offset map, found a record of another kind"
            raise MirrorError(message) from None
