"""The parts that a batch which came out too large is split into (KIP-126, "Proposed Changes")."""

from __future__ import annotations

from itertools import chain

from _kafkafmt.producer_state import set_producer_state
from kafkafmt.accumulator.batch import ProducerBatch
from kafkafmt.records import MemoryRecords
from kafkafmt.split import measured_parts


def next_target(batch: ProducerBatch, batch_size: int) -> int:
    """What the parts of a refused batch should have at the most, where nothing tells what its topic takes.

    `batch_size`, as in Kafka, or half of what was refused where that is less: so it ends. Where several batches were
    refused together, each as it is.
    """
    if batch.largest_batch_size < batch.size_in_bytes:
        return batch.largest_batch_size
    return max(min(batch_size, batch.size_in_bytes // 2), 1)


def parts_of(batch: ProducerBatch, max_size: int, level: int | None) -> list[tuple[ProducerBatch, bool]]:
    """The parts of a closed batch, or of several that go together, and whether each has `max_size` bytes at most.

    In order; one record may be larger. They have its age, its attempts and the doubt about it, and stand where it stood
    among the batches of its partition.
    """
    parts = []
    data = bytearray(batch.data)
    if batch.producer_state is None:  # what is passed on may have that of another
        set_producer_state(data, -1, -1, -1)
    measured = (measured_parts(one, max_size, level=level) for one in MemoryRecords(data).batches())
    for number, part in enumerate(chain.from_iterable(measured)):
        child = ProducerBatch(
            batch.topic_partition, bytes(part.batch), count=part.batch.count, created_ms=batch.created_ms
        )
        child.order = (*batch.order, number)
        child.attempts = batch.attempts
        child.whole = batch.in_doubt
        child.last_attempt_ms = batch.last_attempt_ms
        child.compression_ratio = batch.compression_ratio
        child.max_record_size = batch.max_record_size
        parts.append((child, part.fits))
    return parts
