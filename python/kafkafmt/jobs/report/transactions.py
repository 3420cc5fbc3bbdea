"""Find how the transaction of each batch ends, while the batches of a log are read once.

A transactional batch is open until the next marker of its producer, which commits or aborts it (KIP-98). So a batch
gets its state after it was counted. Batches that wait for their marker are kept as rows of numpy arrays.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from _kafkafmt.columns.columns import ColumnBuilder
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.records.decoding import decompressed_chunks
from kafkafmt.records.runs import select_batches
from kafkafmt.types import ControlRecordType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

_KEY_BYTES = 4  # the key of a control record: its version and its type, two bytes each
_MOST_WAITING = 8192  # more rows are combined by producer and bin


class TransactionState(IntEnum):
    """The state of a batch. OPEN: no marker of its producer follows. CONTROL: a marker or another control batch."""

    NONE = 0
    COMMITTED = 1
    ABORTED = 2
    OPEN = 3
    CONTROL = 4


class EndedBatches(NamedTuple):
    """Batches whose transaction has ended: the number of each batch, its size in bytes, and its state."""

    numbers: NDArray[np.int64]
    sizes: NDArray[np.int64]
    states: NDArray[np.int64]


class TransactionEnds:
    """The batches of one log that wait for their marker."""

    def __init__(self) -> None:
        self._producers = np.empty(0, np.int64)
        self._numbers = np.empty(0, np.int64)
        self._sizes = np.empty(0, np.int64)
        self._most_waiting = _MOST_WAITING

    def add(self, run: BatchRun, first: int, stop: int, number: int, bin_shift: int) -> EndedBatches:
        """Add batches `first` to before `stop` of a run. Returns the batches whose transactions end in it.

        number: that of the first batch in the log. bin_shift: batches whose numbers are equal above these bits share a
        bin. They may be combined.
        """
        rows = run.index[first:stop]
        chosen = rows["is_transactional"].nonzero()[0]
        if not len(chosen):
            return _ended([])
        some = rows[chosen]
        marks = some["is_control"]
        new = some["producer_id"], chosen + number, some["size"].astype(np.int64)
        if not marks.any():
            self._wait(*(column for column in new), bin_shift=bin_shift)
            return _ended([])
        ends = np.zeros(len(chosen), np.int64)
        ends[marks] = _ends(run, chosen[marks] + first)
        order = np.lexsort((new[1], new[0]))
        producers, numbers, sizes = (column[order] for column in new)
        marks, ends = marks[order], ends[order]
        ended = [self._ended_before(producers, marks & (ends > 0), ends)]
        ending = (ends > 0).nonzero()[0]
        following = ending.searchsorted(np.arange(len(producers)))
        after = np.append(ending, -1)[following]
        is_ended = (after >= 0) & (producers[after] == producers) & ~marks
        ended.append(EndedBatches(numbers[is_ended], sizes[is_ended], ends[after[is_ended]]))
        waits = ~is_ended & ~marks
        self._wait(producers[waits], numbers[waits], sizes[waits], bin_shift=bin_shift)
        return _ended(ended)

    def _ended_before(
        self, producers: NDArray[np.int64], ending: NDArray[np.bool_], ends: NDArray[np.int64]
    ) -> EndedBatches:
        """Return the waiting batches that end with the first marker of their producer, and forget them."""
        known, firsts = np.unique(producers[ending], return_index=True)
        states = ends[ending][firsts]
        places = known.searchsorted(self._producers)
        is_ended = (
            np.append(known, -1)[places] == self._producers if len(known) else np.zeros(len(places), bool)
        )
        ended = EndedBatches(self._numbers[is_ended], self._sizes[is_ended], states[places[is_ended]])
        self._producers, self._numbers, self._sizes = (
            column[~is_ended] for column in (self._producers, self._numbers, self._sizes)
        )
        return ended

    def _wait(
        self,
        producers: NDArray[np.int64],
        numbers: NDArray[np.int64],
        sizes: NDArray[np.int64],
        *,
        bin_shift: int,
    ) -> None:
        self._producers = np.concatenate([self._producers, producers])
        self._numbers = np.concatenate([self._numbers, numbers])
        self._sizes = np.concatenate([self._sizes, sizes])
        if len(self._numbers) > self._most_waiting:
            self._combine(bin_shift)
            self._most_waiting = max(_MOST_WAITING, 2 * len(self._numbers))

    def _combine(self, bin_shift: int) -> None:
        """Combine the waiting batches of a producer in the same bin."""
        bins = self._numbers >> bin_shift
        order = np.lexsort((bins, self._producers))
        producers, bins = self._producers[order], bins[order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (producers[1:] != producers[:-1]) | (bins[1:] != bins[:-1])
        starts = is_first.nonzero()[0]
        self._producers, self._numbers = producers[starts], self._numbers[order][starts]
        self._sizes = np.add.reduceat(self._sizes[order], starts)


def _ended(parts: list[EndedBatches]) -> EndedBatches:
    if not parts:
        return EndedBatches(*(np.empty(0, np.int64) for _ in EndedBatches._fields))
    return EndedBatches(*map(np.concatenate, zip(*parts, strict=True)))


def _ends(run: BatchRun, markers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the state that each of these control batches gives to a transaction; 0 for one that is no marker."""
    found = np.zeros(len(markers), np.int64)
    try:
        found[:] = _states(run, markers)
    except KafkaFormatError:  # one has no valid records: ask them one by one
        for place in range(len(markers)):
            try:
                found[place] = _states(run, markers[place : place + 1])[0]
            except KafkaFormatError:
                continue
    return found


def _states(run: BatchRun, markers: NDArray[np.int64]) -> NDArray[np.int64]:
    chosen = select_batches(run, markers)
    counts = chosen.index["count"].astype(np.int64)
    # Compaction empties a marker when no record of its transaction is left. It removes aborted records at once.
    found = np.full(len(markers), TransactionState.COMMITTED, np.int64)
    types = np.concatenate([np.empty(0, np.int64), *_types(chosen)])
    firsts = counts.cumsum() - counts
    has_record = counts > 0
    kinds = types[firsts[has_record]]
    states = np.zeros(len(kinds), np.int64)
    states[kinds == ControlRecordType.COMMIT] = TransactionState.COMMITTED
    states[kinds == ControlRecordType.ABORT] = TransactionState.ABORTED
    found[has_record] = states
    return found


def _types(run: BatchRun) -> list[NDArray[np.int64]]:
    """Return the type of each control record of a run of control batches, chunk by chunk; -1 for an unknown key."""
    found = []
    builder = ColumnBuilder(["key"], large_offsets=True)
    for first, stop, payloads in decompressed_chunks(run, verify=False, limit=DEFAULT_MAX_DECOMPRESSED_BYTES):
        builder.add(run, first, stop, payloads, verify=False)
        offsets, data, _ = builder.take()["key"]
        starts = np.asarray(offsets)[:-1]
        is_known = np.diff(offsets) >= _KEY_BYTES
        types = np.full(len(starts), -1, np.int64)
        at = starts[is_known] + 2
        keys = np.asarray(data)
        types[is_known] = keys[at].astype(np.int64) << 8 | keys[at + 1]
        found.append(types)
    return found
