"""`kafkafmt restore` as its users call it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from cli.logs import run
from client.cluster import READ_SECONDS, Cluster, Record
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.clusters import MirrorCluster

YEAR_2020_MS = 1_577_836_800_000


class Outcome(NamedTuple):
    """How a restore ended: its exit status, the JSON on standard output, and standard error."""

    status: int
    summary: dict[str, Any]
    errors: str


def restore(source: object, cluster: Cluster, *options: object) -> Outcome:
    """Run `kafkafmt restore`."""
    result = run("restore", source, f"kafka://{cluster.bootstrap}", "--json", *options)
    return Outcome(result.exit_code, json.loads(result.stdout or "{}"), result.stderr)


def send(
    cluster: Cluster, topic: str, numbers: range, *, codec: str = "none", partition: int = 0, batch: int = 20
) -> None:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "compression.type": codec,
            "linger.ms": 5,
            "batch.num.messages": batch,
        }
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
        message = consumer.poll(READ_SECONDS)
        assert message is not None
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF", message.error()
            return None
        value: bytes = message.value()
        return value
    finally:
        consumer.close()


def values(cluster: Cluster, topic: str, partition: int = 0) -> list[bytes | None]:
    """The values of committed records."""
    return [record.value for record in cluster.consume(topic, partition, isolation="read_committed")]


def topic_configs(cluster: Cluster, topic: str) -> dict[str, str]:
    """The properties that were set for a topic."""
    target = MirrorCluster(ClusterAddress((cluster.bootstrap,)), {})
    try:
        return dict(target.describe_topics({topic: 1})[topic].configs)
    finally:
        target.close()
