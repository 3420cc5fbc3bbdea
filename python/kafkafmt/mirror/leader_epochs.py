"""The leader epochs that begin within batches of a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkafmt.log.checkpoints import LeaderEpoch
from kafkafmt.records.runs import first_offset

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun


def begun_epochs(run: BatchRun, first: int, stop: int, known: int) -> Iterator[LeaderEpoch]:
    """Yield the leader epochs above `known` that begin with one of the batches `first` to before `stop` of a run."""
    epochs = run.index["partition_leader_epoch"][first:stop]
    if (epochs <= known).all():
        return
    for number, epoch in enumerate(epochs.tolist(), first):
        if epoch > known:
            yield LeaderEpoch(epoch, first_offset(run, number))
            known = epoch
