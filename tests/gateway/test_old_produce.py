"""Produce of versions 0 to 2 through a gateway to a real broker, which takes batches of v2 only."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import kafkafmt as kf
from broker.broker import HOST, Broker
from endpoints.endpoint_process import EndpointProcess
from endpoints.raw_client import RawClient
from endpoints.requests import Wanted, fetch, metadata
from kafkafmt import Codec, TimestampType
from serve.produced import NONE, NOW, answered, batch, produce

pytestmark = pytest.mark.broker

OLD = (0, 1, 2)
CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
CORRUPT, UNKNOWN_TOPIC, TOO_LARGE = 2, 3, 10
NEWEST_FETCH = 12


@pytest.fixture
def client(gateway: EndpointProcess) -> Iterator[RawClient]:
    with RawClient((gateway.host, gateway.port)) as client:
        yield client


def magic_of(version: int) -> int:
    return 1 if version == 2 else 0


def stored(broker: Broker, topic: str, partition: int = 0) -> list[kf.RecordBatch]:
    """The batches that the broker itself has."""
    with RawClient((HOST, broker.port)) as direct:
        (found,) = direct.ask(fetch(Wanted(topic, partition)), NEWEST_FETCH).responses[0].partitions
    return list(kf.MemoryRecords(found.records or b"").batches())


def values(batches: list[kf.RecordBatch]) -> list[bytes]:
    return [(one.value or b"").split()[0] for each in batches for one in each]


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_messages_when_old_then_the_broker_has_one_batch_of_v2(
    broker: Broker, client: RawClient, version: int, codec: Codec
) -> None:
    """Messages of v0 with LZ4 have the wrong checksum in their header that old clients make."""
    topic = f"produce-{version}-{codec.name}"
    broker.create_topic(topic, 2)
    data = batch(5, magic=magic_of(version), codec=codec)

    before = time.time_ns() // 1_000_000
    for base_offset in (0, 5):
        answers = answered(client, produce(data, data, topic=topic), version)
        assert [(one.error_code, one.base_offset) for one in answers] == [(0, base_offset)] * 2
    after = time.time_ns() // 1_000_000

    for partition in range(2):
        batches = stored(broker, topic, partition)
        assert [(one.magic, one.count, one.codec) for one in batches] == [(2, 5, codec)] * 2
        assert values(batches) == [b"%d" % number for number in range(5)] * 2
        times = [record.timestamp for one in batches for record in one]
        if magic_of(version):
            assert times == [NOW + number for number in range(5)] * 2
        else:  # they have none: the time of arrival
            assert all(before <= one <= after for one in times)


@pytest.mark.parametrize("version", OLD)
def test_messages_when_the_topic_has_log_append_time_then_have_the_brokers(
    broker: Broker, client: RawClient, version: int
) -> None:
    topic = f"append-time-{version}"
    broker.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})

    (answer,) = answered(client, produce(batch(2, magic=magic_of(version)), topic=topic), version)

    (found,) = stored(broker, topic)
    assert (answer.error_code, found.timestamp_type) == (0, TimestampType.LOG_APPEND_TIME)
    if version == 2:
        assert answer.log_append_time_ms == found.max_timestamp


@pytest.mark.parametrize("version", OLD)
def test_messages_when_no_acknowledgement_is_wanted_then_there_is_none(
    broker: Broker, client: RawClient, version: int
) -> None:
    topic = f"no-acks-{version}"
    broker.create_topic(topic)
    data = batch(3, magic=magic_of(version))

    client.send(produce(data, topic=topic, acks=NONE), version)
    assert client.ask(metadata([topic]), 1).topics[0].error_code == 0
    (answer,) = answered(client, produce(data, topic=topic), version)

    assert (answer.error_code, answer.base_offset) == (0, 3)
    client.send(produce(data[:-1] + b"x", topic=topic, acks=NONE), version)
    assert client.is_closed_by_peer()


@pytest.mark.parametrize("version", OLD)
def test_messages_when_one_partition_is_refused_then_the_others_have_theirs(
    broker: Broker, client: RawClient, version: int
) -> None:
    topic = f"refused-{version}"
    broker.create_topic(topic, 4, config={"max.message.bytes": 2000})
    good = batch(1, magic=magic_of(version))
    large = batch(1, magic=magic_of(version), size=3000)
    corrupt = good[:-1] + bytes([good[-1] ^ 1])

    answers = answered(client, produce(good, large, corrupt, b"", good, topic=topic), version)

    assert [one.error_code for one in answers] == [0, TOO_LARGE, CORRUPT, 0, UNKNOWN_TOPIC]
    assert [len(stored(broker, topic, number)) for number in range(4)] == [1, 0, 0, 0]


@pytest.mark.parametrize("version", OLD)
def test_messages_when_many_requests_are_sent_at_once_then_are_appended_in_order(
    broker: Broker, client: RawClient, version: int
) -> None:
    topic = f"pipelined-{version}"
    broker.create_topic(topic)
    requests = [produce(batch(1, magic=magic_of(version), timestamp=NOW + n), topic=topic) for n in range(20)]

    sent = [client.send(request, version) for request in requests]

    for number, (request, correlation_id) in enumerate(zip(requests, sent, strict=True)):
        (topic_response,) = client.receive(request, version, correlation_id).responses
        assert topic_response.partition_responses[0].base_offset == number


@pytest.mark.parametrize("version", OLD)
def test_messages_when_other_requests_come_between_them_then_all_responses_are_in_order(
    broker: Broker, client: RawClient, version: int
) -> None:
    """The next request is read while brokers append the records of the one before it."""
    topic = f"between-{version}"
    broker.create_topic(topic)
    good = batch(1, magic=magic_of(version))
    corrupt = good[:-1] + bytes([good[-1] ^ 1])
    to_append = [produce(data, topic=topic) for data in (good, corrupt, good)]
    requests = [
        (to_append[0], version),
        (to_append[1], version),
        (metadata([topic]), 0),
        (to_append[2], version),
        (fetch(Wanted(topic)), NEWEST_FETCH),
        (fetch(Wanted(topic)), 2),
    ]

    sent = [client.send(*request) for request in requests]
    answers = [client.receive(*request, number) for request, number in zip(requests, sent, strict=True)]

    produced = [answers[number].responses[0].partition_responses[0] for number in (0, 1, 3)]
    assert [(one.error_code, one.base_offset) for one in produced] == [(0, 0), (CORRUPT, -1), (0, 1)]
    for fetched in answers[-2:]:
        (found,) = fetched.responses[0].partitions
        assert [record.offset for record in kf.MemoryRecords(found.records).records()] == [0, 1]


def test_messages_when_acks_is_a_number_of_replicas_then_all_must_have_them(
    broker: Broker, client: RawClient
) -> None:
    """Brokers below 0.9 waited for that many. A broker of today refuses the number."""
    broker.create_topic("many-acks")
    data = batch(2, magic=0)

    (answer,) = answered(client, produce(data, topic="many-acks", acks=2), 0)

    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert values(stored(broker, "many-acks")) == [b"0", b"1"]
