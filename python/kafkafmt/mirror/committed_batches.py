"""Batches of committed transactions for a folder (`--isolation read_committed`): without their transactions.

The marker of a transaction may be after the position where the mirror ends. Readers with read_committed would wait for
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from _kafkafmt.batches.producer_state import set_producer_state
from _kafkafmt.batches.scan import BatchRun, scan
from kafkafmt.mirror.protocols import adjacent_batches
from kafkafmt.records.runs import select_batches

if TYPE_CHECKING:
    from kafkafmt.mirror.loop import Transform
    from kafkafmt.types import TopicPartition


def committed_transform(transform: Transform) -> Transform:
    """Return a transform whose batches belong to no transaction, and are otherwise those of `transform`."""

    def committed(topic_partition: TopicPartition, run: BatchRun) -> Iterator[BatchRun]:
        for moved in transform(topic_partition, run):
            yield without_transactions(moved)

    return committed


def without_transactions(run: BatchRun) -> BatchRun:
    """Return the batches of a run without transactions: those that have one lose their producer, in a copy."""
    transactional = run.index["is_transactional"] & ~run.index["is_control"]
    if not transactional.any():
        return run
    view = memoryview(bytearray().join(adjacent_batches(run)))
    for batches in adjacent_batches(select_batches(scan(view)[0], transactional)):
        set_producer_state(batches, -1, -1, -1)
    return scan(view)[0]
