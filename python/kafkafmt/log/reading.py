"""What readers of logs and readers of fetches share: masks over runs, a batch's part, and how damage is told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kafkafmt.batch import RecordBatch
from kafkafmt.log.directory import part_of_run
from kafkafmt.records import MemoryRecords

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.scan import BatchRun
    from kafkafmt.types import TopicPartition


class SourceDamage(NamedTuple):
    """Where a source cannot be read: from which offset on, and where it can be again; None where that is unknown."""

    topic_partition: TopicPartition
    offset: int
    next_offset: int | None
    message: str


def first_offset(run: BatchRun, number: int = 0) -> int:
    """The lowest offset that a batch may hold; of a v0/v1 wrapper the one behind what is in front of it is unknown."""
    row = run.index[number]
    return int(row["base_offset"] if row["base_offset"] >= 0 else row["last_offset"])


def aborted(rows: NDArray[np.void], transactions: Iterable[Any]) -> NDArray[np.bool_]:
    """Which batches of a fetch belong to transactions that were aborted, as its response has these (KIP-98).

    transactions: with `producer_id` and `first_offset`. A producer has one open transaction at most, so that its
    first control batch behind `first_offset` is the marker that ends this one.
    """
    first_offsets: dict[int, list[int]] = defaultdict(list)
    for transaction in transactions:
        first_offsets[transaction.producer_id].append(transaction.first_offset)
    found = np.zeros(len(rows), np.bool_)
    transactional = rows["is_transactional"] & ~rows["is_control"]
    for producer_id, offsets in first_offsets.items():
        of_producer = rows["producer_id"] == producer_id
        markers = rows["base_offset"][of_producer & rows["is_control"]]
        of_producer &= transactional
        begun = np.sort(np.array(offsets))
        latest = begun.searchsorted(rows["last_offset"][of_producer], "right") - 1
        is_open = (
            markers.searchsorted(rows["base_offset"][of_producer]) == markers.searchsorted(begun)[latest]
        )
        found[of_producer] = is_open & (latest >= 0)
    return found


def trimmed_run(run: BatchRun, number: int, first_offset: int) -> BatchRun:
    """One batch without the records below an offset; of v0 and v1 converted to v2."""
    batch = RecordBatch(run, number)
    if batch.magic < 2:
        (batch,) = MemoryRecords(batch.buffer).down_convert(2).records.batches()
    trimmed = batch.trim(first_offset)
    return part_of_run(trimmed.run, trimmed.number, trimmed.number + 1)
