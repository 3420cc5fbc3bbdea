"""A disk that becomes full within an append: consumers get no batch of a request that is then refused."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from endpoints.fetched import FOREVER_MS, partitions, read
from endpoints.raw_client import RawClient
from endpoints.requests import Wanted, fetch, list_offsets
from endpoints.served import Served
from kafkafmt.log import batch_writer
from kafkafmt.log.appender import create_log
from serve.produced import LEADER, NOW, batch, error_code, produce

PRODUCE, FETCH, LIST_OFFSETS = 9, 12, 7  # versions
NO_ERROR, STORAGE_ERROR = 0, 56
LATEST, MAX_TIMESTAMP, NONE = -1, -3, -1
SECONDS = 60


class FillingDisk:
    """Is full after the first bytes of the next write. The writer learns this once `learns` is set."""

    def __init__(self, first_bytes: int) -> None:
        self.is_full, self.learns = threading.Event(), threading.Event()
        self._left, self._write = [first_bytes], batch_writer.write_all

    def write(self, descriptor: int, data: memoryview, position: int) -> None:
        if not self._left:
            self._write(descriptor, data, position)
            return
        self._write(descriptor, data[: self._left.pop()], position)
        self.is_full.set()
        assert self.learns.wait(SECONDS)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[tuple[RawClient, RawClient]]:
    """A producer and a consumer of an endpoint."""
    create_log(tmp_path / "t-0")
    with (
        Served(tmp_path, allow_produce=True) as served,
        RawClient(served.address) as producer,
        RawClient(served.address) as consumer,
    ):
        yield producer, consumer


def fetched(answer: Any) -> tuple[int, list[int]]:
    """The high watermark, and the offsets of the records."""
    partition = partitions(answer)["t", 0]
    return partition.high_watermark, read(partition)


def listed(client: RawClient, timestamp: int) -> int:
    ((found,),) = [
        one.partitions for one in client.ask(list_offsets(("t", 0, timestamp)), LIST_OFFSETS).topics
    ]
    return int(found.offset)


def test_batches_when_the_disk_is_full_after_the_first_one_then_are_not_seen_at_any_time(
    clients: tuple[RawClient, RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = clients
    assert error_code(producer, produce(batch(1), acks=LEADER), PRODUCE) == NO_ERROR
    assert fetched(consumer.ask(fetch(Wanted("t")), FETCH)) == (1, [0])
    late = batch(2, timestamp=NOW + 1000)
    disk = FillingDisk(len(late))
    monkeypatch.setattr(batch_writer, "write_all", disk.write)
    refused = produce(late + batch(3), acks=LEADER)
    sent = producer.send(refused, PRODUCE)
    assert disk.is_full.wait(SECONDS)
    try:
        assert fetched(consumer.ask(fetch(Wanted("t", 0, 1)), FETCH)) == (1, [])
        assert [listed(consumer, one) for one in (LATEST, MAX_TIMESTAMP, NOW + 1)] == [1, 0, NONE]
        waiting = fetch(Wanted("t", 0, 1), max_wait_ms=FOREVER_MS)
        asked = consumer.send(waiting, FETCH)
    finally:
        disk.learns.set()
    (answer,) = producer.receive(refused, PRODUCE, sent).responses[0].partition_responses
    assert answer.error_code == STORAGE_ERROR
    assert error_code(producer, produce(batch(4)), PRODUCE) == NO_ERROR
    assert fetched(consumer.receive(waiting, FETCH, asked)) == (5, [1, 2, 3, 4])


def test_confirmed_batch_when_the_next_append_is_under_way_then_is_fetched(
    clients: tuple[RawClient, RawClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = clients
    assert fetched(consumer.ask(fetch(Wanted("t")), FETCH)) == (0, [])
    assert error_code(producer, produce(batch(1), acks=LEADER), PRODUCE) == NO_ERROR
    disk = FillingDisk(len(batch(2)))
    monkeypatch.setattr(batch_writer, "write_all", disk.write)
    refused = produce(batch(2) + batch(3), acks=LEADER)
    sent = producer.send(refused, PRODUCE)
    assert disk.is_full.wait(SECONDS)
    waiting = fetch(Wanted("t"))
    asked = consumer.send(waiting, FETCH)
    disk.learns.set()
    assert fetched(consumer.receive(waiting, FETCH, asked)) == (1, [0])
    producer.receive(refused, PRODUCE, sent)
