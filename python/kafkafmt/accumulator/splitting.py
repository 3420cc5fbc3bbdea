"""The parts that a batch which came out too large is split into (KIP-126, "Proposed Changes")."""

from __future__ import annotations

from kafkafmt.accumulator.batch import ProducerBatch
from kafkafmt.batch import only_batch
from kafkafmt.split import measured_parts


def next_target(batch: ProducerBatch, batch_size: int) -> int:
    """What the parts of a refused batch should have at the most, where nothing tells what its topic takes.

    `batch_size`, as in Kafka, or half of what was refused where that is less: so it ends.
    """
    return max(min(batch_size, batch.size_in_bytes // 2), 1)


def parts_of(batch: ProducerBatch, max_size: int, level: int | None) -> list[tuple[ProducerBatch, bool]]:
    """The parts of a closed batch, in order, and whether each has at most `max_size` bytes: one record may not.

    They have its age, its attempts and the doubt about it, and stand where it stood among the batches of its partition.
    """
    parts = []
    for number, part in enumerate(measured_parts(only_batch(bytes(batch.data)), max_size, level=level)):
        data = bytes(part.batch.buffer)
        child = ProducerBatch(
            batch.topic_partition, data, count=part.batch.count, created_ms=batch.created_ms
        )
        child.order = (*batch.order, number)
        child.attempts = batch.attempts
        child.whole = batch.in_doubt
        child.last_attempt_ms = batch.last_attempt_ms
        child.compression_ratio = batch.compression_ratio
        child.max_record_size = batch.max_record_size
        parts.append((child, part.fits))
    return parts
