"""What a RawConsumer hands out of a partition, from some offset to its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka.structs import TopicPartition

import kafkafmt as kf
from client.cluster import Record, records_of
from kafkafmt.net import RawConsumer

if TYPE_CHECKING:
    from kafka.consumer.fetcher import ConsumerRecord

READ_SECONDS = 60


@contextmanager
def reading(
    bootstrap: str, topic: str, offset: int = 0, *, partition: int = 0, **options: Any
) -> Iterator[RawConsumer]:
    """A consumer that stands at that offset."""
    consumer = RawConsumer(
        bootstrap_servers=bootstrap,
        fetch_raw_bytes=True,
        fetch_max_wait_ms=20,
        retry_backoff_ms=20,
        **options,
    )
    try:
        consumer.assign([TopicPartition(topic, partition)])
        consumer.seek(TopicPartition(topic, partition), offset)
        yield consumer
    finally:
        consumer.close(autocommit=False)


def polled(consumer: RawConsumer, end: int | None = None) -> Iterator[ConsumerRecord]:
    """What comes until the position of its partition is its end, or the offset `end`."""
    (partition,) = consumer.assignment()
    if end is None:
        end = consumer.end_offsets([partition])[partition]
    deadline = time.monotonic() + READ_SECONDS
    while consumer.position(partition) < end:
        assert time.monotonic() < deadline, f"{partition}: stands at {consumer.position(partition)} of {end}"
        for records in consumer.poll(100).values():
            yield from records


def batch_of(record: ConsumerRecord) -> kf.RecordBatch:
    """The one batch that its value is."""
    (batch,) = kf.MemoryRecords(record.value).batches()
    assert batch.size_in_bytes == len(record.value) == record.serialized_value_size
    assert record.offset == batch.last_offset
    assert record.timestamp == batch.max_timestamp
    assert record.key is None
    assert record.headers is None
    return batch


def read_records(bootstrap: str, topic: str, offset: int = 0, **options: Any) -> list[Record]:
    """All records in the batches from an offset to the end."""
    with reading(bootstrap, topic, offset, **options) as consumer:
        return [one for record in polled(consumer) for one in records_of(batch_of(record))]
