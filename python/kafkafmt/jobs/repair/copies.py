"""Find chains that are left out and have no copy: their offsets are kept, but their records are not.

The base offset of a batch is not under its CRC. A batch with a changed one seems to be a copy of those that have its
offsets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

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


@dataclass(frozen=True, slots=True)
class _LeftBatch:
    """A batch that is left out. chain: the number of its chain."""

    chain: int
    records: SegmentRecords
    position: int
    size: int

    def read(self) -> RecordBatch:
        run = next(RecordsRange(self.records, self.position, self.position + self.size).runs())
        return RecordBatch(run, 0)


def find_altered(
    left_out: Sequence[tuple[ScannedFile, np.void]], kept: Sequence[tuple[ScannedFile, NDArray[np.void]]]
) -> list[bool]:
    """Return, for each chain that is left out, whether records of it are not kept. All of its offsets are.

    left_out: the chains of each file are together.
    kept: the chains that files keep. They are read only where they have offsets of those that are left out. Raises
    OSError.
    """
    found = list[bool]()
    # File by file, so that only the two files of a comparison are open.
    for _, chains in groupby(left_out, key=lambda one: id(one[0])):
        found += _altered_of_file(list(chains), kept)
    return found


def _altered_of_file(
    left_out: Sequence[tuple[ScannedFile, np.void]], kept: Iterable[tuple[ScannedFile, NDArray[np.void]]]
) -> list[bool]:
    with left_out[0][0].open() as opened:
        missing = _batches_by_end(opened, [chain for _, chain in left_out])
        wanted = np.array(sorted(missing), "i8")
        for file, chains in kept:
            low = wanted.searchsorted(chains["first_offset"], "left")
            chains = chains[low < wanted.searchsorted(chains["last_offset"], "right")]
            if len(chains):
                with file.open() as records:
                    for run in _runs(records, chains):
                        _remove_copies(missing, run, wanted)
    found = {one.chain for batches in missing.values() for one in batches}
    return [number in found for number in range(len(left_out))]


def _batches_by_end(records: SegmentRecords, chains: Sequence[np.void]) -> dict[int, list[_LeftBatch]]:
    """Return all batches that are left out of a file, by their last offsets."""
    found = defaultdict[int, list[_LeftBatch]](list)
    for number, chain in enumerate(chains):
        for run in _runs(records, [chain]):
            rows = run.index[["last_offset", "position", "size"]]
            for last, position, size in rows.tolist():
                found[last].append(_LeftBatch(number, records, position, size))
    return found


def _runs(records: SegmentRecords, chains: Iterable[np.void]) -> Iterator[BatchRun]:
    for chain in chains:
        part = RecordsRange(records, int(chain["position"]), int(chain["end_position"]))
        yield from part.runs(reuse_memory=True)


def _remove_copies(missing: dict[int, list[_LeftBatch]], run: BatchRun, wanted: NDArray[np.int64]) -> None:
    """Remove the batches whose records are in those of a run that is kept."""
    for number in np.isin(run.index["last_offset"], wanted).nonzero()[0].tolist():
        last = int(run.index["last_offset"][number])
        kept = RecordBatch(run, number)
        if last in missing:
            missing[last] = [one for one in missing[last] if not _has_all(kept, one.read())]


def _has_all(kept: RecordBatch, other: RecordBatch) -> bool:
    """Whether a batch has all records of another one: it is the same, or compaction removed some of the other."""
    if kept.buffer[_MAGIC_POSITION:] == other.buffer[_MAGIC_POSITION:]:
        return True
    try:
        return _records(other) <= _records(kept)
    except KafkaFormatError:
        return False


def _records(batch: RecordBatch) -> set[tuple[object, ...]]:
    return {(one.offset, one.timestamp, one.key, one.value, tuple(one.headers)) for one in batch}
