"""Records of a `send` that waits for memory while another thread ends its transaction (KIP-98)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import kafka.errors
import pyarrow as pa
import pytest

from _kafkafmt.batches.scan import scan
from client.cluster import Cluster
from client.sending import ANSWER_SECONDS, START_MS
from kafkafmt import MemoryBudget, RecordBatchBuilder
from kafkafmt.net import Producer, RawProducer

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("net")]

TOTAL = 64 * 1024
LATE = b"late" * 1024


def send(producer: Producer, topic: str) -> None:
    producer.send(topic, LATE, partition=0)


def send_many(producer: Producer, topic: str) -> None:
    producer.send_many(topic, [LATE, LATE], partition=0)


def send_columns(producer: Producer, topic: str) -> None:
    producer.send_columns(topic, pa.array([START_MS]), None, pa.array([LATE]), partition=0)


def send_run(producer: RawProducer, topic: str) -> None:
    producer.send_run(topic, scan(batch_of(LATE))[0], partition=0)


def batch_of(value: bytes) -> bytes:
    builder = RecordBatchBuilder()
    builder.append(START_MS, None, value)
    return builder.build()


def send_one(producer: Any, topic: str, value: bytes) -> Any:
    return producer.send(topic, batch_of(value) if isinstance(producer, RawProducer) else value, partition=0)


WAYS = pytest.mark.parametrize(
    ("producer_type", "way"),
    [(Producer, send), (Producer, send_many), (Producer, send_columns), (RawProducer, send_run)],
    ids=["send", "send_many", "send_columns", "send_run"],
)


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
@WAYS
def test_send_when_its_transaction_ends_while_it_waits_then_raises_and_the_next_one_lacks_the_record(
    cluster: Cluster, topic: str, producer_type: Any, way: Callable[[Any, str], None], end: str
) -> None:
    budget = MemoryBudget(TOTAL)
    waits = threading.Event()
    budget.on_pressure(lambda _: waits.set())
    with producer_type(
        bootstrap_servers=cluster.bootstrap,
        transactional_id=f"{topic}-{end}",
        budget=budget,
        buffer_memory=TOTAL,
        max_block_ms=ANSWER_SECONDS * 1000,
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        send_one(producer, topic, b"first").get(ANSWER_SECONDS)
        errors: list[Exception] = []

        def send_late() -> None:
            try:
                way(producer, topic)
            except Exception as error:
                errors.append(error)

        with budget.reserve(TOTAL, ANSWER_SECONDS):
            sender = threading.Thread(target=send_late)
            sender.start()
            assert waits.wait(ANSWER_SECONDS), errors
            getattr(producer, end)(ANSWER_SECONDS)
            producer.begin_transaction()
        sender.join(ANSWER_SECONDS)
        send_one(producer, topic, b"next")
        producer.commit_transaction(ANSWER_SECONDS)
        assert budget.held_bytes == 0
    (error,) = errors
    assert isinstance(error, kafka.errors.IllegalStateError)
    assert "the transaction in which it was called has ended" in str(error)
    committed = [record.value for record in cluster.consume(topic, isolation="read_committed")]
    assert committed == ([b"first", b"next"] if end == "commit_transaction" else [b"next"])
