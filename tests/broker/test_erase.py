"""A real broker serves logs out of which records were erased, and its log cleaner compacts them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.broker import KAFKA_4, Broker
from cli.logs import json_lines, run

confluent_kafka = pytest.importorskip("confluent_kafka")

pytestmark = [pytest.mark.broker, pytest.mark.full]

SECRET = b"SECRET"
MIB = 2**20
WAIT_SECONDS = 60
# Small segments, so that the cleaner has closed ones.
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": MIB}


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that the test may stop."""
    with Broker(tmp_path / "broker", kafka=KAFKA_4) as running:
        yield running


def send(broker: Broker, topic: str, first: int, **settings: object) -> None:
    """Send 60 records, every third with a secret key; with a transactional.id in transactions, some of them aborted."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 20, **settings})
    is_transactional = "transactional.id" in settings
    if is_transactional:
        producer.init_transactions(WAIT_SECONDS)
    for number in range(first, first + 60, 10):
        if is_transactional:
            producer.begin_transaction()
        for i in range(number, number + 10):
            key = b"user-%d" % i if i % 3 else SECRET + b"-%d" % i
            producer.produce(
                topic, b"value-%d " % i * 5 + (b"" if i % 3 else SECRET), key, headers={"n": b"%d" % i}
            )
        producer.flush(WAIT_SECONDS)
        if is_transactional and number % 20:
            producer.abort_transaction(WAIT_SECONDS)
        elif is_transactional:
            producer.commit_transaction(WAIT_SECONDS)


def consume(broker: Broker, topic: str) -> list[tuple[int, bytes, bytes | None, object]]:
    """All committed records: offset, key, value, headers."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "erased",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(WAIT_SECONDS)) is not None:
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            break
        found.append((message.offset(), message.key(), message.value(), message.headers()))
    consumer.close()
    return found


def is_secret(record: tuple[int, bytes, bytes | None, object]) -> bool:
    return record[1].startswith(SECRET)


def fill_segment(broker: Broker, topic: str) -> None:
    """Fill the active segment, so that all before it may be cleaned."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(2):
        producer.produce(topic, bytes(MIB * 9 // 10), b"noise-%d" % number)
        producer.flush(WAIT_SECONDS)


def test_erased_logs_when_put_back_then_the_broker_serves_and_compacts_them(
    own_broker: Broker, tmp_path: Path
) -> None:
    broker = own_broker
    broker.create_topic("plain")
    broker.create_topic("compacted", config=COMPACTED)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        for topic in ("plain", "compacted"):
            send(
                broker,
                topic,
                number * 40,
                **{"compression.type": codec, "enable.idempotence": bool(number % 2)},
            )
            send(
                broker,
                topic,
                number * 40,
                **{"compression.type": codec, "transactional.id": f"{topic}-{number}"},
            )
    before = {topic: consume(broker, topic) for topic in ("plain", "compacted")}
    assert all(any(map(is_secret, records)) for records in before.values())
    broker.stop()

    keys = tmp_path / "keys.txt"
    keys.write_bytes(
        b"\n".join({key for records in before.values() for _, key, *_ in records if SECRET in key})
    )
    found = run("erase", broker.log_dir, tmp_path / "clean", "--keys", keys, "--jobs", 1, "--json")
    assert found.exit_code == 0, found.output
    assert json_lines(found.stdout)[-1]["summary"]["records_erased"] > 0
    for topic in before:
        shutil.rmtree(broker.log_dir / f"{topic}-0")
        shutil.move(tmp_path / "clean" / f"{topic}-0", broker.log_dir)

    logged = len(broker.log_tail(10**6))
    broker.start()
    for topic, records in before.items():
        assert consume(broker, topic) == [record for record in records if not is_secret(record)]
    send(broker, "plain", 1000, **{"transactional.id": "plain-1"})
    send(broker, "compacted", 1, **{"transactional.id": "compacted-1"})
    latest = {record[1]: record for record in consume(broker, "compacted")}
    fill_segment(broker, "compacted")
    broker.wait_for_cleaner("compacted")
    compacted = [record for record in consume(broker, "compacted") if not record[1].startswith(b"noise")]
    assert {record[1]: record for record in compacted} == latest
    assert len(compacted) == len(latest)
    broker.stop()
    lines = broker.log_tail(10**6)[logged:].splitlines()
    assert not [line for line in lines if "uncleanable" in line or " ERROR " in line or "Corrupt" in line]
