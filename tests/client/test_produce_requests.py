"""Produce requests of batches: kafka-python's bytes, and what is read of the responses."""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest
from kafka.protocol.broker_version_data import BrokerVersionData

from _kafkafmt.wire.status import MalformedResponseError
from kafkafmt import TopicPartition
from kafkafmt.client.accumulator import ProducerBatch
from kafkafmt.client.produce_requests import ProduceRequests
from kernels.wire_messages import TOPIC_ID, encoded, produce_request, produce_response, produce_sample

SIZE_BYTES = 4
NEWEST = 11


def requests(acks: int = -1) -> ProduceRequests:
    return ProduceRequests(client_id="me", transactional_id="id", acks=acks, timeout_ms=30000)


def batch(topic: str, partition: int, data: bytes) -> ProducerBatch:
    return ProducerBatch(TopicPartition(topic, partition), data, count=1, created_ms=0)


@pytest.mark.parametrize("version", [3, 8, 9, NEWEST])
def test_produce_when_encoded_then_the_bytes_are_kafka_pythons_and_the_data_is_not_copied(
    version: int,
) -> None:
    batches = [batch("b", 0, b"two"), batch("a", 0, b"one"), batch("a", 1, b"three")]
    ordered, pieces = requests().encode(batches, version, 1)
    topics = [("a", TOPIC_ID, [(0, b"one"), (1, b"three")]), ("b", TOPIC_ID, [(0, b"two")])]
    assert b"".join(pieces) == encoded(produce_request("id", -1, 30000, topics), version, 1)
    assert [id(one.data) for one in ordered] == [id(piece) for piece in pieces[1::2]]


@pytest.mark.parametrize(
    ("broker", "version"), [((0, 11), 3), ((2, 0), 6), ((2, 8), 9), ((3, 9), NEWEST), ((4, 1), NEWEST)]
)
def test_version_when_a_broker_is_asked_then_it_is_the_newest_without_implicit_transactions(
    broker: tuple[int, ...], version: int
) -> None:
    assert requests().version_for(BrokerVersionData(broker)) == version


def test_version_when_a_broker_is_too_old_then_is_kafka_pythons_error() -> None:
    with pytest.raises(kafka_errors.IncompatibleBrokerVersion, match="Produce"):
        requests().version_for(BrokerVersionData((0, 10)))


@pytest.mark.parametrize("version", [8, 9])
def test_response_when_decoded_then_has_what_the_sender_reads(version: int) -> None:
    errors = ((2, "bad"), (3, None))
    topics = [
        ("a", TOPIC_ID, [(0, 0, 5, 6, 7, [], None, None), (1, 87, -1, -1, 3, [*errors], "all", None)]),
        ("b", TOPIC_ID, [(0, 0, 1, 2, 3, [], "", None)]),
    ]
    throttle_time_ms, answers = requests().decode(encoded(produce_response(topics, 9), version, 1), version)
    assert throttle_time_ms == 9
    assert [tuple(one) for one in answers] == [
        (b"a", 0, 0, 5, 6, 7, (), None, -1, -1),
        (b"a", 1, 87, -1, -1, 3, errors, "all", -1, -1),
        (b"b", 0, 0, 1, 2, 3, (), "", -1, -1),
    ]


def test_response_when_a_broker_names_the_leader_then_has_it() -> None:
    topics = [("a", TOPIC_ID, [(0, 6, -1, -1, -1, [], None, (2, 9))])]
    _, (answer,) = requests().decode(encoded(produce_response(topics), 10, 1), 10)
    assert (answer.leader_id, answer.leader_epoch) == (2, 9)


def test_response_when_a_message_is_not_utf_8_then_it_is_read_with_replacements() -> None:
    topics = [("a", TOPIC_ID, [(0, 87, -1, -1, 3, [], "marker", None)])]
    data = encoded(produce_response(topics), 9, 1).replace(b"marker", b"mark\xff\xfe")
    _, (answer,) = requests().decode(data, 9)
    assert answer.error_message == "mark\ufffd\ufffd"


def test_response_when_it_is_malformed_then_the_error_has_the_position() -> None:
    with pytest.raises(MalformedResponseError, match="at byte"):
        requests().decode(produce_sample(9)[:-1], 9)
