"""A producer that closes, fails or is inherited by a child process leaves no caller to wait without an end."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import kafka.errors
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.metrics import DictReporter
from kafka.structs import OffsetAndMetadata

from broker.broker import Broker
from kafkafmt.client.io_thread import IoThread
from kafkafmt.log import LogDirectory
from kafkafmt.net import BufferExhaustedError, Producer

pytestmark = pytest.mark.broker

SECONDS = 60


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"net-{uuid.uuid4().hex}"
    broker.create_topic(name)
    return name


@pytest.fixture
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer(bootstrap_servers=broker.bootstrap) as running:
        yield running


@pytest.fixture
def transactional(broker: Broker, topic: str) -> Iterator[Producer]:
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as running:
        running.init_transactions()
        yield running


def values(broker: Broker, topic: str) -> list[bytes | None]:
    batches = LogDirectory(broker.log_dir).partition((topic, 0)).batches()
    return [record.value for batch in batches for record in batch]


@pytest.mark.parametrize("kind", [Producer, KafkaProducer])
def test_close_when_a_callback_sends_again_then_that_record_arrives(
    broker: Broker, topic: str, kind: type[Any]
) -> None:
    """As a program does whose callbacks send failed records to another topic."""
    producer = kind(bootstrap_servers=broker.bootstrap, linger_ms=60_000)
    producer.send(topic, b"first").add_callback(lambda _: producer.send(topic, b"second"))
    producer.close(SECONDS)
    assert values(broker, topic) == [b"first", b"second"]
    with pytest.raises(kafka.errors.IllegalStateError):
        producer.send(topic, b"third")


def test_send_when_a_callback_finds_no_memory_then_it_raises_at_once(broker: Broker, topic: str) -> None:
    """Its thread releases the memory, so it would wait for itself."""
    errors: queue.Queue[Exception] = queue.Queue()
    options = {"buffer_memory": 1 << 16, "max_block_ms": 10 * SECONDS * 1000}

    def fill(_: object) -> None:
        try:
            while True:
                producer.send(topic, bytes(1000))
        except BufferExhaustedError as error:
            errors.put(error)

    with Producer(bootstrap_servers=broker.bootstrap, **options) as producer:
        producer.send(topic, b"first").add_callback(fill)
        assert "no room after 0 ms" in str(errors.get(timeout=SECONDS))
        producer.flush(SECONDS)
        assert producer.send(topic, b"last").get(SECONDS).offset > 1


def test_send_when_a_callback_ends_its_thread_then_later_records_arrive(
    topic: str, producer: Producer
) -> None:
    producer.send(topic, b"value").add_callback(lambda _: sys.exit(1))
    producer.flush(SECONDS)
    assert producer.send(topic, b"value").get(SECONDS).offset == 1


def test_send_when_a_request_cannot_be_encoded_then_its_records_fail_and_later_ones_arrive(
    topic: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("no request")

    producer.send(topic, b"before").get(SECONDS)
    with monkeypatch.context() as patched:
        patched.setattr(producer._sender._requests, "encode", refuse)
        future = producer.send(topic, b"value")
        with pytest.raises(ValueError, match="no request"):
            future.get(SECONDS)
    assert producer.send(topic, b"after").get(SECONDS).offset == 1


class RefusingReporter(DictReporter):
    """Refuses the metrics of topics."""

    def metric_change(self, metric: Any) -> None:
        if "topic" in metric.metric_name.group:
            raise ValueError("no topics")
        super().metric_change(metric)


def test_send_when_a_metrics_reporter_refuses_a_metric_then_records_arrive(
    broker: Broker, topic: str
) -> None:
    options = {"bootstrap_servers": broker.bootstrap, "metric_reporters": [RefusingReporter]}
    with Producer(**options, delivery_timeout_ms=40_000) as producer:
        assert producer.send(topic, b"value").get(SECONDS).offset == 0


def test_close_in_a_child_process_returns_and_the_parent_delivers(broker: Broker, topic: str) -> None:
    program = f"""
import os
from kafkafmt.net import Producer
producer = Producer(bootstrap_servers={broker.bootstrap!r}, linger_ms=60_000)
future = producer.send({topic!r}, b"value")
child = os.fork()
if not child:
    producer.close()
    os._exit(7)
_, status = os.waitpid(child, 0)
producer.close()
print(os.waitstatus_to_exitcode(status), future.succeeded())
"""
    command = [sys.executable, "-W", "ignore", "-c", program]  # Python 3.12 warns of forks beside threads
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert (done.stdout, done.stderr) == ("7 True\n", "")
    assert values(broker, topic) == [b"value"]


def test_transactions_after_close_are_refused(transactional: Producer) -> None:
    transactional.begin_transaction()
    transactional.close()
    with pytest.raises(kafka.errors.IllegalStateError):
        transactional.commit_transaction()


def test_offsets_of_another_type_are_refused_and_the_transaction_continues(
    topic: str, transactional: Producer
) -> None:
    transactional.begin_transaction()
    with pytest.raises(TypeError, match="OffsetAndMetadata"):
        transactional.send_offsets_to_transaction({TopicPartition(topic, 0): 5}, "group")
    future = transactional.send(topic, b"value")
    transactional.commit_transaction()
    assert future.succeeded()


def test_offsets_that_cannot_be_encoded_fail_and_do_not_keep_the_caller(
    topic: str, transactional: Producer
) -> None:
    transactional.begin_transaction()
    with pytest.raises(kafka.errors.KafkaError):
        transactional.send_offsets_to_transaction({(topic, 0): OffsetAndMetadata(1, "", -1)}, "group")
    with pytest.raises(kafka.errors.KafkaError):
        transactional.commit_transaction()


def test_flush_after_close_returns_in_a_thread_with_the_identifier_of_the_ended_one() -> None:
    """The system gives the identifier of a thread that has ended to later ones."""
    io = IoThread("ended")
    io.start()
    io.stop()
    found: list[bool] = []
    for _ in range(20):
        thread = threading.Thread(target=lambda: found.append(io.is_current))
        thread.start()
        thread.join()
    assert not any(found)
