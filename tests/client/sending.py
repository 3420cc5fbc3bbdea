"""Records of several compression ratios, sent through one producer, and what must have come of them."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

import kafkafmt as kf
from client.cluster import LIMIT, Cluster, Record, records_of
from kafkafmt.net import Producer

ANSWER_SECONDS = 60
# Of now: a broker that restarts forgets producers whose last record is older than a day (producer.id.expiration.ms).
START_MS = time.time_ns() // 1_000_000


def hex_digits(number: int) -> bytes:
    """Half of it is information."""
    return random.Random(number).randbytes(100).hex().encode()


def json_text(number: int) -> bytes:
    chance = random.Random(number)
    action = chance.choice(["view", "click", "buy"])
    event = {"user": chance.randrange(1000), "action": action, "page": "/products/shoes", "campaign": None}
    return json.dumps(
        {**event, "session": {"browser": "firefox", "country": "NL", "tests": ["a", "b", "c"]}}
    ).encode()


def zeros(number: int) -> bytes:
    return bytes(200)


IDEMPOTENT: Mapping[str, Any] = {"enable_idempotence": True}
NOT_IDEMPOTENT: Mapping[str, Any] = {
    "enable_idempotence": False,
    "max_in_flight_requests_per_connection": 1,
    "acks": "all",
}
GUARANTEES = pytest.mark.parametrize(
    "guarantee", [IDEMPOTENT, NOT_IDEMPOTENT], ids=["idempotent", "not-idempotent"]
)
KINDS: dict[str, Callable[[int], bytes]] = {"hex": hex_digits, "json": json_text, "zeros": zeros}


@contextmanager
def sending(cluster: Cluster, **options: Any) -> Iterator[Sent]:
    """Through a producer of batches too large, that learns as fast as it can, and so errs as often as it can."""
    defaults = {
        "batch_size": 2 * LIMIT,
        "linger_ms": 20,
        "estimator": kf.CompressionRatioEstimator(improving_step=1.0),
        "reconnect_backoff_max_ms": 200,
    }
    producer = Producer(bootstrap_servers=cluster.bootstrap, **{**defaults, **options})
    try:
        yield Sent(producer)
    finally:
        producer.close(ANSWER_SECONDS)


class Sent:
    """What went into a producer: the records of each partition as they must be read back, and their futures."""

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        self.records: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.futures: dict[tuple[str, int], list[Any]] = defaultdict(list)

    def send(self, topic: str, value: bytes, partition: int = 0) -> Any:
        """Returns the future, too."""
        offset = len(self.records[topic, partition])
        future = self.send_in_vain(topic, value, partition)
        self.records[topic, partition].append(_record(offset, value))
        self.futures[topic, partition].append(future)
        return future

    def send_in_vain(self, topic: str, value: bytes, partition: int = 0) -> Any:
        """Send what must not arrive; returns the future."""
        _, timestamp, key, _, headers = _record(len(self.records[topic, partition]), value)
        return self.producer.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp
        )

    def flush(self) -> None:
        """Every future is done then."""
        self.producer.flush(ANSWER_SECONDS)
        assert all(future.is_done for futures in self.futures.values() for future in futures)

    def metric(self, name: str) -> float:
        return float(self.producer.metrics()["producer-metrics"][name])

    def assert_arrived(self, cluster: Cluster, limit: int | None = None) -> None:
        """Each once, in order, where its future says; by two readers. No batch is larger than `limit`."""
        for (topic, partition), records in self.records.items():
            batches = cluster.batches(topic, partition)
            assert [record for batch in batches for record in records_of(batch)] == records
            assert cluster.consume(topic, partition) == records
            assert limit is None or max(batch.size_in_bytes for batch in batches) <= limit
            told = [future.get(ANSWER_SECONDS) for future in self.futures[topic, partition]]
            assert [metadata.offset for metadata in told] == [record.offset for record in records]

    def assert_arrived_at_least_once(self, cluster: Cluster) -> None:
        """In order, but that batches may be there again, whole and right behind themselves."""
        for (topic, partition), records in self.records.items():
            batches = [
                [_without_offset(record) for record in records_of(batch)]
                for batch in cluster.batches(topic, partition)
            ]
            once = [record for batch, _ in groupby(batches) for record in batch]
            assert once == [_without_offset(record) for record in records]
            assert all(future.get(ANSWER_SECONDS) for future in self.futures[topic, partition])


@contextmanager
def expiring(producer: Producer, delivery_timeout_ms: float) -> Iterator[None]:
    """Records that are sent within expire that soon; all others have two minutes, as long as any machine stops."""
    records = producer._record_accumulator
    before = records.options
    records.options = replace(before, delivery_timeout_ms=delivery_timeout_ms)
    try:
        yield
    finally:
        records.options = before


def assert_sequences_continue(batches: list[kf.RecordBatch], expected: int = 0) -> None:
    """From that number on, under one producer id and epoch."""
    assert len({(batch.producer_id, batch.producer_epoch) for batch in batches}) == 1
    for batch in batches:
        assert batch.base_sequence == expected
        expected = (expected + batch.count) % 2**31


def _record(offset: int, value: bytes) -> Record:
    return Record(
        offset=offset,
        timestamp=START_MS + 3 * (offset % 7),
        key=b"key-%d" % offset if offset % 5 else None,
        value=value,
        headers=[("n", b"%d" % offset), ("n", b"")] if offset % 3 == 0 else [],
    )


def _without_offset(record: Record) -> Record:
    return record._replace(offset=-1)
