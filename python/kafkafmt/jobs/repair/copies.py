"""Find chains that are left out and have no copy: their offsets are kept, but their records are not.

The base offset of a batch is not under its CRC. A batch with a changed one seems to be a copy of those that have its
offsets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs.repair.scan import ScannedFile
from kafkafmt.log.segment import SegmentRecords
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.range import RecordsRange

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

# Before it are the base offset, the length, and the leader epoch, or the CRC of a message.
_MAGIC_POSITION = 16


class LeftChain(NamedTuple):
    """A chain that is left out. may_be_cleaned: the kept batches may be those that compaction made of this chain."""

    file: ScannedFile
    chain: np.void
    may_be_cleaned: bool


@dataclass(frozen=True, slots=True)
class _LeftBatch:
    """A batch that is left out. number: that of its chain."""

    number: int
    records: SegmentRecords
    position: int
    size: int
    may_be_cleaned: bool
    is_wrapper: bool

    def read(self) -> RecordBatch:
        run = next(RecordsRange(self.records, self.position, self.position + self.size).runs())
        return RecordBatch(run, 0)


def find_altered(
    left_out: Sequence[LeftChain], kept: Sequence[tuple[ScannedFile, NDArray[np.void]]]
) -> list[bool]:
    """Return, for each chain that is left out, whether records of it are not kept. All of its offsets are.

    left_out: the chains of each file are together.
    kept: the chains that files keep. They are read only where they have offsets of those that are left out. Raises
    OSError.
    """
    found = list[bool]()
    # File by file, so that only the two files of a comparison are open.
    for _, chains in groupby(left_out, key=lambda one: id(one.file)):
        found += _altered_of_file(list(chains), kept)
    return found


def _altered_of_file(
    left_out: Sequence[LeftChain], kept: Iterable[tuple[ScannedFile, NDArray[np.void]]]
) -> list[bool]:
    with left_out[0].file.open() as opened:
        missing = _batches_by_end(opened, left_out)
        count = _count(missing)
        wanted, met = np.array(sorted(missing), "i8"), set[int]()
        for file, chains in kept:
            low = wanted.searchsorted(chains["first_offset"], "left")
            chains = chains[low < wanted.searchsorted(chains["last_offset"], "right")]
            if len(chains):
                with file.open() as records:
                    for run in _runs(records, chains):
                        met.update(_remove_copies(missing, run, wanted))
    # Compaction removes wrappers, or their last messages, and no header shows the gap. It keeps the last message that
    # it reads, so it has left a copy of some batch.
    has_copies = _count(missing) < count
    found = {
        one.number
        for last, batches in missing.items()
        for one in batches
        if last in met or not (has_copies and one.may_be_cleaned and one.is_wrapper)
    }
    return [number in found for number in range(len(left_out))]


def _batches_by_end(records: SegmentRecords, left_out: Sequence[LeftChain]) -> dict[int, list[_LeftBatch]]:
    """Return all batches that are left out of a file, by their last offsets."""
    found = defaultdict[int, list[_LeftBatch]](list)
    for number, one in enumerate(left_out):
        for run in _runs(records, [one.chain]):
            rows = run.index[["last_offset", "position", "size", "magic"]]
            for last, position, size, magic in rows.tolist():
                left = _LeftBatch(number, records, position, size, one.may_be_cleaned, magic < 2)
                found[last].append(left)
    return found


def _count(batches: Mapping[int, list[_LeftBatch]]) -> int:
    return sum(map(len, batches.values()))


def _runs(records: SegmentRecords, chains: Iterable[np.void]) -> Iterator[BatchRun]:
    for chain in chains:
        part = RecordsRange(records, int(chain["position"]), int(chain["end_position"]))
        yield from part.runs(reuse_memory=True)


def _remove_copies(
    missing: dict[int, list[_LeftBatch]], run: BatchRun, wanted: NDArray[np.int64]
) -> Iterator[int]:
    """Remove the batches of which a run that is kept has a copy. Yield the last offsets that both have."""
    for number in np.isin(run.index["last_offset"], wanted).nonzero()[0].tolist():
        last = int(run.index["last_offset"][number])
        kept = RecordBatch(run, number)
        yield last
        if last in missing:
            missing[last] = [one for one in missing[last] if not _is_copy(kept, one)]


def _is_copy(kept: RecordBatch, left: _LeftBatch) -> bool:
    """Whether two batches are the same, or compaction removed some of the other one, or of the kept one if it may."""
    other = left.read()
    if kept.buffer[_MAGIC_POSITION:] == other.buffer[_MAGIC_POSITION:]:
        return True
    try:
        of_kept, of_other = _records(kept), _records(other)
    except KafkaFormatError:
        return False
    return of_other <= of_kept or (left.may_be_cleaned and of_kept <= of_other)


def _records(batch: RecordBatch) -> set[tuple[object, ...]]:
    return {(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in batch}
