"""What a consumer asks one broker: versions, names or ids, sessions. kafka-python encodes the same requests."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import kafka.errors as kafka_errors
import pytest
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.consumer import FetchRequest as KafkaFetchRequest

from _kafkafmt.client.fetch import NEWEST_VERSION, decode_fetch_response
from kafkafmt import TopicPartition
from kafkafmt.client.broker_fetches import BrokerFetches, FetchSettings
from kafkafmt.client.fetch_session import FetchPosition
from kernels.wire_messages import encoded, fetch_request, fetch_response

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
IDS = {name: UUID(int=number) for number, name in enumerate("ab", 1)}
SETTINGS = FetchSettings(500, 1, 0, b"rack", b"me", uses_sessions=True)
THEIRS = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0, "rack_id": "rack"}
UNKNOWN_IDS: dict[str, UUID] = {}


def broker(settings: FetchSettings = SETTINGS) -> BrokerFetches:
    """Partitions of two topics, among each other."""
    fetches = BrokerFetches(settings)
    for offset, partition in enumerate((A0, B0, A1), 5):
        fetches.session.put(partition, FetchPosition(offset, 1, 2, 100, generation=9))
    return fetches


def sent(
    fetches: BrokerFetches,
    newest: int,
    ids: dict[str, UUID] = UNKNOWN_IDS,
    pinned: dict[str, UUID] = UNKNOWN_IDS,
    oldest: int = 0,
) -> tuple[bytes, int]:
    cluster: Any = SimpleNamespace(topic_id=ids.get)
    request = fetches.encode((oldest, newest), 1, 1000, cluster, pinned)
    return request.frame, request.version


def expected(version: int, session: tuple[int, int] = (0, 0), ids: dict[str, UUID] = UNKNOWN_IDS) -> bytes:
    topics = [
        (name, ids.get(name, UUID(int=0)), partitions)
        for name, partitions in (
            ("a", [(0, 5, 1, 2, 100), (1, 7, 1, 2, 100)]),
            ("b", [(0, 6, 1, 2, 100)]),
        )
    ]
    return encoded(fetch_request(THEIRS, session, topics, []), version, 1)


@pytest.mark.parametrize("version", range(13))
def test_a_request_by_name_is_that_of_kafka_python(version: int) -> None:
    assert sent(broker(), version) == (expected(version), version)


@pytest.mark.parametrize("newest", [13, NEWEST_VERSION, NEWEST_VERSION + 1])
def test_a_request_by_id_is_that_of_kafka_python(newest: int) -> None:
    version = min(newest, NEWEST_VERSION)
    assert sent(broker(), newest, IDS) == (expected(version, ids=IDS), version)


@pytest.mark.parametrize(
    ("ids", "pinned", "is_by_id"),
    [
        (IDS, {}, True),
        ({"a": IDS["a"]}, {}, False),
        ({**IDS, "a": UUID(int=0)}, {}, False),
        ({}, IDS, True),
        (IDS, {"a": IDS["a"]}, False),
        (IDS, {"other": IDS["a"]}, True),
    ],
)
def test_topics_have_ids_if_all_are_known_and_all_or_none_are_pinned(
    ids: dict[str, UUID], pinned: dict[str, UUID], is_by_id: bool
) -> None:
    assert sent(broker(), 17, ids, pinned)[1] == (17 if is_by_id else 12)


def test_a_pinned_id_is_asked_for_in_place_of_that_of_the_metadata() -> None:
    other = {**IDS, "a": UUID(int=77)}
    assert sent(broker(), 17, IDS, other)[0] == expected(17, ids=other)


def test_a_session_begins_anew_when_a_topic_gets_another_id() -> None:
    fetches = broker()
    sent(fetches, 17, IDS)
    fetches.session.accept(7, 0)
    fetches.forget_ids()
    _, version = sent(fetches, 17, IDS)
    assert version == 17
    fetches.session.accept(7, 0)
    other = {**IDS, "a": UUID(int=77)}
    fetches.forget_ids()
    assert sent(fetches, 17, other)[0] == expected(17, (7, 0), other)
    fetches.session.accept(8, 0)
    fetches.forget_ids()
    assert sent(fetches, 17, {})[0] == expected(12, (8, 0))


def test_a_session_continues_when_a_topic_leaves_it() -> None:
    fetches = broker()
    sent(fetches, 17, IDS)
    fetches.session.accept(7, 0)
    fetches.session.discard(B0)
    sent(fetches, 17, IDS)
    fetches.session.accept(7, 0)
    fetches.forget_ids()
    frame, version = sent(fetches, 17, {"a": IDS["a"]})
    assert (frame, version) == (encoded(fetch_request(THEIRS, (7, 2), [], []), 17, 1), 17)


@pytest.mark.parametrize("version", [6, 7, 12])
def test_without_sessions_a_request_has_all_partitions_and_none(version: int) -> None:
    fetches = broker(replace(SETTINGS, uses_sessions=False))
    for _ in range(2):
        assert sent(fetches, version)[0] == expected(version, (0, -1))
        fetches.session.accept(0, 0)


@pytest.mark.parametrize("known", [(0, 11), (2, 0), (2, 4), (3, 0), (3, 9), (4, 1)])
def test_the_version_is_that_of_kafka_pythons_request_for_any_broker(known: tuple[int, ...]) -> None:
    versions = BrokerVersionData(known)
    oldest, newest = BrokerFetches.api_versions(versions.api_versions)
    theirs = versions.api_version(KafkaFetchRequest(max_version=12))
    assert sent(broker(), newest, oldest=oldest)[1] == theirs


@pytest.mark.parametrize(("settings", "versions"), [(SETTINGS, (18, 19)), (None, (0, 3))])
def test_a_broker_that_knows_no_common_version_is_refused(
    settings: FetchSettings | None, versions: tuple[int, int]
) -> None:
    committed = replace(SETTINGS, isolation_level=1)
    with pytest.raises(kafka_errors.IncompatibleBrokerVersion, match="Fetch"):
        sent(broker(settings or committed), versions[1], oldest=versions[0])


@pytest.mark.parametrize("version", [12, 13])
def test_answers_have_the_names_of_their_topics(version: int) -> None:
    fetches = broker()
    sent(fetches, version, IDS)
    topics = [("a", IDS["a"], [answer(0, b"abc"), answer(1, None)]), ("b", IDS["b"], [answer(0, b"d")])]
    if version >= 13:
        topics.append(("c", UUID(int=99), [answer(0, b"e")]))  # which was not asked for
    response = encoded(fetch_response(topics, 5), version, 1)
    decoded = decode_fetch_response(response, version)
    answers = list(fetches.answers(decoded, version))
    assert [key for key, _ in answers] == [A0, A1, B0]
    sizes = [(response[one.records_position :][: max(one.records_size, 0)]) for _, one in answers]
    assert sizes == [b"abc", b"", b"d"]


def answer(partition: int, records: bytes | None) -> Any:
    return (partition, 0, 9, 8, 1), None, -1, records, None, None, None
