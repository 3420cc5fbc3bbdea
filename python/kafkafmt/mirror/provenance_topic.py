"""Keep provenances in the topic of an offset map, beside the ranges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.map_topic import MapTopic, as_json
from kafkafmt.mirror.provenance import (
    Provenance,
    ProvenanceKey,
    key_fields,
    parse_key,
    parse_value,
    value_fields,
)

if TYPE_CHECKING:
    from kafkafmt.mirror.clusters import MirrorCluster


class TopicProvenanceStore:
    """Reads and writes the provenances in a topic. The first save creates the topic if it is missing.

    It passes over the ranges, and writes without a transaction: other mirrors must know a provenance before the first
    record is sent.
    """

    def __init__(self, topic: str, cluster: MirrorCluster) -> None:
        self._topic = topic
        # Ranges may be part of open transactions. Provenances never are, so nothing is waited for.
        self._map_topic = MapTopic(topic, cluster, "read_uncommitted")
        self._known: dict[ProvenanceKey, Provenance] = {}

    def provenances(self) -> Mapping[ProvenanceKey, Provenance]:
        """Return the provenances of the cluster's topics. Raises KafkaError, and MirrorError for other records."""
        for record in self._map_topic.read_on():
            self._take(record.key, record.value)
        return self._known

    def save_provenances(self, changes: Mapping[ProvenanceKey, Provenance | None]) -> None:
        """Save or drop provenances. Raises KafkaError, and MirrorError if the topic cannot be created."""
        self._map_topic.write(
            [
                (as_json(key_fields(key)), None if one is None else as_json(value_fields(one)))
                for key, one in changes.items()
            ]
        )

    def close(self) -> None:
        """Close the connections."""
        self._map_topic.close()

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
