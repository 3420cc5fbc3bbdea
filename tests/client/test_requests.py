"""Native requests in kafka-python's protocol: it sends them, and decodes their responses by them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import kafka.errors as kafka_errors
import pytest
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.consumer import FetchRequest as KafkaFetchRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.structs import TopicPartition

from _kafkafmt.client.fetch import FetchEncoder, FetchSession
from kafkafmt.client.requests import FetchPartition, FetchRequest
from kernels.wire_messages import (
    TOPIC_ID,
    encoded,
    fetch_request,
    fetch_response,
    fetch_sample,
)

SIZE_BYTES = 4
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
IDS = {name: UUID(int=number) for number, name in enumerate("abc", 1)}
SETTINGS: dict[str, Any] = {
    "max_wait_ms": 500,
    "min_bytes": 1,
    "max_bytes": 1000,
    "isolation_level": 0,
    "rack_id": "rack",
}


def fetch(topic_ids: dict[str, UUID] | None = None, min_version: int = 0) -> FetchRequest:
    wanted = {
        one: FetchPartition(one.partition, offset, 1, 2, 100) for offset, one in enumerate((A0, B0, A1), 5)
    }
    encoder = FetchEncoder(**{**SETTINGS, "rack_id": b"rack"})
    forgotten = [TopicPartition("c", 3), TopicPartition("a", 4)]
    return FetchRequest(
        encoder, FetchSession(7, 8), wanted, forgotten, topic_ids or {}, min_version=min_version
    )


def sent(request: Any, version: int) -> tuple[KafkaProtocol, bytes]:
    protocol = KafkaProtocol(client_id="me")
    request.API_VERSION = version
    assert protocol.send_request(request) == 1
    return protocol, protocol.send_bytes()


def answered(request: Any, version: int, response: bytes) -> Any:
    protocol, _ = sent(request, version)
    ((correlation_id, decoded),) = protocol.receive_bytes(framed(response))
    assert correlation_id == 1
    return decoded


def framed(response: bytes) -> bytes:
    return len(response).to_bytes(SIZE_BYTES, "big") + response


@pytest.mark.parametrize("version", range(13))
def test_fetch_when_sent_by_name_then_the_bytes_are_kafka_pythons(version: int) -> None:
    topics = [("a", TOPIC_ID, [(0, 5, 1, 2, 100), (1, 7, 1, 2, 100)]), ("b", TOPIC_ID, [(0, 6, 1, 2, 100)])]
    forgotten = [("a", TOPIC_ID, [4]), ("c", TOPIC_ID, [3])] if version >= 7 else []
    _, data = sent(fetch(), version)
    assert data == encoded(fetch_request(SETTINGS, (7, 8), topics, forgotten), version, 1)


def test_fetch_when_sent_by_id_then_the_bytes_are_kafka_pythons() -> None:
    topics = [("", IDS["a"], [(0, 5, 1, 2, 100), (1, 7, 1, 2, 100)]), ("", IDS["b"], [(0, 6, 1, 2, 100)])]
    _, data = sent(fetch(IDS), 13)
    forgotten = [("", IDS["a"], [4]), ("", IDS["c"], [3])]
    assert data == encoded(fetch_request(SETTINGS, (7, 8), topics, forgotten), 13, 1)


@pytest.mark.parametrize(
    ("request_", "theirs", "newest"),
    [
        (fetch(), KafkaFetchRequest(max_version=12), 12),
        (fetch({"a": TOPIC_ID}, min_version=4), KafkaFetchRequest(min_version=4, max_version=13), 13),
    ],
)
@pytest.mark.parametrize("broker", [(0, 11), (2, 0), (2, 4), (3, 0), (3, 9), (4, 1)])
def test_version_when_a_broker_is_asked_then_it_is_that_of_kafka_pythons_request(
    request_: Any, theirs: Any, newest: int, broker: tuple[int, ...]
) -> None:
    known = BrokerVersionData(broker)
    found = known.api_version(request_)
    assert found == known.api_version(theirs) <= newest


def test_version_when_a_broker_is_too_old_then_kafka_pythons_error_names_the_request() -> None:
    with pytest.raises(kafka_errors.IncompatibleBrokerVersion, match="FetchRequest"):
        BrokerVersionData((0, 10)).api_version(fetch(min_version=4))


@pytest.mark.parametrize("version", [4, 12])
def test_fetch_when_answered_then_the_partitions_have_what_the_fetcher_reads(version: int) -> None:
    topics = [
        ("a", TOPIC_ID, [((0, 0, 9, 8, 1), [(3, 4)], -1, b"records", None, None, None)]),
        ("b", TOPIC_ID, [((0, 6, 7, 6, 5), None, -1, None, (1, 2), (3, 4), None)]),
    ]
    response = answered(fetch(), version, encoded(fetch_response(topics, 2, 0, 77), version, 1))
    assert (response.API_VERSION, response.throttle_time_ms) == (version, 2)
    assert (response.error_code, response.session_id) == (0, 77 if version >= 7 else 0)
    assert [topic.topic for topic in response.responses] == ["a", "b"]
    (first,), (second,) = (topic.partitions for topic in response.responses)
    assert (first.partition_index, first.error_code, first.high_watermark) == (0, 0, 9)
    assert [(one.producer_id, one.first_offset) for one in first.aborted_transactions] == [(3, 4)]
    assert first.records == b"records"
    assert (first.diverging_epoch.end_offset, first.current_leader.leader_epoch) == (-1, -1)
    assert (second.error_code, len(second.records), second.preferred_read_replica) == (6, 0, -1)
    known = (1, 2), (3, 4)
    assert (tuple(second.diverging_epoch), tuple(second.current_leader)) == (
        known if version >= 12 else ((-1, -1), (-1, -1))
    )


def test_fetch_when_answered_by_id_then_the_topics_have_ids() -> None:
    topics = [("", IDS["b"], [((0, 0, 9, 8, 1), None, -1, b"", None, None, None)])]
    (topic,) = answered(fetch(IDS), 13, encoded(fetch_response(topics), 13, 1)).responses
    assert (topic.topic, topic.topic_id) == ("", IDS["b"])


def test_response_when_it_is_malformed_then_kafka_pythons_protocol_error_has_the_position() -> None:
    protocol, _ = sent(fetch(), 12)
    malformed = (1).to_bytes(4, "big") + fetch_sample(12)[4:-1]
    with pytest.raises(kafka_errors.KafkaProtocolError, match="at byte"):
        protocol.receive_bytes(framed(malformed))


def test_response_when_it_answers_another_request_then_kafka_pythons_error_says_so() -> None:
    protocol, _ = sent(fetch(), 12)
    with pytest.raises(kafka_errors.CorrelationIdError):
        protocol.receive_bytes(framed(fetch_sample(12)))
