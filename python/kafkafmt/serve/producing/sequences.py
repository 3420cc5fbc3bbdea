"""Sequence numbers of producers, as a broker checks them (KIP-98)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafka import errors

from kafkafmt.log.producer_states import SEQUENCES, ProducerState, ProducerStates
from kafkafmt.server.produced_records import RefusedRecordsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun


class KnownBatches(NamedTuple):
    """The leading batches of a request that were appended before. base_offset: that of their first record."""

    number: int
    base_offset: int


_NONE = KnownBatches(0, -1)


def check_sequence(run: BatchRun, producers: ProducerStates, end_offset: int) -> KnownBatches:
    """Check that batches are the next ones of their producer, as a broker does (KIP-98), or were appended before.

    end_offset: of the log. If only the first batches were appended, and the log ends with them, the others are the next
    ones: a kill ended their append. Raises RefusedRecordsError for any other sequence, and for batches of several
    producers or epochs.
    """
    rows = run.index
    producer_id, epoch, sequence = (
        int(rows[name][0]) for name in ("producer_id", "producer_epoch", "base_sequence")
    )
    if (rows["producer_id"] != producer_id).any() or (rows["producer_epoch"] != epoch).any():
        message = "expected batches of one producer and epoch in a partition, found those of several"
        raise RefusedRecordsError(errors.InvalidRecordError, message)
    ends = (rows["base_sequence"].astype("i8") + rows["count"]) % SEQUENCES
    if (rows["base_sequence"][1:] != ends[:-1]).any():
        message = "expected sequence numbers without gaps from batch to batch, found others"
        raise RefusedRecordsError(errors.OutOfOrderSequenceNumberError, message)
    state = producers.get(producer_id)
    if state is None:  # everything that it wrote may have been deleted
        return _NONE
    if epoch < state.producer_epoch:
        message = f"epoch of producer {producer_id}: expected {state.producer_epoch} or more, found {epoch}"
        raise RefusedRecordsError(errors.InvalidProducerEpochError, message)
    expected = 0 if epoch > state.producer_epoch else state.next_sequence
    if sequence == expected:
        return _NONE
    known = _known(rows, state, end_offset) if epoch == state.producer_epoch else _NONE
    if not known.number:
        message = f"sequence of producer {producer_id}: expected {expected}, found {sequence}"
        raise RefusedRecordsError(errors.OutOfOrderSequenceNumberError, message)
    return known


def _known(rows: NDArray[np.void], state: ProducerState, end_offset: int) -> KnownBatches:
    """Return the batches that were appended before: all, or the first ones if the log ends with them."""
    sequence = int(rows["base_sequence"][0])
    ends = rows["count"].cumsum(dtype="i8")
    found = state.find(sequence, int(ends[-1]))
    if found is not None:
        return KnownBatches(len(rows), found)
    count = (state.next_sequence - sequence) % SEQUENCES
    found = state.find(sequence, count)
    if found is None or found + count != end_offset or count not in ends:
        return _NONE
    return KnownBatches(int(ends.searchsorted(count)) + 1, found)
