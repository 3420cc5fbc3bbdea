"""Brokers and gateways are killed while clients of all ages produce and consume: nothing acknowledged is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from broker.broker import KAFKA_4, Broker
from broker.three_brokers import ThreeBrokers
from endpoints.acknowledged import Acknowledged
from endpoints.endpoint_process import EndpointProcess, gateway_process, lasting_address
from endpoints.raw_client import RawClient
from endpoints.requests import Wanted, fetch, metadata
from serve.produced import ALL, LEADER, answered, batch, produce

pytestmark = [pytest.mark.broker, pytest.mark.clients, pytest.mark.full, pytest.mark.xdist_group("faults")]

SECONDS = 180
PARTITIONS, RECORDS = 3, 4000
TIMED_OUT, NOT_ENOUGH_REPLICAS = 7, (19, 20)  # waited for a replica in vain, or knew that it is gone
# The broker that a client of librdkafka is told to expect; None: it asks, and produces idempotently.
AGES = pytest.mark.parametrize("version", ["0.9.0.1", "0.10.0.0", None], ids=["0.9", "0.10", "new"])
REPLICATED = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "default.replication.factor": 3,
}


def settings(bootstrap: str, version: str | None) -> dict[str, Any]:
    told = {} if version is None else {"api.version.request": False, "broker.version.fallback": version}
    return {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 500,
        "topic.metadata.refresh.interval.ms": 1000,
        "log_level": 0,
        **told,
    }


@dataclass
class Traffic:
    """A producer and a consumer of one topic, each in a thread, and how far they are."""

    topic: str
    sent: Acknowledged = field(default_factory=Acknowledged)
    read: dict[int, list[int]] = field(default_factory=lambda: {n: [] for n in range(PARTITIONS)})

    def produce(self, bootstrap: str, version: str | None) -> None:
        """Produce RECORDS records for each partition, with their numbers as values."""
        more: dict[str, Any] = {"acks": "all", "message.send.max.retries": 1000, "retry.backoff.ms": 50}
        if version is None:
            more["enable.idempotence"] = True
        batches = {"batch.num.messages": 20, "linger.ms": 0, "queue.buffering.max.messages": 1000}
        producer = Producer({**settings(bootstrap, version), **more, **batches})
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                while True:
                    try:
                        producer.produce(
                            self.topic, b"%d" % number, partition=partition, on_delivery=self.sent.note
                        )
                    except BufferError:
                        producer.poll(0.1)
                    else:
                        break
            producer.poll(0)
        assert producer.flush(SECONDS) == 0

    def wait_for(self, part: float) -> None:
        """Until that part of the records was acknowledged."""
        self.sent.wait_for(int(part * RECORDS * PARTITIONS), SECONDS)

    def consume(self, bootstrap: str, version: str | None) -> list[TopicPartition]:
        """Read in a group until all numbers were seen and the positions are committed. Returns the positions."""
        consumer = Consumer(
            {
                **settings(bootstrap, version),
                "group.id": self.topic,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "session.timeout.ms": 10_000,
            }
        )
        consumer.subscribe([self.topic])
        missing = {(partition, number) for partition in range(PARTITIONS) for number in range(RECORDS)}
        positions: dict[int, TopicPartition] = {}
        idle = 0
        while missing or not is_committed(consumer, list(positions.values())):
            message = consumer.poll(1)
            idle = idle + 1 if message is None else 0
            assert idle < SECONDS, f"{len(missing)} records are missing"
            if message is None or message.error() is not None:
                continue
            partition, number = message.partition(), int(message.value() or b"")
            self.read[partition].append(number)
            positions[partition] = TopicPartition(self.topic, partition, message.offset() + 1)
            missing.discard((partition, number))
        consumer.close()
        return list(positions.values())


def is_committed(consumer: Consumer, positions: list[TopicPartition]) -> bool:
    """Commit positions. A consumer that was taken for dead cannot, until it has joined again."""
    try:
        committed = consumer.commit(offsets=positions, asynchronous=False)
    except KafkaException:
        return False
    return all(one.error is None for one in committed)


def run(traffic: Traffic, bootstrap: str, version: str | None, fault: Callable[[], None]) -> None:
    """Let the clients work while faults happen, and check what they have in the end."""
    with ThreadPoolExecutor(2) as threads:
        consuming = threads.submit(traffic.consume, bootstrap, version)
        producing = threads.submit(traffic.produce, bootstrap, version)
        fault()
        producing.result(SECONDS)
        positions = consuming.result(SECONDS)
    assert traffic.sent.failures == []
    assert len(traffic.sent.offsets) == PARTITIONS * RECORDS
    if version is None:  # idempotent: once, in order, at the offsets that were told
        for partition in range(PARTITIONS):
            numbers = [traffic.sent.offsets[partition, number] for number in range(RECORDS)]
            assert numbers == list(range(RECORDS))
            assert list(dict.fromkeys(traffic.read[partition])) == list(range(RECORDS))
    consumer = Consumer({**settings(bootstrap, version), "group.id": traffic.topic})
    kept = consumer.committed([TopicPartition(traffic.topic, n) for n in range(PARTITIONS)], timeout=SECONDS)
    assert {one.partition: one.offset for one in kept} == {one.partition: one.offset for one in positions}
    consumer.close()


@contextmanager
def two_gateways(bootstrap: str) -> Iterator[list[EndpointProcess]]:
    with ExitStack() as stack:
        yield [stack.enter_context(gateway_process(bootstrap, listen=lasting_address())) for _ in range(2)]


@AGES
def test_gateway_when_killed_then_clients_go_on_at_the_other_one(broker: Broker, version: str | None) -> None:
    topic = f"two-gateways-{version}"
    broker.create_topic(topic, PARTITIONS)
    broker.wait_for_coordinator()
    traffic = Traffic(topic)
    with two_gateways(broker.bootstrap) as gateways:

        def kill_each() -> None:
            for number, gateway in enumerate((*gateways, *gateways)):
                traffic.wait_for((number + 1) / 6)
                gateway.send_signal(signal.SIGKILL)
                gateway.wait()
                traffic.wait_for((number + 1.5) / 6)
                gateway.start()

        run(traffic, ",".join(gateway.address for gateway in gateways), version, kill_each)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    folder = tmp_path_factory.mktemp("three")
    with ThreeBrokers(folder, KAFKA_4, dict.fromkeys((1, 2, 3), REPLICATED)) as running:
        yield running


@pytest.fixture
def gateway(cluster: ThreeBrokers, tmp_path: Path) -> Iterator[EndpointProcess]:
    with gateway_process(cluster.bootstrap, log=tmp_path / "gateway.log") as running:
        yield running


@AGES
def test_brokers_when_killed_and_moved_then_clients_go_on_at_their_new_leaders(
    cluster: ThreeBrokers, gateway: EndpointProcess, version: str | None
) -> None:
    """A broker that comes back has another address."""
    topic = cluster.create_topic(f"moved-{version}")
    traffic = Traffic(topic)

    def trouble() -> None:
        traffic.wait_for(0.15)
        cluster.kill(2)
        traffic.wait_for(0.3)
        cluster.start(2)
        traffic.wait_for(0.45)
        cluster.move_leader(topic, 0, 3)
        traffic.wait_for(0.6)
        cluster.kill(3)
        traffic.wait_for(0.75)
        cluster.start(3)

    run(traffic, gateway.address, version, trouble)


@pytest.mark.parametrize("version", [0, 3])
def test_fetch_when_its_partitions_have_several_leaders_then_waits_for_the_first_records(
    cluster: ThreeBrokers, gateway: EndpointProcess, version: int
) -> None:
    topic = cluster.create_topic(f"several-{version}")
    request = fetch(*(Wanted(topic, number) for number in range(3)), max_wait_ms=SECONDS * 1000)
    with RawClient((gateway.host, gateway.port)) as client, RawClient((gateway.host, gateway.port)) as other:
        sent = client.send(request, version)
        (answer,) = answered(
            other, produce(batch(2, magic=version // 3), topic=topic, first=1), 2 * (version // 3)
        )
        assert answer.error_code == 0
        (found,) = client.receive(request, version, sent).responses
    assert [one.error_code for one in found.partitions] == [0, 0, 0]
    assert [bool(one.records) for one in found.partitions] == [False, True, False]


def test_produce_when_its_partitions_have_several_leaders_then_each_has_its_records(
    cluster: ThreeBrokers, gateway: EndpointProcess
) -> None:
    topic = cluster.create_topic("several-produced")
    with RawClient((gateway.host, gateway.port)) as client:
        for version in (0, 1, 2):
            data = [batch(count, magic=version // 2) for count in (1, 2, 3)]
            answers = answered(client, produce(*data, topic=topic), version)
            assert [(one.error_code, one.base_offset) for one in answers] == [
                (0, version),
                (0, 2 * version),
                (0, 3 * version),
            ]


def test_acks_when_above_one_then_all_replicas_must_have_the_records(
    cluster: ThreeBrokers, gateway: EndpointProcess
) -> None:
    topic = cluster.create_topic("acks", [1], {"min.insync.replicas": 3})
    with RawClient((gateway.host, gateway.port)) as client:
        cluster.kill(2)
        try:
            while len(client.ask(metadata([topic]), 1).topics[0].partitions[0].isr_nodes) == 3:
                pass
            for version in (1, 2):
                data = batch(1, magic=version // 2)
                codes = [
                    answered(client, produce(data, topic=topic, acks=acks), version)[0].error_code
                    for acks in (LEADER, 2, ALL)
                ]
                assert codes[0] == 0
                assert set(codes[1:]) <= {TIMED_OUT, *NOT_ENOUGH_REPLICAS}
        finally:
            cluster.start(2)
