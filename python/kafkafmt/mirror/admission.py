"""Decide which topics a mirror takes: none that would close a loop, and no two for one topic of the target.

A mirror notes in the offset map at its target which topics it copies, before it sends the first record. It then looks
for the source's topics in the offset map at the source. If that says that a topic came from the target's cluster,
directly or through others, the mirror does not take it. So of two mirrors in opposite directions the later one is
refused. Of two that start at the same moment both may be. A loop over several clusters can be closed while its mirrors
run. So each mirror looks again at an interval, and passes on what it has found.

An origin counts as long as the topic of that id exists. A topic that was deleted at its origin may be mirrored back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import kafka.errors as kafka_errors
import structlog

from kafkafmt.mirror.provenance import Origin, Provenance, ProvenanceKey, ProvenanceStore, all_origins

if TYPE_CHECKING:
    from uuid import UUID

    from kafkafmt.mirror.clusters import MirrorCluster
    from kafkafmt.mirror.topic_names import TopicNames


_log = structlog.get_logger()


class Refusal(NamedTuple):
    """Why a topic is not mirrored.

    is_left_out: the user has not named the topic, so that this is no failure.
    """

    message: str
    is_left_out: bool = False


class LoopCheck:
    """Finds topics of a cluster whose records came from the target, and notes in the offset map what is mirrored.

    upstream: stores that have provenances of the source's topics. store: keeps those of the target's.
    """

    def __init__(
        self,
        source: MirrorCluster,
        target: MirrorCluster,
        names: TopicNames,
        *,
        upstream: Sequence[ProvenanceStore],
        store: ProvenanceStore,
    ) -> None:
        self._source, self._target, self._names = source, target, names
        self._upstream, self._store = upstream, store
        self._claimed: set[str] = set()
        self._is_blind = False

    def claim(self, topics: Collection[str]) -> dict[str, str]:
        """Note that topics are mirrored. Return why some are not, by topic. Raises KafkaError and MirrorError."""
        looping = self._looping(topics)
        new = self._note([topic for topic in topics if topic not in looping])
        late = self._looping(new)  # the opposite mirror may have begun meanwhile
        self._withdraw(late)
        self._claimed.update(topic for topic in topics if topic not in looping and topic not in late)
        return {**looping, **late}

    def refresh(self) -> dict[str, str]:
        """Pass on provenances that are new at the source. Return why topics are not mirrored further, by topic."""
        self._note(self._claimed)
        looping = self._looping(self._claimed)
        self._withdraw(looping)  # if it fails, the topics are found again
        self._claimed.difference_update(looping)
        return looping

    def _note(self, topics: Collection[str]) -> list[str]:
        """Save the provenances that are not saved yet. Return their topics."""
        known, found = self._known(), self._store.provenances()
        ids = self._source.topic_ids(topics)
        changes = {}
        for topic in topics:
            origins = tuple(all_origins(known, self._source.id, topic))
            provenance = Provenance(_text(ids.get(topic)), origins)
            if found.get(key := self._key(topic)) != provenance:
                changes[key] = provenance
        if changes:
            self._store.save_provenances(changes)
        return [key.source_topic for key in changes]

    def _withdraw(self, topics: Iterable[str]) -> None:
        changes = dict.fromkeys(map(self._key, topics))
        if changes:
            self._store.save_provenances(changes)

    def _key(self, topic: str) -> ProvenanceKey:
        return ProvenanceKey(self._target.id, self._names.target(topic), self._source.id, topic)

    def _known(self) -> dict[ProvenanceKey, Provenance]:
        known: dict[ProvenanceKey, Provenance] = {}
        for store in self._upstream:
            try:
                known |= store.provenances()
            except kafka_errors.AuthorizationError as error:
                if not self._is_blind:
                    _log.warning(
                        "the offset map at the source cannot be read: loops are not noticed", error=str(error)
                    )
                self._is_blind = True
        return known

    def _looping(self, topics: Iterable[str]) -> dict[str, str]:
        """Return why topics would close a loop, by topic."""
        known = self._known()
        origins = {
            topic: [
                one for one in all_origins(known, self._source.id, topic) if one.cluster == self._target.id
            ]
            for topic in topics
        }
        names = {one.topic for some in origins.values() for one in some}
        if not names:
            return {}
        ids = self._target.topic_ids(names)
        there = {*self._target.topic_names()}
        current = {
            topic: [one for one in some if one.topic in there and _is_same(one, ids.get(one.topic))]
            for topic, some in origins.items()
        }
        return {topic: self._message(topic, some[0]) for topic, some in current.items() if some}

    def _message(self, topic: str, origin: Origin) -> str:
        return (
            f"topic {topic} of cluster {self._source.id} has records of topic {origin.topic} of cluster "
            f"{self._target.id}, which is the target: they would be copied in a loop"
        )


class Admission:
    """Remembers which topics the mirror takes.

    names: of the topics at the target. selected: returns all topics that the mirror takes. named: those that the user
    has named. loops: None if a side is a folder, which keeps no provenances.
    """

    def __init__(
        self,
        names: TopicNames,
        selected: Callable[[], Collection[str]],
        named: Collection[str] = (),
        loops: LoopCheck | None = None,
    ) -> None:
        self._names, self._selected, self._named, self._loops = names, selected, named, loops
        self._admitted: set[str] = set()
        self._refused: dict[str, Refusal] = {}

    def refused(self, topics: Collection[str]) -> Mapping[str, Refusal]:
        """Return which of these topics are not mirrored. Raises KafkaError and MirrorError."""
        new = [topic for topic in topics if topic not in self._admitted and topic not in self._refused]
        if new:
            refused = {
                topic: Refusal(why) for topic, why in self._names.refusals(new, self._selected()).items()
            }
            if self._loops is not None:
                looping = self._loops.claim([topic for topic in new if topic not in refused])
                refused |= self._looping(looping)
            self._refused |= refused
            self._admitted.update(topic for topic in new if topic not in refused)
        return {topic: self._refused[topic] for topic in topics if topic in self._refused}

    def refresh(self) -> Mapping[str, Refusal]:
        """Look for loops that were closed meanwhile. Return topics that are not mirrored further."""
        if self._loops is None:
            return {}
        refused = self._looping(self._loops.refresh())
        self._admitted.difference_update(refused)
        self._refused |= refused
        return refused

    def _looping(self, messages: Mapping[str, str]) -> dict[str, Refusal]:
        return {
            topic: Refusal(message, is_left_out=topic not in self._named)
            for topic, message in messages.items()
        }


def _is_same(origin: Origin, topic_id: UUID | None) -> bool:
    """Return whether the origin is the topic of that id. Clusters before 2.8 keep no ids."""
    return None in (origin.topic_id, topic_id) or origin.topic_id == str(topic_id)


def _text(topic_id: UUID | None) -> str | None:
    return None if topic_id is None else str(topic_id)
