"""Fetch of versions 0 to 3 through a gateway to a real broker, which has messages of v2 only."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

import kafkafmt as kf
from broker.produce import produce
from endpoints.endpoint_process import EndpointProcess, gateway_process
from endpoints.raw_client import RawClient
from endpoints.requests import MIB, Wanted, fetch
from kafkafmt import Codec

if TYPE_CHECKING:
    from broker.broker import Broker

pytestmark = pytest.mark.broker

OLD = (0, 1, 2, 3)
NOW = 1_700_000_000_000
OUT_OF_RANGE, UNKNOWN_TOPIC, UNKNOWN_SERVER = 1, 3, -1
SECONDS = 60
LARGE = 900_000


@pytest.fixture
def client(gateway: EndpointProcess) -> Iterator[RawClient]:
    with RawClient((gateway.host, gateway.port)) as client:
        yield client


@pytest.fixture(scope="module")
def committed(broker: Broker) -> Iterator[EndpointProcess]:
    """A gateway whose old consumers get committed records only, and zstd batches as gzip."""
    options = ("--isolation", "read_committed", "--zstd-fallback", "gzip")
    with gateway_process(broker.bootstrap, *options) as running:
        yield running


def batch(first: int, count: int, codec: Codec = Codec.NONE, size: int = 20) -> bytes:
    builder = kf.RecordBatchBuilder(codec=codec, batch_size=2**30)
    for number in range(first, first + count):
        builder.append(NOW + number, b"%d" % number, random.Random(number).randbytes(size))
    return bytes(builder.build())


def fetched(client: RawClient, request: Any, version: int) -> dict[int, Any]:
    """The partitions of the one topic in the answer."""
    (topic,) = client.ask(request, version).responses
    return {one.partition_index: one for one in topic.partitions}


def records_of(partition: Any) -> list[kf.Record]:
    assert partition.error_code == 0
    return list(kf.MemoryRecords(partition.records or b"").records(control=True))


def offsets_of(partition: Any) -> list[int]:
    return [record.offset for record in records_of(partition)]


@pytest.mark.parametrize("version", OLD)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4], ids=str)
def test_fetch_when_old_then_records_are_in_the_format_of_its_version(
    broker: Broker, client: RawClient, version: int, codec: Codec
) -> None:
    topic = f"old-fetch-{version}-{codec.name}"
    broker.create_topic(topic)
    for first in range(0, 300, 100):
        assert produce(broker, topic, batch(first, 100, codec)) == 0

    records: list[kf.Record] = []
    while len(records) < 300:  # converted records may be larger than the size that was committed for them
        found = fetched(client, fetch(Wanted(topic, 0, len(records))), version)[0]
        assert found.high_watermark == 300
        assert {one.magic for one in kf.MemoryRecords(found.records).batches()} == {int(version > 1)}
        records += records_of(found)

    assert [(one.offset, one.key) for one in records] == [(n, b"%d" % n) for n in range(300)]
    expected = [NOW + number if version > 1 else -1 for number in range(300)]
    assert [one.timestamp for one in records] == expected


@pytest.mark.parametrize("version", [0, 3])
def test_fetch_when_from_the_middle_of_a_batch_then_the_first_record_is_the_one_asked_for(
    broker: Broker, client: RawClient, version: int
) -> None:
    topic = f"middle-{version}"
    broker.create_topic(topic)
    assert produce(broker, topic, batch(0, 100)) == 0

    assert offsets_of(fetched(client, fetch(Wanted(topic, 0, 42)), version)[0]) == list(range(42, 100))


@pytest.mark.parametrize("version", OLD)
def test_fetch_when_the_first_batch_is_larger_than_may_come_then_it_comes_whole(
    broker: Broker, client: RawClient, version: int
) -> None:
    topic = f"larger-{version}"
    broker.create_topic(topic)
    assert produce(broker, topic, batch(0, 10, size=10_000)) == 0

    found = fetched(client, fetch(Wanted(topic, max_bytes=100), max_bytes=200), version)[0]

    assert offsets_of(found) == list(range(10))


@pytest.mark.parametrize("version", [1, 3])
def test_fetch_when_no_bytes_are_enough_then_does_not_wait(
    broker: Broker, client: RawClient, version: int
) -> None:
    topic = f"no-bytes-{version}"
    broker.create_topic(topic)

    found = fetched(client, fetch(Wanted(topic), min_bytes=0, max_wait_ms=10 * SECONDS * 1000), version)[0]

    assert offsets_of(found) == []


def test_fetch_when_partitions_have_more_than_fits_then_each_has_its_turn(
    broker: Broker, client: RawClient
) -> None:
    """Consumers of version 2 and older ask for all partitions in the same order."""
    broker.create_topic("turns", 3)
    for partition in range(3):
        for number in range(6):  # the gateway asks for 4 MiB at a time
            assert produce(broker, "turns", batch(number, 1, size=LARGE), partition) == 0
    request = fetch(*(Wanted("turns", partition, 0, 8 * MIB) for partition in range(3)))

    seen = set()
    for _ in range(3):
        seen |= {number for number, one in fetched(client, request, 2).items() if one.records}

    assert seen == {0, 1, 2}


@pytest.mark.parametrize("version", OLD)
def test_fetch_when_out_of_range_or_unknown_then_tells_so(
    broker: Broker, client: RawClient, version: int
) -> None:
    topic = f"range-{version}"
    broker.create_topic(topic)

    found = fetched(client, fetch(Wanted(topic, 0, 5), Wanted(topic, 7)), version)
    assert (found[0].error_code, found[7].error_code) == (OUT_OF_RANGE, UNKNOWN_TOPIC)
    (one,) = fetched(client, fetch(Wanted("no-such-topic")), version).values()
    assert one.error_code == UNKNOWN_TOPIC


@pytest.mark.parametrize("version", [0, 3])
def test_fetch_when_there_is_nothing_then_waits_until_records_come(
    broker: Broker, client: RawClient, version: int
) -> None:
    topic = f"nothing-{version}"
    broker.create_topic(topic, 2)
    request = fetch(Wanted(topic, 0), Wanted(topic, 1), max_wait_ms=300)

    began = time.monotonic()
    assert [one.records or b"" for one in fetched(client, request, version).values()] == [b"", b""]
    assert time.monotonic() - began >= 0.3

    request = fetch(Wanted(topic, 0), Wanted(topic, 1), max_wait_ms=SECONDS * 1000)
    sent = client.send(request, version)
    assert produce(broker, topic, batch(0, 1), 1) == 0
    (answered,) = client.receive(request, version, sent).responses
    assert [len(offsets_of(one)) for one in answered.partitions] == [0, 1]


def test_fetch_when_zstd_then_is_converted_or_refused_as_the_gateway_is_told(
    broker: Broker, client: RawClient, committed: EndpointProcess
) -> None:
    broker.create_topic("zstd")
    assert produce(broker, "zstd", batch(0, 50, Codec.ZSTD)) == 0

    for version in OLD:
        assert fetched(client, fetch(Wanted("zstd")), version)[0].error_code == UNKNOWN_SERVER
        with RawClient((committed.host, committed.port)) as other:
            found = fetched(other, fetch(Wanted("zstd")), version)[0]
        assert {one.codec for one in kf.MemoryRecords(found.records).batches()} == {Codec.GZIP}
        assert offsets_of(found) == list(range(50))


@pytest.fixture(scope="module")
def transactions(broker: Broker) -> str:
    """A topic with records of a transaction that was committed, then of one that was aborted, then a committed one."""
    topic = f"old-transactions-{secrets.token_hex(4)}"  # each worker has one
    broker.create_topic(topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(SECONDS)
    for ends in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(SECONDS)
        ends(SECONDS)
    return topic


@pytest.mark.parametrize("version", OLD)
def test_fetch_when_transactions_were_aborted_then_their_records_are_there_unless_hidden(
    transactions: str, client: RawClient, committed: EndpointProcess, version: int
) -> None:
    first, aborted, last = [0, 1, 2], [4, 5, 6], [8, 9, 10]  # 3, 7 and 11 are markers
    assert offsets_of(fetched(client, fetch(Wanted(transactions)), version)[0]) == [*first, *aborted, *last]
    with RawClient((committed.host, committed.port)) as other:
        assert offsets_of(fetched(other, fetch(Wanted(transactions)), version)[0]) == [*first, *last]
        # A consumer that is at an aborted record gets what follows.
        assert offsets_of(fetched(other, fetch(Wanted(transactions, 0, 5)), version)[0]) == last


@pytest.mark.parametrize("version", [0, 3])
def test_fetch_when_only_a_marker_is_left_then_waits(
    transactions: str, client: RawClient, version: int
) -> None:
    """An answer at once would be asked for again at once: the consumer cannot get past the marker."""
    began = time.monotonic()
    found = fetched(client, fetch(Wanted(transactions, 0, 11), max_wait_ms=300), version)[0]
    assert (found.error_code, found.high_watermark, found.records or b"") == (0, 12, b"")
    assert time.monotonic() - began >= 0.3


def test_fetch_when_a_partition_is_named_often_then_it_is_answered_once(
    transactions: str, client: RawClient
) -> None:
    (topic,) = client.ask(fetch(*[Wanted(transactions)] * 1000), 3).responses
    assert len(topic.partitions) == 1
