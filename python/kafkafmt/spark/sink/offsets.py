"""Offsets of batches that are built already: counted anew, or moved as a whole once it is known what is in front.

The offset that a batch begins with stands in front of its CRC, so it is written over in place. In a compressed
message of v1, those inside are relative to it; in one of v0 they are absolute, and cannot be changed like that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.layout import BASE_OFFSET_OFFSET
from _kafkafmt.scan import BatchRun
from kafkafmt.errors import InvalidRecordError
from kafkafmt.log.appending import write_all

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Where in a segment a batch begins, and what stands in its first field: its base offset, or the last one of a wrapper.
POSITION_DTYPE = np.dtype([("position", "<i8"), ("offset", "<i8")])

_OFFSET_DTYPE = np.dtype(">i8")
# With batches smaller than this on average, all of a window is written rather than each offset in it.
_SMALL_BATCH_BYTES = 1024
_WINDOW_BYTES = 1024 * 1024


def positions_of(run: BatchRun, first: int, stop: int, position: int) -> NDArray[np.void]:
    """Of batches `first` to `stop`, which are to stand from `position` on."""
    rows = run.index[first:stop]
    positions = np.empty(len(rows), POSITION_DTYPE)
    positions["position"] = rows["position"] - rows["position"][0] + position
    positions["offset"] = np.where(rows["base_offset"] < 0, rows["last_offset"], rows["base_offset"])
    return positions


def renumbered(run: BatchRun, next_offset: int) -> tuple[BatchRun, int]:
    """The same batches with offsets from `next_offset` on, each behind the last, and the offset behind all.

    Raises InvalidRecordError for a compressed v0/v1 wrapper, whose count nobody knows who does not decompress it.
    """
    rows = run.index.copy()
    wrappers = rows["base_offset"] < 0
    if wrappers.any():
        wrapper = rows[int(wrappers.argmax())]
        raise InvalidRecordError(
            f"offsets=dense: expected batches of format v2, or no codec, found v{wrapper['magic']} with one",
            last_offset=int(wrapper["last_offset"]),
        )
    spans = rows["last_offset"] - rows["base_offset"] + 1
    ends = next_offset + np.cumsum(spans)
    rows["base_offset"], rows["last_offset"] = ends - spans, ends - 1
    data = np.frombuffer(memoryview(run.buffer), np.uint8).copy()
    _put(data, rows["position"] - run.origin, rows["base_offset"])
    return BatchRun(memoryview(data), rows, run.origin), int(ends[-1]) if len(ends) else next_offset


def move_offsets(log: Path, positions: Path, distance: int) -> None:
    """Add `distance` to the offsets of all batches of a segment, durably; nothing else of it is read or written."""
    found = np.fromfile(positions, POSITION_DTYPE)
    found["offset"] += distance
    descriptor = os.open(log, os.O_RDWR | os.O_CLOEXEC)
    try:
        if len(found) * _SMALL_BATCH_BYTES > os.fstat(descriptor).st_size:
            _write_windows(descriptor, found)
        else:
            _write_each(descriptor, found)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_each(descriptor: int, found: NDArray[np.void]) -> None:
    offsets = memoryview(found["offset"].astype(_OFFSET_DTYPE).tobytes())
    size = _OFFSET_DTYPE.itemsize
    for number, position in enumerate(found["position"].tolist()):
        os.pwrite(descriptor, offsets[number * size : (number + 1) * size], position + BASE_OFFSET_OFFSET)


def _write_windows(descriptor: int, found: NDArray[np.void]) -> None:
    first = 0
    while first < len(found):
        start = int(found["position"][first])
        stop = max(int(found["position"].searchsorted(start + _WINDOW_BYTES)), first + 1)
        last = int(found["position"][stop - 1])
        data = bytearray(
            os.pread(descriptor, last - start + BASE_OFFSET_OFFSET + _OFFSET_DTYPE.itemsize, start)
        )
        window = found[first:stop]
        _put(np.frombuffer(data, np.uint8), window["position"] - start, window["offset"])
        write_all(descriptor, memoryview(data), start)
        first = stop


def _put(data: NDArray[np.uint8], positions: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
    places = (positions + BASE_OFFSET_OFFSET)[:, None] + np.arange(_OFFSET_DTYPE.itemsize)
    data[places] = offsets.astype(_OFFSET_DTYPE)[:, None].view(np.uint8)
