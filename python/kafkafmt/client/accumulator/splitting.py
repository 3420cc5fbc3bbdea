"""Split a batch that is too large for its topic (KIP-126, "Proposed Changes")."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from _kafkafmt.batches.producer_state import set_producer_state
from _kafkafmt.wire.layout import RECORD_BATCH_OVERHEAD
from kafkafmt.build.split import measured_parts
from kafkafmt.client.accumulator.batch import ProducerBatch
from kafkafmt.records.base import MemoryRecords


def next_target(batch: ProducerBatch, batch_size: int) -> int:
    """Return the most bytes for the parts of a refused batch, if the limit of its topic is not known.

    That is `batch_size`, as in Kafka, or half of the refused size if that is less: so repeated splits end. If several
    batches were refused together, it is the size of the largest, so that each becomes a part.
    """
    if batch.largest_batch_size < batch.size_in_bytes:
        return batch.largest_batch_size
    return max(min(batch_size, batch.size_in_bytes // 2), 1)


def parts_of(
    batch: ProducerBatch, max_size: int, level: int | None, reserve: Callable[[int], None]
) -> list[tuple[ProducerBatch, bool]]:
    """Split a closed batch, or several that were sent together. Return the parts, and whether each fits `max_size`.

    The parts are in order. A part of one record may have more than `max_size` bytes. The parts keep the age, the
    attempts and the place in the partition's queue. They are in doubt if the batch is.

    reserve: called before memory is allocated, with the bytes that the batch, its parts and the work on them then have
        in all. The last call leaves out the work.
    """
    parts = []
    # The whole and its copy; its records as the codec returns them, and those of a part that is encoded again.
    held = 2 * batch.size_in_bytes + 2 * batch.records_size
    part_size = max(max_size, batch.max_record_size + RECORD_BATCH_OVERHEAD)
    reserve(held + part_size)
    data = bytearray(batch.data)
    if batch.producer_state is None:  # a batch that is passed on may have another producer's
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
        held += child.size_in_bytes
        reserve(held + part_size)
    reserve(batch.size_in_bytes + sum(part.size_in_bytes for part, _ in parts))
    return parts
