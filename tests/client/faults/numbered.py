"""Numbered records that are sent to one partition, each with its future, and what must have come of them.

Everything here uses public names only: it holds for whatever makes the connections.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.errors import KafkaError

import kafkafmt as kf
from client.raw_reading import READ_SECONDS
from client.sending import IDEMPOTENT, NOT_IDEMPOTENT
from kafkafmt.net import Producer, RawConsumer, RawProducer

DELIVERY_SECONDS = 60  # on a machine that does much else
CLOSE_SECONDS = 0.2  # the timeout of `close`
RETURN_SECONDS = CLOSE_SECONDS + 5  # by then it has returned, on a machine that does much else
# Everything is tried again as soon as it can be.
PROMPT: Mapping[str, Any] = {
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 20,
    "retry_backoff_ms": 5,
}
KINDS: Mapping[str, tuple[type[Producer], Mapping[str, Any]]] = {
    "idempotent": (Producer, IDEMPOTENT),
    "not-idempotent": (Producer, NOT_IDEMPOTENT),
    "raw": (RawProducer, IDEMPOTENT),
}
PRODUCERS = pytest.mark.parametrize(("client", "guarantee"), KINDS.values(), ids=KINDS)


class Numbered:
    """The records 0, 1, 2, ... of a partition. `size`: of their values."""

    def __init__(self, producer: Any, topic: str, partition: int = 0, *, size: int = 8) -> None:
        self.producer = producer
        self.topic, self.partition, self.size = topic, partition, size
        self.futures: list[Any] = []

    def send(self, count: int = 1) -> list[Any]:
        """Returns their futures, too."""
        begun = len(self.futures)
        for number in range(begun, begun + count):
            value = (b"%08d" % number).ljust(self.size)
            if isinstance(self.producer, RawProducer):
                value = batch_of(value)
            self.futures.append(self.producer.send(self.topic, value, partition=self.partition))
        return self.futures[begun:]

    def flush(self) -> None:
        """Every record was delivered then."""
        self.producer.flush(DELIVERY_SECONDS)
        assert all(future.is_done for future in self.futures)

    def assert_arrived(
        self, batches: Iterable[kf.RecordBatch], guarantee: Mapping[str, Any], first: int = 0
    ) -> None:
        """Each from `first` on is in these batches, in order, where its future says; once, if that is guaranteed."""
        found = numbers_in(batches)
        expected = list(range(first, len(self.futures)))
        if guarantee["enable_idempotence"]:
            assert list(found.values()) == expected
        else:
            assert list(dict.fromkeys(found.values())) == expected
        assert [found[offset_of(future)] for future in self.futures[first:]] == expected


def has_failed(future: Any) -> bool:
    """Whether it is resolved with an error, of which there may be many kinds."""
    if not future.is_done:
        return False
    try:
        future.get(0)
    except KafkaError:
        return True
    return False


def batch_of(value: bytes) -> bytes:
    """Its record is of today: a broker that restarts forgets producers of old ones, and takes their retries again."""
    builder = kf.RecordBatchBuilder()
    builder.append(time.time_ns() // 1_000_000, None, value)
    return bytes(builder.build())


def offset_of(future: Any) -> int:
    """Of the one record of a future of any producer."""
    told = future.get(DELIVERY_SECONDS)
    return int(told.offset if hasattr(told, "offset") else told[0])


def numbers_in(batches: Iterable[kf.RecordBatch]) -> dict[int, int]:
    """The number of each record by its offset, in the order of the batches."""
    return {record.offset: int(record.value or b"") for batch in batches for record in batch}


@contextmanager
def producing(client: type[Producer], bootstrap: str, **options: Any) -> Iterator[Any]:
    """A producer that sends each record at once, and delivers all of them in the end."""
    producer = client(bootstrap_servers=bootstrap, **{"linger_ms": 0, **PROMPT, **options})
    try:
        yield producer
    finally:
        producer.close(DELIVERY_SECONDS)


@contextmanager
def consuming(bootstrap: str, **options: Any) -> Iterator[RawConsumer]:
    """A consumer without a group, that asks for batches one by one."""
    config = {
        "fetch_max_wait_ms": 20,
        "max_partition_fetch_bytes": 1,
        "max_poll_records": 1,
        **PROMPT,
        **options,
    }
    consumer = RawConsumer(bootstrap_servers=bootstrap, **config)
    try:
        yield consumer
    finally:
        consumer.close(autocommit=False)


def poll_numbers(consumer: RawConsumer, timeout_ms: int = 100) -> list[int]:
    """The numbers of the records in what one poll gives."""
    return [
        number
        for records in consumer.poll(timeout_ms).values()
        for record in records
        for number in numbers_in(kf.MemoryRecords(record.value).batches()).values()
    ]


def poll_up_to(consumer: RawConsumer, count: int) -> list[int]:
    """The numbers of the next records, at least that many."""
    found: list[int] = []
    deadline = time.monotonic() + READ_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came: {found[-3:]}"
        found += poll_numbers(consumer)
    return found
