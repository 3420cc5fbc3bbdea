"""Brokers that die, come back, hang or lose their answers, with the producer in the middle of splitting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from client.cluster import LIMIT, Cluster, named_after
from client.sending import (
    ANSWER_SECONDS,
    GUARANTEES,
    IDEMPOTENT,
    Sent,
    assert_sequences_continue,
    expiring,
    hex_digits,
    sending,
    zeros,
)
from kafkafmt.net import Producer

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("net")]

BLOCK_MS = 300
CLOSE_SECONDS = 0.5
MAX_RUNS = 300  # of a sender that waits for 2 s; one that went round and round would come to thousands


def send_both(sent: Sent, topic: str, count: int) -> None:
    """Records that shrink and records that do not, in runs."""
    for number in range(count):
        sent.send(topic, zeros(number) if number // 50 % 2 else hex_digits(number))


@pytest.mark.full
@GUARANTEES
@pytest.mark.parametrize("is_hidden", [False, True], ids=["known", "hidden"])
def test_produce_when_the_broker_is_killed_meanwhile_then_nothing_is_lost(
    cluster: Cluster, topic: str, is_hidden: bool, guarantee: Mapping[str, Any]
) -> None:
    """It took a batch and died before it said so.

    An idempotent producer sends that batch again and the broker knows it; without idempotence it is there twice,
    whole, and so are its parts where it had been split: at least once.
    """
    if is_hidden:
        cluster.hide_config(topic)
    with sending(cluster, compression_type="lz4", **guarantee) as sent:
        send_both(sent, topic, 300)
        sent.flush()
        with cluster.losing_next_produce():
            send_both(sent, topic, 500)
        cluster.kill()
        send_both(sent, topic, 500)
        cluster.start()
        send_both(sent, topic, 300)
        sent.flush()
    batches = cluster.batches(topic)
    assert max(batch.size_in_bytes for batch in batches) <= LIMIT
    if guarantee is IDEMPOTENT:
        sent.assert_arrived(cluster)
        assert_sequences_continue(batches)
    else:
        sent.assert_arrived_at_least_once(cluster)
        assert sum(batch.count for batch in batches) > len(sent.records[topic, 0])


@GUARANTEES
def test_close_when_the_broker_does_not_answer_then_says_what_was_not_delivered(
    cluster: Cluster, topic: str, guarantee: Mapping[str, Any]
) -> None:
    with sending(cluster, **guarantee) as sent:
        delivered = sent.send(topic, zeros(0))
        sent.flush()
        with cluster.frozen():
            lost = [sent.send_in_vain(topic, zeros(number)) for number in range(7)]
            begun = time.monotonic()
            with pytest.raises(KafkaTimeoutError, match=r"not delivered: 7 record"):
                sent.producer.close(CLOSE_SECONDS)
            assert time.monotonic() - begun < ANSWER_SECONDS
        assert delivered.succeeded()
        assert all(future.failed() for future in lost)


def test_close_when_a_transaction_is_open_and_the_broker_does_not_answer_then_ends_after_its_timeout(
    cluster: Cluster, topic: str
) -> None:
    timeouts = {"transaction_timeout_ms": 5000, "request_timeout_ms": 1000, "retry_backoff_ms": 0}
    producer = Producer(bootstrap_servers=cluster.bootstrap, transactional_id=topic, **timeouts)
    producer.init_transactions(ANSWER_SECONDS)
    producer.begin_transaction()
    producer.send(topic, b"value", partition=0).get(ANSWER_SECONDS)
    with cluster.frozen():
        closing = threading.Thread(target=producer.close)
        closing.start()
        closing.join(ANSWER_SECONDS)
        assert not closing.is_alive()


def test_flush_when_the_broker_does_not_answer_in_time_then_says_what_is_not_delivered(
    cluster: Cluster, topic: str
) -> None:
    with sending(cluster) as sent:
        sent.send(topic, zeros(0))
        sent.flush()
        with cluster.frozen():
            sent.send(topic, zeros(1))
            with pytest.raises(KafkaTimeoutError, match=r"1 record"):
                sent.producer.flush(CLOSE_SECONDS)
        sent.flush()
    sent.assert_arrived(cluster, LIMIT)


@GUARANTEES
def test_send_when_memory_is_exhausted_then_blocks_and_says_so(
    cluster: Cluster, topic: str, guarantee: Mapping[str, Any]
) -> None:
    with sending(cluster, buffer_memory=5 * LIMIT, **guarantee) as sent:
        sent.send(topic, hex_digits(0)).get(ANSWER_SECONDS)
        sent.producer._max_block_ms = BLOCK_MS  # now that it knows the topic
        with cluster.frozen():
            begun = time.monotonic()
            with pytest.raises(KafkaTimeoutError, match=r"\d bytes"):
                send_both(sent, topic, 5 * LIMIT // len(hex_digits(0)))
            assert time.monotonic() - begun >= BLOCK_MS / 1000
        sent.flush()
        sent.send(topic, hex_digits(0))
    sent.assert_arrived(cluster, LIMIT)


@GUARANTEES
def test_send_when_delivery_times_out_then_fails_and_what_follows_arrives(
    cluster: Cluster, topic: str, guarantee: Mapping[str, Any]
) -> None:
    with sending(cluster, linger_ms=0, request_timeout_ms=2000, **guarantee) as sent:
        sent.send_in_vain(topic, zeros(0)).get(ANSWER_SECONDS)
        with cluster.frozen(), expiring(sent.producer, 3000):
            for future in [sent.send_in_vain(topic, zeros(number)) for number in range(5)]:
                with pytest.raises(KafkaTimeoutError, match="since batch creation"):
                    future.get(ANSWER_SECONDS)
        after = [sent.send_in_vain(topic, hex_digits(number)) for number in range(500)]
        offsets = [future.get(ANSWER_SECONDS).offset for future in after]
    # A batch in vain may still reach the log: the frozen broker has read its bytes.
    arrived = {record.offset: record.value for record in cluster.consume(topic)}
    assert [arrived[offset] for offset in offsets] == [hex_digits(number) for number in range(500)]
    assert offsets == sorted(offsets)


@contextmanager
def killed(cluster: Cluster) -> Iterator[None]:
    """The broker is away until the end, when it comes back."""
    cluster.kill()
    try:
        yield
    finally:
        cluster.start()


def count_runs(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Returns a list that grows by an element each time that the sender looks for something to do."""
    runs: list[None] = []
    sender = sent.producer._sender
    look = sender._run

    def counted(now_ms: float) -> float:
        runs.append(None)
        return float(look(now_ms))

    monkeypatch.setattr(sender, "_run", counted)
    return runs


@pytest.mark.full
@pytest.mark.parametrize("away", [Cluster.frozen, killed], ids=["hangs", "is killed"])
@pytest.mark.parametrize("has_id", [True, False], ids=["with a producer id", "without"])
def test_send_when_a_producer_id_is_waited_for_then_records_expire_and_what_follows_arrives(
    cluster: Cluster,
    topic: str,
    has_id: bool,
    away: Callable[[Cluster], AbstractContextManager[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first that expires with an id had numbers, so a new producer id is requested: all others wait for it."""
    timeouts = {"linger_ms": 0, "request_timeout_ms": 900}
    with sending(cluster, **timeouts, **IDEMPOTENT) as sent:
        sent.send_in_vain(topic, zeros(0)).get(ANSWER_SECONDS)
        with away(cluster), expiring(sent.producer, 1000):
            if not has_id:
                sent.producer._transactions.reset_producer_id()
            runs = count_runs(sent, monkeypatch)
            for _ in range(2):
                begun = time.monotonic()
                futures = [sent.send_in_vain(topic, zeros(number)) for number in range(5)]
                for future in futures:
                    with pytest.raises(KafkaTimeoutError, match="delivery_timeout_ms: 1000"):
                        future.get(ANSWER_SECONDS)
                assert time.monotonic() - begun >= 1
            assert len(runs) < MAX_RUNS
        after = [sent.send_in_vain(topic, hex_digits(number)) for number in range(100)]
        offsets = [future.get(ANSWER_SECONDS).offset for future in after]
    last = cluster.consume(topic)[-100:]
    assert [record.value for record in last] == [hex_digits(number) for number in range(100)]
    assert [record.offset for record in last] == offsets


@GUARANTEES
def test_send_when_a_batch_expires_as_it_is_drained_then_the_others_of_its_request_arrive(
    cluster: Cluster, request: pytest.FixtureRequest, guarantee: Mapping[str, Any]
) -> None:
    """The sender finds both at once, when a callback that held it up returns: one is too old by then."""
    topic = cluster.create_topic(named_after(request.node.name), partitions=2)
    with sending(cluster, linger_ms=0, **guarantee) as sent:
        for partition in range(2):
            sent.send_in_vain(topic, zeros(0), partition).get(ANSWER_SECONDS)
        is_held_up, goes_on = threading.Event(), threading.Event()
        first = sent.send_in_vain(topic, zeros(1))
        first.add_callback(lambda _: is_held_up.set() or goes_on.wait(ANSWER_SECONDS))
        assert is_held_up.wait(ANSWER_SECONDS)
        old = sent.send_in_vain(topic, zeros(2))
        old.batch.created_ms -= sent.producer._record_accumulator.options.delivery_timeout_ms
        young = sent.send_in_vain(topic, zeros(3), 1)
        goes_on.set()
        assert young.get(ANSWER_SECONDS).offset == 1
        with pytest.raises(KafkaTimeoutError, match="since batch creation"):
            old.get(ANSWER_SECONDS)
        assert sent.send_in_vain(topic, zeros(4), 1).get(ANSWER_SECONDS).offset == 2


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_metadata_when_an_answer_is_lost_then_has_the_timestamps_of_the_log(
    cluster: Cluster, request: pytest.FixtureRequest, timestamp_type: str
) -> None:
    config = {"message.timestamp.type": timestamp_type}
    topic = cluster.create_topic(named_after(request.node.name), config=config)
    with sending(cluster, linger_ms=60_000, **IDEMPOTENT) as sent:
        sent.send(topic, zeros(0))
        sent.flush()
        with cluster.losing_next_produce():
            futures = [sent.send(topic, zeros(number)) for number in range(1, 8)]  # one batch
            sent.flush()
        told = [future.get(ANSWER_SECONDS) for future in futures]
    found = cluster.consume(topic)[1:]
    assert [(metadata.offset, metadata.timestamp) for metadata in told] == [
        (r.offset, r.timestamp) for r in found
    ]
    assert (len({record.timestamp for record in found}) == 1) == (timestamp_type == "LogAppendTime")
