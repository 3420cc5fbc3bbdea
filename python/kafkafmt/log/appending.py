"""Appending to a segment's file: batches are checked and indexed as they are written, wherever the file is.

What makes the segment be there, and when, is its owner's matter: see `SegmentWriter`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.scan import scan
from kafkafmt.batch import RecordBatch
from kafkafmt.buffers import flat_view
from kafkafmt.errors import InvalidRecordError
from kafkafmt.log.indexes import DEFAULT_INDEX_INTERVAL_BYTES, IndexBuilder, TimestampOffset
from kafkafmt.log.segment import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from _kafkafmt.scan import BatchRun

# Positions and relative offsets in an index are int32.
MAX_INT32 = 2**31 - 1
_INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


class SegmentAppender:
    """What is known of a segment that grows: its size, where its offsets go on, and its indexes.

    path: what errors call it. The file is its owner's, who hands its descriptor in.
    """

    def __init__(
        self, path: Path, base_offset: int, index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.size_in_bytes = 0
        self.next_offset = base_offset
        self._indexes = IndexBuilder(base_offset, index_interval_bytes)

    def append_run(self, descriptor: int, run: BatchRun, first: int = 0, stop: int | None = None) -> None:
        """Write batches `first` to `stop` of a run, from which no byte is missing between them.

        Raises as `SegmentWriter.append` does.
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
        write_all(descriptor, data, self.size_in_bytes)
        self._take_in(rows)

    def resume(self, position: int, highest: TimestampOffset) -> None:
        """Go on in a file that has index entries: the last ones are for the batch at `position`, and for `highest`."""
        self.size_in_bytes = position
        self._indexes.resume(position, highest)

    def pass_over(self, rows: NDArray[np.void]) -> None:
        """Take note of batches that the file has behind those that are known. Raises as `append_run`."""
        if len(rows):
            self._check(rows)
            self._take_in(rows)

    def fitting(self, rows: NDArray[np.void], segment_bytes: int) -> int:
        """How many batches of `rows` go into a segment of `segment_bytes`: at least one into an empty one."""
        left = segment_bytes - self.size_in_bytes
        fit_by_size = int(rows["size"].cumsum(dtype="i8").searchsorted(left, side="right"))
        too_far = rows["last_offset"] - self.base_offset > MAX_INT32
        fit_by_offset = int(too_far.argmax()) if too_far.any() else len(rows)
        return max(min(fit_by_size, fit_by_offset), 0 if self.size_in_bytes else 1)

    def index_entries(self) -> dict[str, NDArray[np.void]]:
        """The entries of `.index` and `.timeindex`, by suffix, that were not asked for yet: the last there are."""
        return dict(zip(_INDEX_SUFFIXES, self._indexes.finish(), strict=True))

    def new_index_entries(self) -> dict[str, NDArray[np.void]]:
        """As `index_entries`, of a segment that goes on to grow."""
        return dict(zip(_INDEX_SUFFIXES, self._indexes.take(), strict=True))

    def _take_in(self, rows: NDArray[np.void]) -> None:
        self._indexes.add(rows)
        self.size_in_bytes += int(rows["size"].sum())
        self.next_offset = int(rows["last_offset"][-1]) + 1

    def _check(self, rows: NDArray[np.void]) -> None:
        ensure_ascending(rows, self.next_offset, self.path)
        lasts = rows["last_offset"]
        if int(lasts[-1]) - self.base_offset > MAX_INT32:
            message = f"expected at most 2^31 offsets from {self.base_offset} on, found {lasts[-1]}"
            raise ValueError(f"{self.path}: {message}")
        if self.size_in_bytes + int(rows["size"].sum()) > MAX_INT32:
            raise ValueError(f"{self.path}: expected at most 2^31 - 1 bytes in a segment")


def ensure_ascending(rows: NDArray[np.void], next_offset: int, path: Path) -> None:
    """Raise InvalidRecordError for offsets that are below `next_offset` or those in front of them."""
    if not len(rows):
        return
    bases, lasts = rows["base_offset"], rows["last_offset"]
    firsts = np.where(bases >= 0, bases, lasts)
    expected = np.concatenate(([next_offset], lasts[:-1] + 1))
    wrong = (firsts < expected) | (lasts < firsts)
    if wrong.any():
        number = int(wrong.argmax())
        raise InvalidRecordError(
            f"offsets of a log ascend: expected {expected[number]} or more, found {firsts[number]}",
            position=int(rows["position"][number]),
            base_offset=int(bases[number]) if bases[number] >= 0 else None,
            last_offset=int(lasts[number]),
            path=str(path),
        )


def whole_batches(data: RecordBatch | Buffer, origin: int) -> BatchRun:
    """The batches that `data` is, one or the bytes of several, as a run from position `origin` on.

    Raises KafkaFormatError for bytes that are none, and ValueError for a part of one at the end.
    """
    view = flat_view(data.buffer if isinstance(data, RecordBatch) else data)
    run, consumed, _, _, error = scan(view, origin)
    if error is not None:
        raise error
    if consumed != view.nbytes:
        left = view.nbytes - consumed
        raise ValueError(
            f"expected whole batches, found {left} bytes of a part of one at position {origin + consumed}"
        )
    return run


def write_all(descriptor: int, data: memoryview, position: int) -> None:
    """At a position of its own: what an attempt that failed, as on a full disk, has left there is written over."""
    while len(data):
        written = os.pwrite(descriptor, data, position)
        data, position = data[written:], position + written


def write_index(path: Path, entries: NDArray[np.void]) -> None:
    """Write a new file, durably."""
    with path.open("xb") as file:
        file.write(entries.tobytes())
        file.flush()
        os.fsync(file.fileno())
