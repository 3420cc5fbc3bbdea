"""Chains of batches, and which of them a log keeps.

A chain is batches that are end to end in a file and have consecutive offsets. So a sound segment without gaps is one
chain. Damage, a gap in the offsets, and a batch whose offsets do not ascend begin another chain.

The base offset of a batch is not under its CRC. A changed base offset is found only because other batches contradict
it. So the chains that are kept are those that ascend and have the most batches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Positions in the file, offsets, the number of batches, and of records as far as headers have it.
CHAIN_DTYPE = np.dtype(
    [
        ("position", "i8"),
        ("end_position", "i8"),
        ("first_offset", "i8"),
        ("last_offset", "i8"),
        ("batches", "i8"),
        ("records", "i8"),
    ]
)


class ChainBuilder:
    """Collects the chains of a file, run by run."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.void]] = []

    def add(self, rows: NDArray[np.void], first_offset_of: Callable[[int], int]) -> None:
        """Add sound batches: rows of the shallow index, in the order of the file.

        first_offset_of: returns the first offset of the batch of a row. It may open the batch.
        """
        if not len(rows):
            return
        ends, lasts = rows["position"] + rows["size"], rows["last_offset"]
        before = self._parts[-1][-1] if self._parts else None
        is_apart = rows["position"] != np.concatenate(
            ([-1 if before is None else before["end_position"]], ends[:-1])
        )
        firsts = _first_offsets(rows, None if before is None else int(before["last_offset"]))
        for number in (is_apart & (rows["base_offset"] < 0)).nonzero()[0].tolist():
            # Messages of v0 have their own offsets, which are above that of a changed header.
            firsts[number] = min(first_offset_of(number), int(lasts[number]))
        begins = np.ones(len(rows), np.bool_)
        begins[1:] = (firsts[1:] != lasts[:-1] + 1) | is_apart[1:]
        starts = begins.nonzero()[0]
        stops = np.append(starts[1:], len(rows))
        chains = np.empty(len(starts), CHAIN_DTYPE)
        chains["position"], chains["end_position"] = rows["position"][starts], ends[stops - 1]
        chains["first_offset"], chains["last_offset"] = firsts[starts], lasts[stops - 1]
        chains["batches"] = stops - starts
        counts = np.maximum(rows["count"], 0).cumsum(dtype="i8")
        chains["records"] = np.diff(counts[stops - 1], prepend=0)
        if before is not None and _continues(before, chains[0]):
            before["end_position"], before["last_offset"] = (
                chains[0]["end_position"],
                chains[0]["last_offset"],
            )
            before["batches"] += chains[0]["batches"]
            before["records"] += chains[0]["records"]
            chains = chains[1:]
        if len(chains):
            self._parts.append(chains)

    def chains(self) -> NDArray[np.void]:
        """Return all chains, in the order of the file."""
        return np.concatenate([np.empty(0, CHAIN_DTYPE), *self._parts])


def _continues(before: np.void, chain: np.void) -> bool:
    return bool(
        before["end_position"] == chain["position"] and before["last_offset"] + 1 == chain["first_offset"]
    )


def _first_offsets(rows: NDArray[np.void], last_offset: int | None) -> NDArray[np.int64]:
    """Return the first offset of each batch. That of a v0/v1 wrapper follows the batch before, if that is possible.

    `add` opens a wrapper at the start of a file or after damage: its offsets tell what the damage had.

    last_offset: that of the batch before `rows`.
    """
    lasts = rows["last_offset"]
    before = np.concatenate(([lasts[0] - 1 if last_offset is None else last_offset], lasts[:-1]))
    of_wrappers = np.where(before < lasts, before + 1, lasts)
    return np.where(rows["base_offset"] >= 0, rows["base_offset"], of_wrappers)


def heaviest_ascending(
    firsts: NDArray[np.int64], lasts: NDArray[np.int64], weights: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return a mask of the ranges of the greatest total weight that ascend in their order without an overlap.

    >>> heaviest_ascending(np.array([0, 90, 10, 20]), np.array([9, 99, 19, 29]), np.array([1, 1, 1, 1])).tolist()
    [True, False, True, True]
    """
    if (firsts[1:] > lasts[:-1]).all():
        return np.ones(len(firsts), np.bool_)
    # The best sequences so far: both their ends and their weights ascend.
    ends: list[int] = []
    totals: list[int] = []
    numbers: list[int] = []
    before = np.full(len(firsts), -1, np.int64)
    for number, (first, last, weight) in enumerate(
        zip(firsts.tolist(), lasts.tolist(), weights.tolist(), strict=True)
    ):
        slot = bisect_left(ends, first) - 1
        total = weight + (totals[slot] if slot >= 0 else 0)
        before[number] = numbers[slot] if slot >= 0 else -1
        place = bisect_left(ends, last + 1)
        if place and totals[place - 1] >= total:
            continue
        stop = place
        while stop < len(ends) and totals[stop] <= total:
            stop += 1
        if place and ends[place - 1] == last:
            place -= 1
        ends[place:stop], totals[place:stop], numbers[place:stop] = [last], [total], [number]
    kept = np.zeros(len(firsts), np.bool_)
    number = numbers[-1] if numbers else -1
    while number >= 0:
        kept[number] = True
        number = int(before[number])
    return kept
