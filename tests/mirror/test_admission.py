"""Loops of mirrors: provenance in the offset map (KIP-712 copies raw batches, which have no header for it)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from kafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError

from kafkafmt.mirror.admission import Admission, LoopCheck
from kafkafmt.mirror.offset_stores import FileOffsetMapStore
from kafkafmt.mirror.provenance import (
    Origin,
    Provenance,
    ProvenanceKey,
    key_fields,
    parse_key,
    parse_value,
    value_fields,
)
from kafkafmt.mirror.topic_names import TopicNames
from logged_events import logged_events


class Side:
    """A cluster, its topics with their ids, and the provenances in its offset map."""

    def __init__(self, name: str, *topics: str) -> None:
        self.id = name
        self.ids: dict[str, UUID | None] = {}
        self.kept: dict[ProvenanceKey, Provenance] = {}
        self.on_save: Callable[[], object] = lambda: None
        self.is_down = False
        for topic in topics:
            self.create(topic)

    def create(self, topic: str) -> None:
        self.ids[topic] = UUID(int=hash((self.id, topic, len(self.ids), id(self))) % 2**64 + 1)

    def topic_names(self) -> list[str]:
        return list(self.ids)

    def topic_ids(self, names: Iterable[str]) -> dict[str, UUID]:
        found = {name: self.ids.get(name) for name in names}
        return {name: topic_id for name, topic_id in found.items() if topic_id is not None}

    def provenances(self) -> Mapping[ProvenanceKey, Provenance]:
        return dict(self.kept)

    def save_provenances(self, changes: Mapping[ProvenanceKey, Provenance | None]) -> None:
        if self.is_down:
            raise KafkaTimeoutError
        for key, one in changes.items():
            if one is None:
                self.kept.pop(key, None)
            else:
                self.kept[key] = one
                self.ids.setdefault(key.topic, UUID(int=len(self.ids) + 10**6))
        self.on_save()


def check(source: Side, target: Side, names: TopicNames | None = None) -> LoopCheck:
    clusters = cast("Any", source), cast("Any", target)
    return LoopCheck(*clusters, names or TopicNames(), upstream=[source], store=target)


def test_claim_when_the_topic_came_from_the_target_then_is_refused_with_topics_and_clusters() -> None:
    east, west = Side("EAST", "t"), Side("WEST", "t", "u")
    assert check(east, west).claim(["t"]) == {}
    (message,) = check(west, east).claim(["t", "u"]).values()
    assert "topic t of cluster WEST has records of topic t of cluster EAST" in message
    assert [key.topic for key in east.kept] == ["u"], "nothing is noted of what is not mirrored"
    assert check(east, west).claim(["t"]) == {}, "the first one may start again"


def test_claim_when_the_topic_has_a_prefix_then_it_is_not_sent_back_under_another_name() -> None:
    east, west = Side("EAST", "t"), Side("WEST", "t")
    assert check(east, west, TopicNames("east.")).claim(["t"]) == {}
    refused = check(west, east, TopicNames("west.")).claim(["t", "east.t"])
    assert refused.keys() == {"east.t"}


def test_claim_when_it_came_through_others_then_is_refused() -> None:
    a, b, c = Side("A", "t"), Side("B"), Side("C")
    assert check(a, b, TopicNames("a.")).claim(["t"]) == {}
    assert check(b, c, TopicNames("b.")).claim(["a.t"]) == {}
    (message,) = check(c, a, TopicNames("c.")).claim(["b.a.t"]).values()
    assert "has records of topic t of cluster A" in message


def test_refresh_when_a_loop_of_three_was_closed_while_mirrors_ran_then_the_last_link_is_refused() -> None:
    a, b, c = Side("A", "t"), Side("B", "t"), Side("C", "t")
    from_b, from_c = check(b, c), check(c, a)
    assert from_b.claim(["t"]) == from_c.claim(["t"]) == {}
    (message,) = check(a, b).claim(["t"]).values()
    assert "has records of topic t of cluster B" in message, "whose mirror starts last is refused"

    a, b, c = Side("A", "t"), Side("B", "t"), Side("C", "t")
    from_b, from_c, from_a = check(b, c), check(c, a), check(a, b)
    assert from_b.claim(["t"]) == {}
    assert from_a.claim(["t"]) == {}
    assert from_c.claim(["t"]) == {}, "C's map does not know A yet"
    assert from_b.refresh() == {}
    a.is_down = True
    with pytest.raises(KafkaTimeoutError):
        from_c.refresh()
    a.is_down = False
    assert from_c.refresh().keys() == {"t"}
    assert from_c.refresh() == {}, "it is told once"


def test_claim_when_both_begin_at_the_same_moment_then_no_loop_is_left() -> None:
    east, west = Side("EAST", "t"), Side("WEST", "t")
    forth, back = check(east, west), check(west, east)
    answers: list[Mapping[str, str]] = []

    def begin_back() -> None:
        west.on_save = lambda: None
        answers.append(back.claim(["t"]))

    west.on_save = begin_back
    answers.append(forth.claim(["t"]))
    assert sum(not refused for refused in answers) <= 1


def test_claim_when_the_origin_was_deleted_then_its_topic_may_come_back() -> None:
    east, west = Side("EAST", "t"), Side("WEST")
    assert check(east, west).claim(["t"]) == {}
    del east.ids["t"]
    assert check(west, east).claim(["t"]) == {}


def test_claim_when_clusters_keep_no_ids_then_is_refused_by_name() -> None:
    east, west = Side("EAST", "t"), Side("WEST", "t")
    east.ids["t"] = west.ids["t"] = None
    assert check(east, west).claim(["t"]) == {}
    assert check(west, east).claim(["t"]).keys() == {"t"}


def test_claim_when_the_map_at_the_source_cannot_be_read_then_mirrors_and_says_so_once() -> None:
    class Hidden(Side):
        def provenances(self) -> Mapping[ProvenanceKey, Provenance]:
            raise TopicAuthorizationFailedError

    east, west = Side("EAST", "t"), Side("WEST", "t")
    guarded = cast("Any", Hidden("WEST"))
    blind = LoopCheck(cast("Any", west), cast("Any", east), TopicNames(), upstream=[guarded], store=east)
    assert check(east, west).claim(["t"]) == {}
    with logged_events("kafkafmt.mirror.admission") as logged:
        assert blind.claim(["t"]) == {}
        assert blind.refresh() == {}
    (line,) = logged
    assert line["event"] == "the offset map at the source cannot be read: loops are not noticed"


def test_refusal_when_the_user_has_not_named_the_topic_then_is_no_failure() -> None:
    east, west = Side("EAST", "t"), Side("WEST", "t", "u")
    check(east, west).claim(["t"])
    for named, is_left_out in ((["t"], False), ([], True)):
        admission = Admission(TopicNames(), lambda: west.ids, named, check(west, east))
        refused = admission.refused(["t", "u"])
        assert [(topic, one.is_left_out) for topic, one in refused.items()] == [("t", is_left_out)]
        assert admission.refused(["t"]) == refused


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileOffsetMapStore]:
    opened = FileOffsetMapStore(tmp_path / "offsets.db", "A")
    yield opened
    opened.close()


def test_provenance_when_it_is_kept_in_a_file_then_is_read_again(store: FileOffsetMapStore) -> None:
    key = ProvenanceKey("B", "a.t", "A", "t")
    known = Provenance("id", (Origin("C", "t", None), Origin("D", "u", "id")))
    store.save_provenances({key: known, key._replace(topic="x"): Provenance()})
    store.save_provenances({key._replace(topic="x"): None})
    assert store.provenances() == {key: known}


def test_provenance_when_it_is_a_record_then_earlier_versions_pass_over_it() -> None:
    """They compare the key's `source` with their own, before they look for its other fields."""
    key = ProvenanceKey("B", "a.t", "A", "t")
    fields = key_fields(key)
    assert fields["source"] == ""
    assert parse_key(fields) == key
    assert parse_key({"source": "A", "topic": "t", "partition": 0, "offset": 1}) is None
    known = Provenance(None, (Origin("C", "t", None),))
    assert parse_value(json.dumps(value_fields(known))) == known
