"""What a RawConsumer hands out of logs of every kind and age, served by kafkafmt: brokers of today write but v2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
from kafka.structs import TopicPartition

import kafkafmt as kf
from client.raw_reading import batch_of, polled, reading
from data.real_logs import LOGS, NAMES, ExpectedRecord, expected
from endpoints.served import Served
from kafkafmt.net import CorruptRecordError, RawConsumer
from records.samples import DAY

# In one process with others that are served there.
pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("raw-consumer-served")]


Read: TypeAlias = Callable[..., list[kf.RecordBatch]]


@pytest.fixture(scope="module")
def read() -> Iterator[Read]:
    """The batches of a log folder from an offset on; one consumer for all that ask for the same options."""
    consumers: dict[str, RawConsumer] = {}
    with ExitStack() as stack:
        address = stack.enter_context(Served(LOGS)).address

        def read_from(name: str, offset: int, **options: object) -> list[kf.RecordBatch]:
            topic, _, number = name.rpartition("-")
            if str(options) not in consumers:
                opened = reading("{}:{}".format(*address), topic, **options)
                consumers[str(options)] = stack.enter_context(opened)
            consumer = consumers[str(options)]
            consumer.assign([TopicPartition(topic, int(number))])
            consumer.seek(TopicPartition(topic, int(number)), offset)
            return [batch_of(record) for record in polled(consumer)]

        yield read_from


def records_in(batches: list[kf.RecordBatch]) -> list[tuple[object, ...]]:
    return [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for batch in batches
        for record in batch
    ]


def records_from(records: list[ExpectedRecord], offset: int) -> list[tuple[object, ...]]:
    return [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for record in records
        if record.offset >= offset
    ]


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_those_of_the_log_and_their_records_those_that_java_read(read: Read, name: str) -> None:
    stored = b"".join(path.read_bytes() for path in sorted((LOGS / name).glob("*.log")))
    batches = read(name, 0, keep_control_batches=True)
    came = b"".join(map(bytes, batches))
    assert came == stored[: len(came)]
    assert not any(stored[len(came) :])  # as in a preallocated segment
    assert records_in([batch for batch in batches if not batch.is_control]) == records_from(expected(name), 0)


@pytest.mark.parametrize("name", NAMES)
def test_committed_records_from_within_batches_are_those_that_java_read(read: Read, name: str) -> None:
    committed = [record for record in expected(name) if record.committed]
    offsets = {committed[len(committed) * part // 3].offset for part in range(3)} if committed else set()
    for offset in offsets | {0, 1}:
        found = read(name, offset, isolation_level="read_committed")
        assert records_in(found) == records_from(committed, offset)


# Damage, which a real broker does not look for


def serve_one(folder: Path, data: bytes) -> Served:
    (folder / "one-0").mkdir()
    (folder / "one-0" / f"{0:020}.log").write_bytes(data)
    return Served(folder)


def batch_at(offset: int) -> bytearray:
    builder = kf.RecordBatchBuilder(base_offset=offset)
    builder.append(DAY, None, b"value")
    return bytearray(builder.build())


def test_damage_that_the_server_finds_is_told_with_its_partition_and_offset(tmp_path: Path) -> None:
    damaged = batch_at(1)
    damaged[-1] ^= 1
    with (
        serve_one(tmp_path, batch_at(0) + damaged + batch_at(2)) as served,
        reading("{}:{}".format(*served.address), "one", 0) as consumer,
    ):
        came = polled(consumer, end=3)
        assert next(came).offset == 0
        with pytest.raises(CorruptRecordError, match="one-0 at offset 1") as caught:
            next(came)
        assert (caught.value.topic_partition, caught.value.offset) == (("one", 0), 1)
        consumer.seek(TopicPartition("one", 0), 2)
        assert [record.offset for record in polled(consumer)] == [2]
