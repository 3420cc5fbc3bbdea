"""Aggregate the batches of a log into a bounded number of bins.

A bin is a number of consecutive batches that is a power of two, so a short log has a bin for each batch. When the bins
are full, each two neighbours are merged. All work is on the rows of runs; there is no Python object for each batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkafmt.jobs.report.transactions import EndedBatches, TransactionState
from kafkafmt.records.runs import first_timestamps
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMATS = ("v0", "v1", "v2")
CODECS = (*(codec.name.lower() for codec in Codec), "unknown")
STATES = tuple(state.name.lower() for state in TransactionState)
_HIGHEST, _LOWEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min
_COUNTS = 4  # batches, bytes, records, batches whose records are not counted
_FORMAT = _COUNTS
_CODEC = _FORMAT + len(FORMATS)
_STATE = _CODEC + len(CODECS)
_SUMS = _STATE + len(STATES)
_EXTREMES = 3  # of offsets, timestamps and producer ids


class Bins(NamedTuple):
    """The bins of a log in the order of its batches, a column each.

    first_offset, last_offset, first_timestamp, last_timestamp: the lowest and the highest. A bin without timestamps has
        a first one above its last one. For a compressed wrapper that was not decompressed, the first offset is the one
        after the batch before.
    first_producer, last_producer: the lowest and the highest producer id; -1 for batches without one.
    batches, sizes, records: counts, and bytes. uncounted: compressed wrappers, whose records are not in `records`.
    formats, codecs, states: the bytes of each of `FORMATS`, `CODECS` and `STATES`, a row for each bin.
    """

    first_offset: NDArray[np.int64]
    last_offset: NDArray[np.int64]
    first_timestamp: NDArray[np.int64]
    last_timestamp: NDArray[np.int64]
    first_producer: NDArray[np.int64]
    last_producer: NDArray[np.int64]
    batches: NDArray[np.int64]
    sizes: NDArray[np.int64]
    records: NDArray[np.int64]
    uncounted: NDArray[np.int64]
    formats: NDArray[np.int64]
    codecs: NDArray[np.int64]
    states: NDArray[np.int64]


class BinBuilder:
    """Adds batches to bins. most: the number of bins that is never exceeded; a power of two."""

    def __init__(self, most: int) -> None:
        if most < 2 or most & (most - 1):
            raise ValueError(f"bins: expected a power of two, at least 2, found {most}")
        self._sums = np.zeros((most, _SUMS), np.int64)
        self._lowest = np.full((most, _EXTREMES), _HIGHEST, np.int64)
        self._highest = np.full((most, _EXTREMES), _LOWEST, np.int64)
        self.shift = 0
        self.batches = 0

    def add(self, rows: NDArray[np.void], firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Add batches. Transactional batches count as open; see `end`.

        firsts: their first offsets. counts: their records; -1 if unknown.
        """
        numbers = np.arange(self.batches, self.batches + len(rows))
        self.batches += len(rows)
        while (self.batches - 1) >> self.shift >= len(self._sums):
            self._halve()
        bins = numbers >> self.shift
        starts = np.append(0, (bins[1:] != bins[:-1]).nonzero()[0] + 1)
        chosen = bins[starts]
        self._sums[chosen] += np.add.reduceat(_sums(rows, counts), starts)
        timestamps = rows["max_timestamp"]
        lows = firsts, _without(first_timestamps(rows), _HIGHEST), rows["producer_id"]
        highs = rows["last_offset"], _without(timestamps, _LOWEST), rows["producer_id"]
        self._lowest[chosen] = np.minimum(self._lowest[chosen], _reduced(np.minimum, lows, starts))
        self._highest[chosen] = np.maximum(self._highest[chosen], _reduced(np.maximum, highs, starts))

    def end(self, ended: EndedBatches) -> None:
        """Move batches that were added as open to the state in which their transaction has ended."""
        if not len(ended.numbers):
            return
        bins = ended.numbers >> self.shift
        np.add.at(self._sums[:, _STATE + TransactionState.OPEN], bins, -ended.sizes)
        np.add.at(self._sums, (bins, _STATE + ended.states), ended.sizes)

    def take(self) -> Bins:
        """Return the bins."""
        used = ((self.batches - 1) >> self.shift) + 1
        sums, lowest, highest = self._sums[:used], self._lowest[:used], self._highest[:used]
        (first, low, least), (last, high, most) = lowest.T, highest.T
        batches, sizes, records, uncounted = sums[:, :_COUNTS].T
        formats, codecs, states = np.split(sums[:, _COUNTS:], (_CODEC - _FORMAT, _STATE - _FORMAT), axis=1)
        return Bins(
            *(first, last, low, high, least, most),
            *(batches, sizes, records, uncounted),
            *(formats, codecs, states),
        )

    def _halve(self) -> None:
        half = len(self._sums) // 2
        pairs = (-1, 2)
        self._sums[:half] = self._sums.reshape(*pairs, _SUMS).sum(1)
        self._lowest[:half] = self._lowest.reshape(*pairs, _EXTREMES).min(1)
        self._highest[:half] = self._highest.reshape(*pairs, _EXTREMES).max(1)
        self._sums[half:], self._lowest[half:], self._highest[half:] = 0, _HIGHEST, _LOWEST
        self.shift += 1


def _sums(rows: NDArray[np.void], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a row of numbers to add for each batch."""
    sizes, every = rows["size"].astype(np.int64), np.arange(len(rows))
    states = np.where(rows["is_transactional"], TransactionState.OPEN, TransactionState.NONE)
    states[rows["is_control"]] = TransactionState.CONTROL
    is_known = counts >= 0
    found = np.zeros((len(rows), _SUMS), np.int64)
    found[:, 0], found[:, 1], found[:, 2], found[:, 3] = 1, sizes, np.where(is_known, counts, 0), ~is_known
    found[every, _FORMAT + rows["magic"].astype(np.intp)] = sizes
    found[every, _CODEC + np.minimum(rows["codec"].astype(np.intp), len(CODECS) - 1)] = sizes
    found[every, _STATE + states] = sizes
    return found


def _without(timestamps: NDArray[np.int64], instead: int) -> NDArray[np.int64]:
    """Return timestamps with another number for -1, which is none."""
    return np.where(timestamps == -1, instead, timestamps)


def _reduced(
    function: np.ufunc, columns: tuple[NDArray[np.int64], ...], starts: NDArray[np.int64]
) -> NDArray[np.int64]:
    return np.stack([function.reduceat(column, starts) for column in columns], 1)
