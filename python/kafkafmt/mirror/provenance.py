"""Where the records of topics came from: entries of offset maps from which mirrors know that they would close a loop.

Raw batches cannot carry their origin in a header of each record, so mirrors keep it in the offset map. An entry says
that a mirror copies one topic into another. It also has the topics from which that topic was copied itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

# Maps of earlier versions have the name of a source under this key. They read no entry with an empty one.
_NO_SOURCE = {"source": ""}


class Origin(NamedTuple):
    """A topic from which records were copied: the id of its cluster, its name, and its id, if the cluster keeps ids."""

    cluster: str
    topic: str
    topic_id: str | None


class ProvenanceKey(NamedTuple):
    """A topic of a cluster, and the topic of another cluster that is copied into it."""

    cluster: str
    topic: str
    source: str
    source_topic: str


class Provenance(NamedTuple):
    """What is known of one source of a topic.

    topic_id: of the source's topic. origins: the topics from which that topic was copied, directly or through others.
    """

    topic_id: str | None = None
    origins: tuple[Origin, ...] = ()


class ProvenanceStore(Protocol):
    """Keeps provenances beside an offset map."""

    def provenances(self) -> Mapping[ProvenanceKey, Provenance]:
        """Return all provenances, those that other mirrors have saved included."""

    def save_provenances(self, changes: Mapping[ProvenanceKey, Provenance | None]) -> None:
        """Save provenances, or drop those that are None. The changes are durable when this returns."""


def all_origins(known: Mapping[ProvenanceKey, Provenance], cluster: str, topic: str) -> list[Origin]:
    """Return the topics from which a topic of a cluster was copied, directly or through others."""
    found = {
        origin
        for key, provenance in known.items()
        if (key.cluster, key.topic) == (cluster, topic)
        for origin in (Origin(key.source, key.source_topic, provenance.topic_id), *provenance.origins)
    }
    return sorted(found, key=lambda one: (one.cluster, one.topic, one.topic_id or ""))


def key_fields(key: ProvenanceKey) -> dict[str, str]:
    """Return the fields of a record's key in the topic of an offset map."""
    return {
        **_NO_SOURCE,
        "cluster": key.cluster,
        "topic": key.topic,
        "from": key.source,
        "from_topic": key.source_topic,
    }


def parse_key(fields: Mapping[str, Any]) -> ProvenanceKey | None:
    """Return the key of a provenance; None for the key of a range. Raises KeyError if a field is missing."""
    if fields["source"] != _NO_SOURCE["source"]:
        return None
    return ProvenanceKey(fields["cluster"], fields["topic"], fields["from"], fields["from_topic"])


def value_fields(provenance: Provenance) -> dict[str, Any]:
    """Return the fields of a value."""
    return {"topic_id": provenance.topic_id, "origins": [list(one) for one in provenance.origins]}


def parse_value(value: bytes | str) -> Provenance:
    """Parse a value. Raises ValueError, KeyError or TypeError if it is not one."""
    fields = json.loads(value)
    return Provenance(fields["topic_id"], tuple(Origin(*one) for one in fields["origins"]))
