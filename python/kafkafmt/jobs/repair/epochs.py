"""The leader epochs of a log from its batches, and the file `leader-epoch-checkpoint` (KIP-101).

The epoch of a batch is not under its CRC. So an epoch counts only if it agrees with those of more batches around it.
The file of the source is kept if it agrees with the batches: it also has epochs in which nothing was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kafkafmt.jobs.repair.chains import heaviest_ascending
from kafkafmt.log.checkpoints import LeaderEpoch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

_EPOCHS = np.dtype([("epoch", "i8"), ("first_offset", "i8"), ("last_offset", "i8"), ("batches", "i8")])


class EpochTracker:
    """The leader epochs of batches, in the order of their offsets."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.void]] = []

    def add(self, run: BatchRun) -> None:
        """Add the batches of a run. Batches below v2 have no epoch."""
        rows = run.index[run.index["partition_leader_epoch"] >= 0]
        if not len(rows):
            return
        epochs = rows["partition_leader_epoch"]
        starts = np.append(0, np.diff(epochs).nonzero()[0] + 1)
        stops = np.append(starts[1:], len(rows))
        found = np.empty(len(starts), _EPOCHS)
        found["epoch"], found["batches"] = epochs[starts], stops - starts
        found["first_offset"], found["last_offset"] = (
            rows["base_offset"][starts],
            rows["last_offset"][stops - 1],
        )
        if self._parts and self._parts[-1][-1]["epoch"] == found[0]["epoch"]:
            before = self._parts[-1][-1]
            before["last_offset"] = found[0]["last_offset"]
            before["batches"] += found[0]["batches"]
            found = found[1:]
        if len(found):
            self._parts.append(found)

    def entries(self, known: list[LeaderEpoch] | None) -> list[LeaderEpoch]:
        """Return the entries of the file. known: those of the source; None if they cannot be read.

        Entries of the source that precede the first batch are kept: segments in tiered storage have these epochs, and
        a leader that does not know them deletes the segments.
        """
        found = np.concatenate([np.empty(0, _EPOCHS), *self._parts])
        # Two ranges with the same epoch ascend.
        kept = found[heaviest_ascending(2 * found["epoch"], 2 * found["epoch"] - 1, found["batches"])]
        if known is not None and _agrees(known, kept):
            return known
        first = np.append(True, np.diff(kept["epoch"]) > 0)[: len(kept)]
        rebuilt = [LeaderEpoch(int(one["epoch"]), int(one["first_offset"])) for one in kept[first]]
        earlier = [one for one in known or () if _precedes(one, rebuilt[0])]
        has_same = bool(earlier) and earlier[-1].epoch == rebuilt[0].epoch
        return earlier + rebuilt[has_same:]


def _precedes(known: LeaderEpoch, first: LeaderEpoch) -> bool:
    """Whether an epoch begins before the first batch of a log. The batch may be of that epoch, too."""
    return known.epoch <= first.epoch and known.start_offset < first.start_offset


def _agrees(known: list[LeaderEpoch], kept: NDArray[np.void]) -> bool:
    """Whether each batch has the epoch that `known` has for its offsets."""
    if not len(kept):
        return True
    if not known:
        return False
    starts = np.array([one.start_offset for one in known])
    epochs = np.array([one.epoch for one in known])
    slots = [starts.searchsorted(kept[name], "right") - 1 for name in ("first_offset", "last_offset")]
    return all((slot >= 0).all() and (epochs[slot] == kept["epoch"]).all() for slot in slots)
