"""A producer that closes, fails or is inherited by a child process leaves no caller to wait without an end."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import kafka.errors
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.metrics import DictReporter
from kafka.structs import OffsetAndMetadata

from broker.broker import Broker
from kafkafmt.client.io_thread import CoalescedCall, IoThread
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


@pytest.mark.parametrize("end", [SystemExit, asyncio.CancelledError, GeneratorExit])
def test_send_when_a_callback_ends_its_thread_then_later_records_arrive(
    topic: str, producer: Producer, end: type[BaseException]
) -> None:
    called: list[object] = []

    def raise_end(_: object) -> None:
        raise end

    producer.send(topic, b"value").add_callback(raise_end).add_callback(called.append)
    producer.flush(SECONDS)
    assert producer.send(topic, b"value").get(SECONDS).offset == 1
    assert len(called) == 1


def test_send_when_a_callback_sends_to_an_unknown_topic_then_it_raises_at_once(
    broker: Broker, topic: str
) -> None:
    """Its thread receives responses, so it would keep all other records waiting."""
    errors: queue.Queue[Exception] = queue.Queue()
    other = f"other-{uuid.uuid4().hex}"
    broker.create_topic(other)

    def send_elsewhere(_: object) -> None:
        try:
            producer.send(other, b"too early")
        except kafka.errors.KafkaTimeoutError as error:
            errors.put(error)

    with Producer(bootstrap_servers=broker.bootstrap, max_block_ms=10 * SECONDS * 1000) as producer:
        producer.send(topic, b"value").add_callback(send_elsewhere)
        assert "a callback does not wait" in str(errors.get(timeout=SECONDS))
        assert producer.send(other, b"value").get(SECONDS).offset == 0


def test_transactional_methods_when_a_callback_calls_them_then_they_raise(
    topic: str, transactional: Producer
) -> None:
    errors: queue.Queue[Exception] = queue.Queue()

    def end(_: object) -> None:
        for method in (transactional.commit_transaction, transactional.abort_transaction):
            try:
                method()
            except kafka.errors.IllegalStateError as error:
                errors.put(error)

    transactional.begin_transaction()
    transactional.send(topic, b"value").add_callback(end)
    transactional.flush(SECONDS)
    assert "commit_transaction: a callback" in str(errors.get(timeout=SECONDS))
    assert "abort_transaction: a callback" in str(errors.get(timeout=SECONDS))
    transactional.commit_transaction()


def test_commit_when_an_outcome_could_not_be_handled_then_it_raises_and_the_next_transaction_succeeds(
    topic: str, transactional: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("no outcome")

    transactional.begin_transaction()
    with monkeypatch.context() as patched:
        patched.setattr(transactional._sender._delivery, "answered", refuse)
        future = transactional.send(topic, b"value")
        with pytest.raises(ValueError, match="no outcome"):
            future.get(SECONDS)
    with pytest.raises(kafka.errors.KafkaError):
        transactional.commit_transaction()
    transactional.abort_transaction()
    transactional.begin_transaction()
    later = transactional.send(topic, b"value")
    transactional.commit_transaction()
    assert later.succeeded()


def test_begin_transaction_when_the_producer_is_closed_then_raises(broker: Broker, topic: str) -> None:
    producer = Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
    producer.init_transactions()
    producer.close(SECONDS)
    with pytest.raises(kafka.errors.IllegalStateError, match="closed"):
        producer.begin_transaction()


def test_coalesced_call_when_it_is_interrupted_then_the_next_one_is_made() -> None:
    class InterruptedOnce(IoThread):
        interrupts = 1

        def call_soon(self, callback: Any, *args: Any) -> None:
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
            super().call_soon(callback, *args)

    io, called = InterruptedOnce("interrupted"), threading.Event()
    io.start()
    call = CoalescedCall(io, called.set)
    with pytest.raises(KeyboardInterrupt):
        call()
    call()
    assert called.wait(SECONDS)
    io.stop()


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


def wait_for_marker(broker: Broker, topic: str) -> None:
    """Wait until the transaction has ended in the partition. Its coordinator answers before."""
    deadline = time.monotonic() + SECONDS
    log = LogDirectory(broker.log_dir).partition((topic, 0))
    while not any(batch.is_control for batch in log.batches()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def committed(broker: Broker, topic: str) -> list[bytes | None]:
    batches = LogDirectory(broker.log_dir).partition((topic, 0)).batches(isolation="read_committed")
    return [record.value for batch in batches if not batch.is_control for record in batch]


@pytest.mark.parametrize("has_failed", [False, True])
def test_close_when_a_transaction_is_open_then_it_is_aborted(
    broker: Broker, topic: str, transactional: Producer, has_failed: bool
) -> None:
    transactional.begin_transaction()
    future = transactional.send(topic, b"value", partition=0)
    if has_failed:
        future.get(SECONDS)
        with pytest.raises(kafka.errors.MessageSizeTooLargeError):
            transactional.send(topic, bytes(2_000_000), partition=0)
    transactional.close()
    assert future.succeeded()
    wait_for_marker(broker, topic)
    assert committed(broker, topic) == []


def test_close_when_a_commit_has_begun_then_it_is_committed(
    broker: Broker, topic: str, transactional: Producer
) -> None:
    transactional.begin_transaction()
    transactional.send(topic, b"value", partition=0)
    with pytest.raises(kafka.errors.KafkaTimeoutError):
        transactional.commit_transaction(0)
    for end in (transactional.commit_transaction, transactional.abort_transaction):
        with pytest.raises(kafka.errors.KafkaError, match="Invalid transition"):
            end()
    transactional.close()
    wait_for_marker(broker, topic)
    assert committed(broker, topic) == [b"value"]


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
