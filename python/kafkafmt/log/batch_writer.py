"""Write batches to the file of a segment. Each batch is checked and indexed as it is written.

The owner of the file, such as `SegmentWriter`, opens, flushes and publishes it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.files import naming_errors
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import InvalidRecordError, KafkaFormatError
from kafkafmt.log.indexes import DEFAULT_INDEX_INTERVAL_BYTES, IndexBuilder, TimestampOffset
from kafkafmt.log.segment import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.runs import first_offsets, out_of_order

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

# Positions and relative offsets in an index are int32.
MAX_INT32 = 2**31 - 1
_INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


class BatchWriter:
    """Write batches to a growing segment; keep its size, its next offset and its index entries.

    path: the name of the file in errors. The owner of the file passes its descriptor to each call.

    last_leader_epoch: of the last batch; -1 if there is no batch, or it has none.
    """

    def __init__(
        self, path: Path, base_offset: int, index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.size_in_bytes = 0
        self.next_offset = base_offset
        self.last_leader_epoch = -1
        self._indexes = IndexBuilder(base_offset, index_interval_bytes)

    def append_run(self, descriptor: int, run: BatchRun, first: int = 0, stop: int | None = None) -> None:
        """Write batches `first` to before `stop` of a run. Raises ValueError for a gap between their bytes.

        Otherwise raises as `SegmentWriter.append`.
        """
        rows = run.index[first : len(run) if stop is None else stop].copy()
        if not len(rows):
            return
        start, end = int(rows["position"][0]), int(rows["position"][-1]) + int(rows["size"][-1])
        if end - start != int(rows["size"].sum()):
            raise ValueError(f"expected batches end to end, found gaps between positions {start} and {end}")
        rows["position"] += self.size_in_bytes - start
        self._check(rows)
        data = memoryview(run.buffer)[start - run.origin : end - run.origin]
        with naming_errors(self.path):
            write_all(descriptor, data, self.size_in_bytes)
        self._take_in(rows)

    def resume(self, position: int, highest: TimestampOffset) -> None:
        """Continue in a file that has index entries: the last ones are for the batch at `position`, and `highest`."""
        self.size_in_bytes = position
        self._indexes.resume(position, highest)

    def pass_over(self, rows: NDArray[np.void]) -> None:
        """Check and index batches that the file has already, after the known ones.

        Raises InvalidRecordError for batches that cannot be in a segment: they are data here, and no arguments.
        """
        if len(rows):
            try:
                self._check(rows)
            except ValueError as error:
                raise InvalidRecordError(str(error)) from None
            self._take_in(rows)

    def fitting(self, rows: NDArray[np.void], segment_bytes: int) -> int:
        """Return how many batches of `rows` fit into a segment of `segment_bytes`; at least 1 if it is empty."""
        left = segment_bytes - self.size_in_bytes
        fit_by_size = int(rows["size"].cumsum(dtype="i8").searchsorted(left, side="right"))
        too_far = rows["last_offset"] - self.base_offset > MAX_INT32
        fit_by_offset = int(too_far.argmax()) if too_far.any() else len(rows)
        return max(min(fit_by_size, fit_by_offset), 0 if self.size_in_bytes else 1)

    def index_entries(self) -> dict[str, NDArray[np.void]]:
        """Return the remaining entries of `.index` and `.timeindex`, by suffix, for a segment that is closed."""
        return dict(zip(_INDEX_SUFFIXES, self._indexes.finish(), strict=True))

    def new_index_entries(self) -> dict[str, NDArray[np.void]]:
        """Return the new entries of `.index` and `.timeindex` since the last call, by suffix."""
        return dict(zip(_INDEX_SUFFIXES, self._indexes.take(), strict=True))

    def _take_in(self, rows: NDArray[np.void]) -> None:
        self._indexes.add(rows)
        self.size_in_bytes += int(rows["size"].sum())
        self.next_offset = int(rows["last_offset"][-1]) + 1
        self.last_leader_epoch = int(rows["partition_leader_epoch"][-1])

    def _check(self, rows: NDArray[np.void]) -> None:
        ensure_ascending(rows, self.next_offset, self.path)
        lasts = rows["last_offset"]
        if int(lasts[-1]) - self.base_offset > MAX_INT32:
            message = f"expected at most 2^31 offsets from {self.base_offset} on, found {lasts[-1]}"
            raise ValueError(f"{self.path}: {message}")
        if self.size_in_bytes + int(rows["size"].sum()) > MAX_INT32:
            raise ValueError(f"{self.path}: expected at most 2^31 - 1 bytes in a segment")


def ensure_segment_bytes(segment_bytes: int) -> None:
    """Raise ValueError if `segment_bytes` is not 1 to 2^31 - 1."""
    if not 1 <= segment_bytes <= MAX_INT32:
        raise ValueError(f"segment_bytes: expected 1 to 2^31 - 1, found {segment_bytes}")


def segment_base_offset(
    run: BatchRun, number: int, log_end: int, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> int:
    """Return the base offset of a segment that begins with a batch of a run. log_end: the end of the log before it.

    It is the batch's first offset. The header of a v0/v1 wrapper has none, so the wrapper is opened. One that cannot be
    opened, or is larger than max_decompressed_bytes, may be copied all the same: the segment then begins at log_end.
    """
    try:
        return RecordBatch(run, number, max_decompressed_bytes).base_offset
    except KafkaFormatError:
        return max(log_end, int(run.index["last_offset"][number]) - MAX_INT32)


def ensure_ascending(rows: NDArray[np.void], next_offset: int, path: Path) -> None:
    """Raise InvalidRecordError if offsets do not ascend from `next_offset` on. path: the file in the error."""
    if not len(rows):
        return
    wrong = out_of_order(rows, next_offset)
    if wrong.any():
        number = int(wrong.argmax())
        bases, lasts = rows["base_offset"], rows["last_offset"]
        expected = int(lasts[number - 1]) + 1 if number else next_offset
        found = int(first_offsets(rows[number : number + 1])[0])
        raise InvalidRecordError(
            f"offsets of a log ascend: expected {expected} or more, found {found}",
            position=int(rows["position"][number]),
            base_offset=int(bases[number]) if bases[number] >= 0 else None,
            last_offset=int(lasts[number]),
            path=str(path),
        )


def write_all(descriptor: int, data: memoryview, position: int) -> None:
    """Write `data` at `position`, so that it overwrites the bytes of a failed attempt, as on a full disk."""
    while len(data):
        written = os.pwrite(descriptor, data, position)
        data, position = data[written:], position + written
