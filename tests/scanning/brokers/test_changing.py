"""Scans of topics that change, or that a cluster does not give."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from kafka import KafkaAdminClient, TopicPartition

import kafkafmt as kf
from broker.batches import RECORDS, send
from broker.produce import produce
from cli.live import transaction
from clients.socks_proxy import SocksProxy
from kafkafmt.columns.read import COLUMNS
from kafkafmt.scanning.brokers.errors import BrokerError
from kafkafmt.scanning.data_loss import DataLossError
from scanning.brokers.topics import GIVES_UP_SECONDS

if TYPE_CHECKING:
    from broker.broker import Broker

pytestmark = pytest.mark.broker

WAIT_SECONDS = 60
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": 2000, "min.cleanable.dirty.ratio": 0.01}


def scan(broker: Broker, topic: str, **arguments: Any) -> kf.Scan:
    return kf.scan(f"kafka://{broker.bootstrap}/{topic}", **arguments)


def values(found: kf.Scan) -> list[tuple[int, bytes | None, bytes | None]]:
    table = found.to_arrow()
    return list(zip(*(table[name].to_pylist() for name in ("offset", "key", "value")), strict=True))


def consumed(
    broker: Broker, topic: str, end: int, isolation: str = "read_uncommitted"
) -> list[tuple[int, bytes | None, bytes | None]]:
    """What librdkafka's consumer has before offset `end`, at which a record must be, or the end of the partition."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "changing",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": isolation,
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    consumer.assign([ConfluentTopicPartition(topic, 0, 0)])
    found = []
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None or message.offset() >= end:
            break
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def delete_before(broker: Broker, topic: str, offset: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.delete_records({TopicPartition(topic, 0): offset})
    admin.close()


def test_scan_when_the_topic_grows_then_ends_where_it_was_planned(broker: Broker) -> None:
    broker.create_topic("scan-grows")
    send(broker, "scan-grows", range(3))
    found = scan(broker, "scan-grows")
    assert found.ranges() == {("scan-grows", 0): (0, 3 * RECORDS)}
    send(broker, "scan-grows", range(3, 6))
    assert values(found) == consumed(broker, "scan-grows", 3 * RECORDS)


def test_scan_when_records_are_deleted_then_begins_after_them_or_says_what_was_lost(broker: Broker) -> None:
    broker.create_topic("scan-deleted")
    send(broker, "scan-deleted", range(6))
    planned = scan(broker, "scan-deleted")
    planned.ranges()
    delete_before(broker, "scan-deleted", 60)
    line = "^partition scan-deleted-0, offsets 0 to 149: expected offset 0, found the log to have 60 to 149"
    with pytest.raises(DataLossError, match=line) as raised:
        planned.to_arrow()
    assert "\n" not in str(raised.value)
    found = scan(broker, "scan-deleted", columns=COLUMNS)
    assert found.ranges() == {("scan-deleted", 0): (60, 6 * RECORDS)}
    assert values(found) == consumed(broker, "scan-deleted", 6 * RECORDS)
    stored = kf.scan(broker.log_dir / "scan-deleted-0", columns=COLUMNS, offsets=(60, None))
    assert found.to_arrow().combine_chunks() == stored.to_arrow().combine_chunks()


def test_scan_when_the_topic_is_compacted_then_has_what_is_left_of_any_range(broker_3: Broker) -> None:
    broker_3.create_topic("scan-compacted", 1, COMPACTED)
    send(broker_3, "scan-compacted", range(40))
    deadline = time.monotonic() + WAIT_SECONDS
    found = scan(broker_3, "scan-compacted")
    while len(values(found)) >= 20 * RECORDS:
        assert time.monotonic() < deadline
    everything = consumed(broker_3, "scan-compacted", 40 * RECORDS)
    assert values(found) == everything
    for start, end in ((0, 100), (10, 777), (500, 501), (990, 1000)):
        part = scan(broker_3, "scan-compacted", offsets=(start, end))
        assert values(part) == [one for one in everything if start <= one[0] < end]


def test_scan_when_transactions_are_open_or_aborted_then_has_the_rows_of_the_consumer(broker: Broker) -> None:
    broker.create_topic("scan-open")
    for number, commits in enumerate((True, False, True, False)):
        with transaction(broker, "scan-open", f"scan-{number}", commits=commits) as producer:
            producer.send("scan-open", value=b"%d" % number)
    with transaction(broker, "scan-open", "open", commits=None) as producer:
        producer.send("scan-open", value=b"open").get(WAIT_SECONDS)
        produce_after = scan(broker, "scan-open", isolation="read_committed")
        assert [value for _, _, value in values(produce_after)] == [b"0", b"2"]
        assert values(produce_after) == consumed(broker, "scan-open", 100, "read_committed")
        assert values(scan(broker, "scan-open")) == consumed(broker, "scan-open", 100)


def test_scan_when_bounded_then_does_not_fetch_what_is_excluded(broker: Broker) -> None:
    broker.create_topic("scan-bytes", partitions=2)
    record_bytes, count = 10_000, 400
    for number in range(count):
        builder = kf.RecordBatchBuilder()
        builder.append(1_700_000_000_000 + number, None, b"v" * record_bytes)
        assert produce(broker, "scan-bytes", builder.build(), number % 2) == 0
    for arguments, records in (
        ({}, count),
        ({"offsets": (190, 200)}, 20),
        ({"timestamps": (1_700_000_000_380, None)}, 20),
        ({"partitions": [("scan-bytes", 1)]}, count // 2),
    ):
        with SocksProxy() as proxy:
            found = scan(broker, "scan-bytes", options={"proxy.url": proxy.url}, **arguments)
            assert found.to_arrow().num_rows == records
        wanted = records * record_bytes
        assert wanted < proxy.received_bytes < wanted + 400_000


@pytest.mark.parametrize("options", [{}, {"bootstrap.timeout.ms": "500"}])
def test_scan_when_no_broker_answers_then_one_line_says_why_in_time(
    options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    started = time.monotonic()
    line = r"^127\.0\.0\.1:1: no broker answers: .* \(.*[Cc]onnect.*\)$"
    with pytest.raises(BrokerError, match=line) as raised:
        kf.scan("kafka://127.0.0.1:1/orders", options=options).ranges()
    assert "\n" not in str(raised.value)
    assert time.monotonic() - started < GIVES_UP_SECONDS
    assert not caplog.records


def test_scan_when_the_topic_is_empty_then_has_no_rows(broker: Broker) -> None:
    broker.create_topic("scan-empty", partitions=2)
    found = scan(broker, "scan-empty")
    assert found.to_arrow() == pa.Table.from_batches([], found.schema)
    assert found.tasks() == []
