"""The endpoint and a real broker are sent the same by producers: what they take, and with which errors they refuse it.

What is not the same is named here, with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import pytest
from kafka.protocol.metadata import ApiVersionsRequest

import kafkafmt as kf
import reference as ref
from broker.broker import HOST, Broker
from endpoints.raw_client import RawClient, plain
from endpoints.requests import MIB, list_offsets, metadata
from endpoints.served import Served
from reference import Row
from serve.produced import (
    NOW,
    PRODUCE_BY_TOPIC_ID,
    answered,
    batch,
    changed,
    create_topics,
    error_code,
    init_producer_id,
    produce,
)

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("producing")]

COUNT_OFFSET, PRODUCER_ID_OFFSET, ATTRIBUTES_OFFSET = 57, 43, 21
NO_ERROR, LOADING, INVALID_RECORD = 0, 14, 87
NUMBERS = count()


class Pair(NamedTuple):
    """A connection to each."""

    ours: RawClient
    theirs: RawClient

    def topic(self, **configs: str) -> str:
        """A new topic at both, which lead its partition."""
        name = f"produced-{next(NUMBERS)}"
        for client in self:
            (made,) = client.ask(create_topics(name, configs=configs), 5).topics
            assert made.error_code == NO_ERROR
            while client.ask(list_offsets((name, 0, -1)), 5).topics[0].partitions[0].error_code:
                time.sleep(0.01)
        return name

    def codes(self, request: Any, version: int) -> tuple[int, int]:
        return error_code(self.ours, request, version), error_code(self.theirs, request, version)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, broker_3: Broker) -> Iterator[Pair]:
    with (
        Served(tmp_path_factory.mktemp("produced"), allow_produce=True) as served,
        RawClient(served.address) as ours,
        RawClient((HOST, broker_3.port)) as theirs,
    ):
        yield Pair(ours, theirs)


def last_version(pair: Pair) -> int:
    known = {api.api_key: api.max_version for api in pair.theirs.ask(ApiVersionsRequest(), 0).api_keys}
    return min(known[0], PRODUCE_BY_TOPIC_ID - 1)


GOOD = batch()
REFUSED = {
    "crc": GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
    "count-too-small": changed(GOOD, COUNT_OFFSET, ">i", 2),
    "count-too-large": changed(GOOD, COUNT_OFFSET, ">i", 4),
    "no-records": bytes(kf.RecordBatchBuilder(last_offset=2).build()),
    "no-sequence": changed(GOOD, PRODUCER_ID_OFFSET, ">q", 7),
    "control": changed(GOOD, ATTRIBUTES_OFFSET, ">h", 0x20),
    "message-v1": batch(1, magic=1),
    "nothing": b"",
    "part-of-a-batch": GOOD[:-1],
    "part-of-a-header": GOOD[:40],
    "too-large": batch(1, size=MIB + 100),
}


@pytest.mark.parametrize("case", REFUSED)
def test_records_when_a_broker_refuses_them_then_refused_with_its_error(pair: Pair, case: str) -> None:
    topic = pair.topic()
    for version in (3, 7, last_version(pair)):
        ours, theirs = pair.codes(produce(REFUSED[case], topic=topic), version)
        assert ours == theirs != NO_ERROR, f"version {version}"
    assert answered(pair.ours, produce(GOOD, topic=topic), 9)[0].base_offset == 0


@pytest.mark.parametrize("version", range(3))
def test_messages_when_of_an_old_format_then_taken_as_by_a_broker(pair: Pair, version: int) -> None:
    topic = pair.topic()
    magic = 1 if version == 2 else 0
    for codec in (kf.Codec.NONE, kf.Codec.GZIP, kf.Codec.SNAPPY, kf.Codec.LZ4):
        data = batch(5, magic=magic, codec=codec)
        ours, theirs = (answered(client, produce(data, topic=topic), version)[0] for client in pair)
        assert plain(ours) == plain(theirs)
        assert ours.error_code == NO_ERROR


ROWS = [Row(number, NOW + number, b"key", b"value") for number in range(3)]
INNER = {
    "good": ref.messages(1, ROWS),
    "wrong-crc": ref.messages(1, ROWS[:2]) + ref.message(1, 2, NOW, b"key", b"value", crc=1),
    "other-magic": ref.messages(1, ROWS[:2]) + ref.messages(0, ROWS[2:]),
    "other-magic-and-wrong-crc": ref.messages(0, ROWS[:2]) + ref.message(1, 2, NOW, b"", b"", crc=1),
    "compressed": ref.messages(1, ROWS[:2]) + ref.wrapper(1, ref.GZIP, ROWS[2:]),
    "nothing": b"",
}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(batch(2, magic=1)[:-1] + b"\xff", id="crc"),
        pytest.param(batch(2, magic=1) + GOOD, id="mixed"),
        pytest.param(batch(1, magic=1, size=MIB + 100), id="too-large"),
        *(
            pytest.param(ref.wrapper(1, codec, ROWS, inner=inner), id=f"{name}-in-{kf.Codec(codec).name}")
            for codec in (ref.GZIP, ref.SNAPPY, ref.LZ4)
            for name, inner in INNER.items()
        ),
        pytest.param(ref.wrapper(0, ref.GZIP, ROWS, inner=ref.messages(1, ROWS)), id="v1-in-v0"),
        pytest.param(ref.wrapper(1, ref.GZIP, ROWS) * 2, id="two-wrappers"),
        pytest.param(ref.messages(1, ROWS) + ref.wrapper(1, ref.GZIP, ROWS), id="plain-and-wrapper"),
        pytest.param(ref.wrapper(1, ref.GZIP, ROWS) + ref.messages(1, ROWS), id="wrapper-and-plain"),
        pytest.param(ref.messages(1, ROWS) + ref.messages(0, ROWS), id="two-formats"),
    ],
)
def test_messages_when_a_broker_answers_otherwise_then_answered_as_by_it(pair: Pair, data: bytes) -> None:
    ours, theirs = pair.codes(produce(data, topic=pair.topic()), 2)
    assert ours == theirs


def test_records_when_a_broker_takes_them_then_answered_as_by_it(pair: Pair) -> None:
    for configs in ({}, {"message.timestamp.type": "LogAppendTime"}):
        topic = pair.topic(**configs)
        for version in range(3, last_version(pair) + 1):
            for codec in kf.Codec:
                if codec is kf.Codec.ZSTD and version < 7:
                    continue
                data = batch(4, codec=codec)
                ours, theirs = (
                    plain(answered(client, produce(data, topic=topic), version)[0]) for client in pair
                )
                ours_time, theirs_time = (told.pop("log_append_time_ms") for told in (ours, theirs))
                assert ours == theirs
                assert (ours_time > 0, theirs_time > 0) == (bool(configs), bool(configs))


@pytest.mark.parametrize(
    ("request_of", "version"),
    [
        pytest.param(lambda topic: produce(GOOD, topic="nosuch"), 9, id="no-topic"),
        pytest.param(lambda topic: produce(GOOD, topic=topic, first=7), 9, id="no-partition"),
        pytest.param(lambda topic: produce(GOOD, topic=topic, acks=2), 9, id="acks"),
        pytest.param(lambda topic: produce(batch(codec=kf.Codec.ZSTD), topic=topic), 6, id="zstd"),
    ],
)
def test_request_when_a_broker_refuses_it_then_refused_with_its_error(
    pair: Pair, request_of: Any, version: int
) -> None:
    topic = pair.topic()
    ours, theirs = pair.codes(request_of(topic), version)
    assert ours == theirs != NO_ERROR


def sequenced(producer_id: int, sequence: int, *, epoch: int = 0, records: int = 3) -> bytes:
    return batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_sequence_numbers_when_they_come_in_any_order_then_each_is_answered_as_by_a_broker(
    pair: Pair,
) -> None:
    topic, producer_id = pair.topic(), 12345
    steps = [
        (0, 0, 3),
        (3, 0, 3),
        (3, 0, 3),  # again
        (0, 0, 3),  # again
        (7, 0, 3),  # a gap
        (6, 0, 2),
        (6, 0, 3),  # other records than before
        (8, 0, 1),
        (5, 1, 1),  # an epoch that does not begin with 0
        (0, 1, 2),
        (9, 0, 1),  # of the epoch before
        (2, 1, 2**15),
        (2**15 + 2, 1, 1),
    ]
    for sequence, epoch, records in steps:
        data = sequenced(producer_id, sequence, epoch=epoch, records=records)
        ours, theirs = (answered(client, produce(data, topic=topic), 9)[0] for client in pair)
        assert (ours.error_code, ours.base_offset) == (theirs.error_code, theirs.base_offset), (
            sequence,
            epoch,
        )


def test_sequence_numbers_when_they_pass_the_largest_then_go_on_as_at_a_broker(pair: Pair) -> None:
    topic = pair.topic()
    for sequence in (2**31 - 2, 2**31 - 1 + 2 - 2**31, 4, 1):
        ours, theirs = pair.codes(produce(sequenced(1, sequence), topic=topic), 9)
        assert ours == theirs


def test_producer_id_when_asked_for_then_answered_as_by_a_broker(pair: Pair) -> None:
    while pair.theirs.ask(init_producer_id(), 4).error_code == LOADING:  # its first block of ids
        pass
    for version in range(5):
        ours, theirs = (plain(client.ask(init_producer_id(), version)) for client in pair)
        assert (ours.pop("producer_id") >= 0, theirs.pop("producer_id") >= 0) == (True, True)
        assert ours == theirs


@pytest.mark.parametrize(
    "request_of",
    [
        pytest.param(lambda: create_topics("bad/name"), id="name"),
        pytest.param(lambda: create_topics("a", partitions=0), id="partitions"),
        pytest.param(lambda: create_topics("a", replicas=3), id="replicas"),
        pytest.param(lambda: create_topics("a", configs={"max.message.bytes": "many"}), id="config"),
        pytest.param(lambda: create_topics("twice", "twice"), id="twice"),
        pytest.param(lambda: create_topics("valid", validate_only=True), id="validate-only"),
    ],
)
def test_topic_when_a_broker_answers_of_it_then_answered_with_the_same_error(
    pair: Pair, request_of: Any
) -> None:
    ours, theirs = ([topic.error_code for topic in client.ask(request_of(), 5).topics] for client in pair)
    assert ours == theirs


def test_topic_when_it_exists_then_refused_as_by_a_broker(pair: Pair) -> None:
    topic = pair.topic()
    ours, theirs = (client.ask(create_topics(topic), 5).topics[0].error_code for client in pair)
    assert ours == theirs != NO_ERROR
    described = pair.ours.ask(metadata([topic]), 9).topics[0]
    assert [partition.error_code for partition in described.partitions] == [NO_ERROR]


def test_what_is_taken_here_alone(pair: Pair) -> None:
    """Several batches for a partition in a request (KIP-712), whatever base offsets they come with."""
    topic = pair.topic()
    for data in (GOOD + GOOD, batch(base_offset=77)):
        ours, theirs = pair.codes(produce(data, topic=topic), 9)
        assert (ours, theirs) == (NO_ERROR, INVALID_RECORD)


def test_what_is_refused_here_with_another_error(pair: Pair) -> None:
    """A broker knows no codec of that number, which it tells as an error of its own."""
    data = changed(GOOD, ATTRIBUTES_OFFSET, ">h", 6)
    ours, theirs = pair.codes(produce(data, topic=pair.topic()), 9)
    assert (ours, theirs) == (76, -1)
    data = changed(GOOD, ATTRIBUTES_OFFSET, ">h", 8)
    ours, theirs = pair.codes(produce(data, topic=pair.topic()), 9)
    assert (ours, theirs) == (32, 0)
