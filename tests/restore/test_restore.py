"""Topics and groups that are restored into another cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from client.cluster import Cluster, Record
from restore.restoring import restore

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("restore")]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
YEAR_2020_MS = 1_577_836_800_000


def send(cluster: Cluster, topic: str, numbers: range, *, codec: str = "none", partition: int = 0) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 5, "batch.num.messages": 20}
    )
    for number in numbers:
        producer.produce(
            topic,
            f"value {number}".encode() * 3,
            key=f"key {number}".encode(),
            partition=partition,
            timestamp=YEAR_2020_MS + number,
            headers=[("number", str(number).encode()), ("none", None)],
        )
    producer.flush()


def send_transactions(cluster: Cluster, topic: str, outcomes: str, *, partition: int = 0) -> None:
    """Send a transaction of three records for each letter: c: committed, a: aborted, o: left open."""
    for number, outcome in enumerate(outcomes):
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}-{number}"})
        producer.init_transactions()
        producer.begin_transaction()
        for record in range(3):
            value = f"{outcome} {number} {record}".encode()
            producer.produce(topic, value, key=value, partition=partition)
        producer.flush()
        if outcome == "c":
            producer.commit_transaction()
        elif outcome == "a":
            producer.abort_transaction()


def commit(cluster: Cluster, group: str, topic: str, offsets: dict[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    places = [TopicPartition(topic, number, offset, metadata="here") for number, offset in offsets.items()]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def contents(records: list[Record]) -> list[Record]:
    """Records without their offsets."""
    return [record._replace(offset=0) for record in records]


def first_record_of(cluster: Cluster, group: str, topic: str, partition: int = 0) -> bytes | None:
    """The value of the record at which a member of the group continues."""
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, partition)])
        message = consumer.poll(30)
        assert message is not None
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            return None
        value: bytes = message.value()
        return value
    finally:
        consumer.close()


@pytest.mark.parametrize(("source", "target"), [("3.9", "4.x"), ("4.x", "other 4.x")], ids=["from-3.9", "from-4.x"])
def test_restore_when_into_another_cluster_then_records_configs_and_groups_are_there(
    clusters: dict[str, Cluster], topic: str, source: str, target: str
) -> None:
    old, new = clusters[source], clusters[target]
    configs = {"cleanup.policy": "compact", "segment.bytes": 1048576, "min.insync.replicas": 1}
    if source == "3.9":
        configs["message.format.version"] = "3.0"
    old.create_topic(topic, 3, configs)
    for number, codec in enumerate(CODECS):
        send(old, topic, range(100 * number, 100 * number + 100), codec=codec)
    send_transactions(old, topic, "cacco", partition=1)
    send(old, topic, range(7), partition=1)
    commit(old, f"{topic}-group", topic, {0: 333, 1: 8, 2: 0})
    old_records = old.consume(topic)
    outcome = restore(old.broker.log_dir, new, "--topics", topic)
    assert outcome.status == 0, outcome.errors
    assert outcome.summary["possibly_doubled"] == 0
    assert contents(new.consume(topic, 0, isolation="read_committed")) == contents(old_records)
    committed = [record.value for record in new.consume(topic, 1, isolation="read_committed")]
    assert committed == [
        *(f"c {number} {record}".encode() for number in (0, 2, 3) for record in range(3)),
        *(f"value {number}".encode() * 3 for number in range(7)),
    ]
    assert not new.consume(topic, 2)
    (plan,) = outcome.summary["topics"]
    assert (plan["partitions"], plan["configs"]["cleanup.policy"]) == (3, "compact")
    assert set(plan["refused_configs"]) == ({"message.format.version"} if source == "3.9" else set())
    group = f"{topic}-group"
    assert first_record_of(new, group, topic) == b"value 333" * 3
    assert first_record_of(new, group, topic, 1) == b"c 2 0"
    assert first_record_of(new, group, topic, 2) is None
