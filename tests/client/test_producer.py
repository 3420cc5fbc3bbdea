"""`kafkafmt.net.Producer` is kafka-python's KafkaProducer to those who use it: the same calls come to the same."""

from __future__ import annotations

import gc
import json
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kafka.errors
import kafka.partitioner
import kafka.serializer
import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaProducer
from kafka.producer.future import RecordMetadata

import kafkafmt as kf
from broker.broker import Broker
from kafkafmt.log import LogDirectory
from kafkafmt.net import (
    BufferExhaustedError,
    Producer,
    ProducerClosedError,
    RecordTooLargeError,
    UndeliveredError,
)

pytestmark = pytest.mark.broker

SECONDS = 60
QUEUED_MS = 50
SMALL = 5000
COMMIT, ABORT = b"\0\0\0\1", b"\0\0\0\0"  # version and type, the keys of markers


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of two partitions."""
    name = f"net-{uuid.uuid4().hex}"
    broker.create_topic(name, 2)
    return name


@pytest.fixture
def small_topic(broker: Broker) -> str:
    """A topic whose batches have at most `SMALL` bytes."""
    name = f"net-{uuid.uuid4().hex}"
    broker.create_topic(name, config={"max.message.bytes": SMALL})
    return name


@pytest.fixture
def producer(broker: Broker) -> Iterator[Producer]:
    with Producer(bootstrap_servers=broker.bootstrap) as running:
        yield running


@contextmanager
def both(broker: Broker, **options: Any) -> Iterator[list[KafkaProducer]]:
    """Ours and kafka-python's, with the same options."""
    with (
        Producer(bootstrap_servers=broker.bootstrap, **options) as ours,
        KafkaProducer(bootstrap_servers=broker.bootstrap, **options) as theirs,
    ):
        yield [ours, theirs]


def stored(broker: Broker, topic: str, partition: int = 0) -> list[kf.Record]:
    """The records of a partition, as they lie in its log."""
    return list(LogDirectory(broker.log_dir).partition((topic, partition)).records())


# Records


def test_send_returns_a_future_of_the_same_metadata(broker: Broker, topic: str) -> None:
    found = []
    with both(broker) as producers:
        for producer in producers:
            sent = producer.send(topic, b"value", key=b"key", partition=1, timestamp_ms=1_700_000_000_000)
            found.append(sent.get(SECONDS))
    ours, theirs = found
    assert type(ours) is type(theirs) is RecordMetadata
    assert ours._replace(offset=1) == theirs


def test_offset_is_not_known_when_brokers_do_not_answer(broker: Broker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, acks=0, enable_idempotence=False) as producer:
        assert producer.send(topic, b"value").get(SECONDS).offset == -1


def test_records_arrive_with_all_that_they_were_sent_with(
    broker: Broker, topic: str, producer: Producer
) -> None:
    headers = [("trace", b"1"), ("trace", b"")]
    producer.send(topic, bytearray(b"value"), memoryview(b"key"), headers, 0, 1_700_000_000_000)
    producer.send(topic, key=b"tombstone", partition=0, timestamp_ms=-1)
    producer.flush(SECONDS)
    assert [(r.timestamp, r.key, r.value, r.headers) for r in stored(broker, topic)] == [
        (1_700_000_000_000, b"key", b"value", headers),
        (-1, b"tombstone", None, []),
    ]


def test_serializers_are_called_as_kafka_python_calls_them(broker: Broker, topic: str) -> None:
    class Tagged(kafka.serializer.Serializer):  # type: ignore[misc]
        def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
            return json.dumps([topic, headers, data]).encode()

    with both(broker, key_serializer=Tagged(), value_serializer=Tagged()) as producers:
        for producer in producers:
            producer.send(topic, {"a": 1}, "k", partition=0).get(SECONDS)
    ours, theirs = stored(broker, topic)
    assert (ours.key, ours.value) == (theirs.key, theirs.value)


def test_keys_go_to_the_same_partitions(broker: Broker, topic: str) -> None:
    with both(broker) as producers:
        chosen = [
            [producer.send(topic, b"", key=b"%d" % key).get(SECONDS).partition for key in range(20)]
            for producer in producers
        ]
    assert chosen[0] == chosen[1]
    assert set(chosen[0]) == {0, 1}


def test_a_custom_partitioner_decides(broker: Broker, topic: str) -> None:
    class Last(kafka.partitioner.Partitioner):  # type: ignore[misc]
        def partition(self, topic: str, *args: Any) -> int:
            return max(args[-1].partitions_for_topic(topic))

    with Producer(bootstrap_servers=broker.bootstrap, partitioner=Last()) as producer:
        assert producer.send(topic, b"value").get(SECONDS).partition == 1


def test_the_sticky_partitioner_changes_partition_when_a_batch_is_begun(broker: Broker, topic: str) -> None:
    options = {"partitioner": kafka.partitioner.StickyPartitioner(), "linger_ms": 60_000, "batch_size": 1000}
    with Producer(bootstrap_servers=broker.bootstrap, **options) as producer:
        sent = [producer.send(topic, b"v" * 300) for _ in range(12)]
        producer.flush(SECONDS)
    places = [future.get(0).partition for future in sent]
    changes = [k for k in range(1, 12) if places[k] != places[k - 1]]
    assert changes == [3, 6, 9]


def test_columns_are_sent_as_records(broker: Broker, topic: str, producer: Producer) -> None:
    count = 1000
    values = pa.array([b"value %d" % k for k in range(count)])
    future = producer.send_columns(topic, np.arange(count), pa.array([b"k"] * count), values, partition=1)
    assert future.get(SECONDS).tolist() == list(range(count))
    assert [(r.timestamp, r.value) for r in stored(broker, topic, 1)] == list(enumerate(values.to_pylist()))


@pytest.mark.parametrize("options", [{}, {"value_serializer": bytes.upper}], ids=["bytes", "serialized"])
def test_many_are_sent_as_one_by_one(broker: Broker, topic: str, options: dict[str, Any]) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, batch_size=1000, **options) as producer:
        values = [b"VALUE %d" % number for number in range(500)]
        keys = [b"%d" % (number % 20) for number in range(500)]
        headers = [[("h", b"%d" % number)] for number in range(500)]
        future = producer.send_many(topic, values, keys, headers, list(range(500)))
        offsets = future.get(SECONDS)
        alone = [producer.send(topic, b"", key=key).get(SECONDS).partition for key in keys[:20]]
    assert len(future) == 500
    for number in range(500):
        partition = alone[number % 20]
        record = stored(broker, topic, partition)[offsets[number]] if number % 50 == 0 else None
        if record is not None:
            assert (record.value, record.key, record.headers, record.timestamp) == (
                values[number],
                keys[number],
                headers[number],
                number,
            )
    assert sum(len(stored(broker, topic, partition)) for partition in range(2)) == 520


def test_many_of_which_one_cannot_be_sent_have_a_future_of_those_before_it(
    topic: str, producer: Producer
) -> None:
    with pytest.raises(TypeError, match="value") as raised:
        producer.send_many(topic, [b"a", b"b", "text", b"c"], partition=1)
    appended = raised.value.appended  # type: ignore[attr-defined]
    assert appended.get(SECONDS).tolist() == [0, 1]
    with pytest.raises(ValueError, match="keys: expected 1"):
        producer.send_many(topic, [b"a"], [])


def test_many_to_a_topic_that_does_not_exist_time_out(broker: Broker) -> None:
    with (
        Producer(bootstrap_servers=broker.bootstrap, max_block_ms=200) as producer,
        pytest.raises(kafka.errors.KafkaTimeoutError, match="net-absent: not found") as raised,
    ):
        producer.send_many("net-absent", [b"value"])
    assert len(raised.value.appended) == 0


def test_many_of_which_some_are_too_large_for_the_topic_have_the_errors_of_these(
    small_topic: str, producer: Producer
) -> None:
    values = [bytes(2 * SMALL) if number in (3, 7) else b"small" for number in range(10)]
    future = producer.send_many(small_topic, values)
    with pytest.raises(RecordTooLargeError):
        future.get(SECONDS)
    offsets, errors = future.outcome(SECONDS)
    assert sorted(errors) == [3, 7]
    assert [offset for number, offset in enumerate(offsets) if number not in errors] == list(range(8))


def test_many_in_a_transaction_are_committed_with_it(broker: Broker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        future = producer.send_many(topic, [b"a", b"b"], partition=0)
        producer.commit_transaction()
        assert future.get(SECONDS).tolist() == [0, 1]
        with pytest.raises(kafka.errors.IllegalStateError):
            producer.send_many(topic, [b"outside"])


def test_records_of_many_threads_arrive_once_and_each_threads_in_order(broker: Broker, topic: str) -> None:
    options = {"batch_size": 1000, "buffer_memory": 20_000, "compression_type": "lz4"}
    with Producer(bootstrap_servers=broker.bootstrap, **options) as producer:

        def send(name: int) -> None:
            for number in range(500):
                producer.send(topic, b"%d" % number, key=b"%d" % name, partition=name % 2)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    found: dict[int, list[int]] = {name: [] for name in range(4)}
    for partition in range(2):
        for record in stored(broker, topic, partition):
            found[int(record.key or b"")].append(int(record.value or b""))
    assert found == {name: list(range(500)) for name in range(4)}


# Futures


def test_callbacks_get_the_metadata_and_errbacks_the_error(small_topic: str, producer: Producer) -> None:
    called: dict[str, Any] = {}
    done = threading.Event()

    def note(name: str, found: Any) -> None:
        called[name] = found
        if len(called) == 2:
            done.set()

    good = producer.send(small_topic, b"value").add_callback(note, "good").add_errback(note, "never")
    huge = producer.send(small_topic, b"v" * 2 * SMALL)
    huge.add_errback(note, "huge").add_callback(note, "never")
    assert done.wait(SECONDS)
    assert called["good"] == good.value
    assert called["huge"] is huge.exception
    assert (good.succeeded(), good.failed(), huge.succeeded(), huge.failed()) == (True, False, False, True)


def test_a_callback_that_fails_does_not_keep_others_from_being_called(topic: str, producer: Producer) -> None:
    done = threading.Event()
    future = producer.send(topic, b"value")
    future.add_callback(lambda _: 1 / 0)
    future.add_callback(lambda _: done.set())
    assert done.wait(SECONDS)


def test_get_without_an_answer_in_time_raises_kafka_pythons_error(broker: Broker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=60_000) as producer:
        future = producer.send(topic, b"value")
        with pytest.raises(kafka.errors.KafkaTimeoutError):
            future.get(0.01)
        assert not future.is_done


# What cannot be sent


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, ValueError),
        ({"value": "text"}, TypeError),
        ({"value": b"", "key": 1}, TypeError),
        ({"value": b"", "headers": (("a", b""),)}, TypeError),
        ({"value": b"", "headers": [(b"a", b"")]}, TypeError),
        ({"value": b"", "partition": 2}, ValueError),
        ({"value": b"", "partition": -1}, ValueError),
        ({"value": b"v" * 1_048_576}, kafka.errors.MessageSizeTooLargeError),
    ],
)
def test_what_kafka_python_refuses_is_refused(
    broker: Broker, topic: str, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with both(broker) as producers:
        for producer in producers:
            with pytest.raises(error):
                producer.send(topic, **arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"compression_type": "brotli"},
        {"acks": 1, "enable_idempotence": True},
        {"delivery_timeout_ms": 10, "linger_ms": 20},
    ],
)
def test_options_that_kafka_python_refuses_are_refused_alike(broker: Broker, options: dict[str, Any]) -> None:
    messages = []
    for producer in (Producer, KafkaProducer):
        with pytest.raises((ValueError, kafka.errors.KafkaConfigurationError)) as raised:
            producer(bootstrap_servers=broker.bootstrap, **options)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer_memory": 0}, "buffer_memory: expected 1 or more, found 0"),
        ({"batch_size": -1}, "batch_size: expected 0 or more, found -1"),
        ({"acks": "1"}, "acks: expected 0, 1, -1 or 'all', found '1'"),
        ({"linger_ms": "5"}, "linger_ms: expected a number, found '5'"),
        ({"estimator": 0.5}, "estimator: expected one of recent, kip126, or an object with the methods"),
        ({"estimator": "kip-126"}, "estimator: expected one of recent, kip126, found 'kip-126'"),
        ({"compression_type": "zstd", "compression_level": 100}, "zstd level must be -7 to 22, not 100"),
        ({"compression_type": "zstd", "compression_level": "3"}, "level: expected an int, found str"),
    ],
)
def test_bad_options_of_its_own_are_refused_before_anything_is_connected(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Producer(bootstrap_servers="127.0.0.1:1", **options)


def test_a_broker_of_older_formats_is_refused(broker: Broker) -> None:
    with pytest.raises(
        kafka.errors.UnsupportedVersionError, match=r"broker of 0\.11 or later, found 0\.10\.2"
    ):
        Producer(bootstrap_servers=broker.bootstrap, api_version=(0, 10, 2))


def test_a_topic_that_does_not_exist_times_out_and_is_named(broker: Broker) -> None:
    with (
        Producer(bootstrap_servers=broker.bootstrap, max_block_ms=200) as producer,
        pytest.raises(kafka.errors.KafkaTimeoutError, match=r"net-absent: not found within 0\.2 s"),
    ):
        producer.send("net-absent", b"value")


def test_a_record_larger_than_a_request_may_be_is_refused_with_its_size_and_the_limit(
    topic: str, producer: Producer
) -> None:
    with pytest.raises(RecordTooLargeError) as raised:
        producer.send(topic, bytes(1_048_576))
    assert str(raised.value) == (
        f"{topic}: a record of 1048664 bytes before compression: expected at most 1048576 (max_request_size)"
    )


def test_a_full_accumulator_says_how_much_is_held_after_max_block_ms(broker: Broker, topic: str) -> None:
    options = {"buffer_memory": 100_000, "linger_ms": 60_000, "batch_size": 200_000}
    with Producer(bootstrap_servers=broker.bootstrap, **options) as producer:
        # Nothing is sent to make room.
        producer._record_accumulator.muted.add(kf.TopicPartition(topic, 0))
        for _ in range(9):
            producer.send(topic, b"v" * 10_000, partition=0)
        producer._max_block_ms = 300  # now that it knows the topic
        message = r"no room after 300 ms: 1 batches .* hold \d+ of 100000 bytes \(buffer_memory\)"
        with pytest.raises(BufferExhaustedError, match=message) as raised:
            producer.send(topic, b"v" * 10_000, partition=0)
        assert isinstance(raised.value, kafka.errors.KafkaTimeoutError)
        producer._record_accumulator.muted.clear()


def wait_until_idle(producer: Producer) -> None:
    """Return once the sender has done all that was to do before this call, and sleeps."""
    done = threading.Event()
    producer._io.call_soon(done.set)
    assert done.wait(SECONDS)


def test_a_caller_that_waits_for_memory_has_what_lingers_sent_at_once(broker: Broker, topic: str) -> None:
    options = {"buffer_memory": 5000, "linger_ms": 60_000, "max_block_ms": SECONDS * 1000}
    with Producer(bootstrap_servers=broker.bootstrap, **options) as producer:
        producer.send(topic, b"value", partition=0)
        producer.flush(SECONDS)
        lingering = producer.send(topic, b"value", partition=0)
        wait_until_idle(producer)
        assert not lingering.is_done
        producer.send(topic, b"value", partition=1)  # for which there is no room until that is gone
        assert lingering.get(SECONDS).offset == 1


# Too large for the topic


@pytest.mark.parametrize("options", [{}, {"topic_limits": False}], ids=["asked", "refused"])
@pytest.mark.parametrize("idempotence", [True, False], ids=["idempotent", "plain"])
def test_a_record_too_large_fails_alone_and_the_others_go_on(
    broker: Broker, small_topic: str, idempotence: bool, options: dict[str, Any]
) -> None:
    options = {**options, "enable_idempotence": idempotence, "linger_ms": 50}
    with Producer(bootstrap_servers=broker.bootstrap, batch_size=4000, **options) as producer:
        sent = [producer.send(small_topic, b"v" * (9000 if k == 3 else 1000)) for k in range(8)]
        producer.flush(SECONDS)
        assert isinstance(sent[3].exception, RecordTooLargeError)
        assert isinstance(sent[3].exception, kafka.errors.MessageSizeTooLargeError)
        assert "9072 bytes" in str(sent[3].exception)
        assert [future.get(0).offset for k, future in enumerate(sent) if k != 3] == list(range(7))
        assert producer.send(small_topic, b"after").get(SECONDS).offset == 7


def test_batches_are_split_before_they_are_sent_by_what_the_broker_tells(
    broker: Broker, small_topic: str
) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, batch_size=50_000, linger_ms=60_000) as producer:
        sent = [producer.send(small_topic, b"v" * 900) for k in range(40)]
        producer.flush(SECONDS)
        shown = producer.metrics()["producer-metrics"]
    assert [future.get(0).offset for future in sent] == list(range(40))
    assert (shown["batch-split-total"], shown["batch-refused-total"]) == (1, 0)


def test_the_limits_of_topics_are_not_asked_for_where_they_are_not_wanted(
    broker: Broker, small_topic: str
) -> None:
    options = {"batch_size": 20_000, "linger_ms": 60_000, "topic_limits": False}
    # So no part is sent again.
    options |= {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1}
    with Producer(bootstrap_servers=broker.bootstrap, **options) as producer:
        sent = [producer.send(small_topic, b"v" * 900) for k in range(20)]
        producer.flush(SECONDS)
        shown = producer.metrics()["producer-metrics"]
    assert [future.get(0).offset for future in sent] == list(range(20))
    assert shown["batch-refused-total"] >= 1
    assert shown["record-retry-rate"] == 0


# Transactions


def test_what_a_transaction_commits_is_there_and_what_it_aborts_is_marked(broker: Broker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for value, end in (
            (b"committed", producer.commit_transaction),
            (b"aborted", producer.abort_transaction),
            (b"committed too", producer.commit_transaction),
        ):
            producer.begin_transaction()
            producer.send(topic, value, partition=0).get(SECONDS)
            end()
    batches = list(LogDirectory(broker.log_dir).partition((topic, 0)).batches())
    assert [
        (batch.is_transactional, batch.base_sequence, [r.value for r in batch])
        for batch in batches
        if not batch.is_control
    ] == [(True, 0, [b"committed"]), (True, 1, [b"aborted"]), (True, 2, [b"committed too"])]
    # The marker of the last one comes when the broker gets to it.
    markers = [record.key for batch in batches if batch.is_control for record in batch]
    assert markers[:2] == [COMMIT, ABORT]


def test_aborting_a_transaction_fails_what_was_not_sent(broker: Broker, topic: str) -> None:
    options = {"transactional_id": topic, "linger_ms": 60_000}
    with Producer(bootstrap_servers=broker.bootstrap, **options) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        future = producer.send(topic, b"aborted", partition=0)
        producer.abort_transaction()
        assert isinstance(future.exception, kafka.errors.TransactionAbortedError)
        producer.begin_transaction()
        producer.send(topic, b"committed", partition=0)
        producer.commit_transaction()
    values = [record.value for record in stored(broker, topic)]
    assert b"aborted" not in values
    assert b"committed" in values


def test_a_transaction_is_not_committed_without_a_record_that_was_too_large(
    broker: Broker, small_topic: str
) -> None:
    """The record is found too large before it is sent: no broker tells of it."""
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=small_topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(small_topic, b"before")
        too_large = producer.send(small_topic, bytes(2 * SMALL))
        with pytest.raises(RecordTooLargeError):
            producer.commit_transaction()
        assert isinstance(too_large.exception, RecordTooLargeError)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(small_topic, b"after").get(SECONDS)
        producer.commit_transaction()


def test_linger_holds_again_after_a_transaction_was_committed(broker: Broker, topic: str) -> None:
    options = {"transactional_id": topic, "linger_ms": 60_000}
    with Producer(bootstrap_servers=broker.bootstrap, **options) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"value", partition=0)
        producer.commit_transaction()
        producer.begin_transaction()
        lingering = producer.send(topic, b"value", partition=0)
        with pytest.raises(kafka.errors.KafkaTimeoutError):
            lingering.get(0.3)
        producer.abort_transaction()


def test_a_record_outside_of_a_transaction_is_refused(broker: Broker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        with pytest.raises(kafka.errors.IllegalStateError):
            producer.send(topic, b"value")


# Ends


def test_flush_returns_when_all_is_delivered_whatever_lingers(broker: Broker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=60_000) as producer:
        sent = [producer.send(topic, b"value") for _ in range(10)]
        assert not any(future.is_done for future in sent)
        producer.flush(SECONDS)
        assert all(future.succeeded() for future in sent)


def test_close_delivers_what_waits(broker: Broker, topic: str) -> None:
    producer = Producer(bootstrap_servers=broker.bootstrap, linger_ms=60_000)
    future = producer.send(topic, b"value")
    producer.close(SECONDS)
    assert future.succeeded()
    assert not producer._io.is_alive
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.send(topic, b"value")


def test_close_says_what_was_not_delivered_in_time(broker: Broker, topic: str) -> None:
    producer = Producer(bootstrap_servers=broker.bootstrap, linger_ms=60_000)
    sent = [producer.send(topic, b"value", partition=k % 2) for k in range(3)]
    with pytest.raises(UndeliveredError, match="3 record") as raised:
        producer.close(0)
    assert raised.value.undelivered == {kf.TopicPartition(topic, 0): 2, kf.TopicPartition(topic, 1): 1}
    assert all(isinstance(future.exception, kafka.errors.IllegalStateError) for future in sent)
    assert not producer._io.is_alive


@pytest.mark.usefixtures("interrupts")
def test_close_when_interrupted_then_gives_up_what_is_not_delivered(broker: Broker, topic: str) -> None:
    producer = Producer(bootstrap_servers=broker.bootstrap)
    partition = kf.TopicPartition(topic, 0)
    producer._record_accumulator.muted.add(partition)  # nothing is delivered
    future = producer.send(topic, b"value", partition=0)

    def interrupt() -> None:
        while not producer._record_accumulator.flush_in_progress:
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    interrupter.join()
    with pytest.raises(kafka.errors.IllegalStateError):
        future.get(SECONDS)


def test_flush_in_a_callback_is_refused_and_does_not_wait_for_itself(topic: str, producer: Producer) -> None:
    errors: queue.Queue[Exception] = queue.Queue()

    def flush(_: RecordMetadata) -> None:
        try:
            producer.flush()
        except kafka.errors.IllegalStateError as error:
            errors.put(error)

    producer.send(topic, b"value").add_callback(flush)
    assert "callback" in str(errors.get(timeout=SECONDS))
    producer.send(topic, b"value").get(SECONDS)


def test_close_in_a_callback_does_not_wait_for_itself(broker: Broker, topic: str) -> None:
    producer = Producer(bootstrap_servers=broker.bootstrap)
    closed = threading.Event()

    def close(_: object) -> None:
        producer.close()
        closed.set()

    producer.send(topic, b"value").add_callback(close)
    assert closed.wait(SECONDS)
    producer._io.join(SECONDS)
    assert not producer._io.is_alive


def test_a_producer_that_nobody_holds_is_closed(broker: Broker, topic: str) -> None:
    producer = Producer(bootstrap_servers=broker.bootstrap)
    producer.send(topic, b"value").get(SECONDS)
    io, reference = producer._io, weakref.ref(producer)
    del producer
    gc.collect()
    assert reference() is None
    io.join(SECONDS)
    assert not io.is_alive


def test_a_program_that_ends_without_close_ends_quietly_and_delivers(broker: Broker, topic: str) -> None:
    program = f"""
from kafkafmt.net import Producer
producer = Producer(bootstrap_servers={broker.bootstrap!r}, linger_ms=60_000)
producer.send({topic!r}, b"value", partition=0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert [record.value for record in stored(broker, topic)] == [b"value"]


# Metrics


@pytest.mark.parametrize(
    "name",
    [
        "batch-split-rate",
        "batch-split-total",
        "buffer-available-bytes",
        "buffer-total-bytes",
        "bufferpool-wait-time-ns-total",
        "compression-rate-avg",
        "record-queue-time-avg",
        "record-queue-time-max",
        "records-per-request-avg",
        "waiting-threads",
    ],
)
def test_metrics_have_kafkas_names(producer: Producer, name: str) -> None:
    assert name in producer.metrics()["producer-metrics"]


def test_metrics_have_all_names_of_kafka_python(broker: Broker, topic: str) -> None:
    shown = []
    with both(broker, client_id="named") as producers:
        for producer in producers:
            producer.send(topic, b"value", partition=0).get(SECONDS)
            groups = producer.metrics()
            assert 0 <= groups["producer-metrics"]["metadata-age"] < SECONDS
            shown.append(
                {
                    (group, name)
                    for group, names in groups.items()
                    for name in names
                    if "node" not in group  # which brokers are connected differs
                }
            )
    ours, theirs = shown
    assert theirs <= ours


def test_metrics_tell_what_was_sent(broker: Broker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=60_000, compression_type="lz4") as producer:
        for _ in range(10):
            producer.send(topic, b"v" * 100, partition=0)
        time.sleep(QUEUED_MS / 1000)
        producer.flush(SECONDS)
        shown = producer.metrics()["producer-metrics"]
    assert shown["records-per-request-avg"] == 10
    assert shown["compression-rate-avg"] < 0.5
    assert shown["record-queue-time-max"] >= QUEUED_MS
    assert shown["buffer-available-bytes"] == shown["buffer-total-bytes"] == 32 * 1024 * 1024


def test_without_metrics_it_sends_all_the_same(broker: Broker, topic: str) -> None:
    with Producer(bootstrap_servers=broker.bootstrap, metrics_enabled=False) as producer:
        assert producer.send(topic, b"value").get(SECONDS).offset == 0
        assert producer.metrics() is None
