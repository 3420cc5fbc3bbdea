"""Sequence numbers of producers, as a broker checks them (KIP-98)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka import errors

from kafkafmt.log.producer_states import SEQUENCES, ProducerStates
from kafkafmt.server.produced_records import RefusedRecordsError

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun


def check_sequence(run: BatchRun, producers: ProducerStates) -> int | None:
    """Check that batches are the next ones of their producer, as a broker does (KIP-98).

    Returns None if they are. If they were appended before, returns the offset that their first record got. Raises
    RefusedRecordsError for any other sequence, and for batches of several producers or epochs.
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
        return None
    if epoch < state.producer_epoch:
        message = f"epoch of producer {producer_id}: expected {state.producer_epoch} or more, found {epoch}"
        raise RefusedRecordsError(errors.InvalidProducerEpochError, message)
    expected = 0 if epoch > state.producer_epoch else state.next_sequence
    if sequence == expected:
        return None
    found = state.find(sequence, int(rows["count"].sum())) if epoch == state.producer_epoch else None
    if found is None:
        message = f"sequence of producer {producer_id}: expected {expected}, found {sequence}"
        raise RefusedRecordsError(errors.OutOfOrderSequenceNumberError, message)
    return found
