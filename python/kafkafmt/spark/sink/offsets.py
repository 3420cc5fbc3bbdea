"""Change the offsets of complete batches: renumber them, or move them by a distance once the log's end is known.

The CRC of a batch does not cover its first field, the offset, which is overwritten in place. In a compressed v1 message
the inner offsets are relative to it. In a compressed v0 message they are absolute, and cannot be changed in this way.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.batches.scan import BatchRun
from _kafkafmt.wire.layout import BASE_OFFSET_OFFSET
from kafkafmt._util.files import sync_path
from kafkafmt.errors import InvalidRecordError
from kafkafmt.log.batch_writer import write_all

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The position of a batch in its segment, and its first field: the base offset, or the last offset of a wrapper.
POSITION_DTYPE = np.dtype([("position", "<i8"), ("offset", "<i8")])

_OFFSET_DTYPE = np.dtype(">i8")
# If batches are smaller than this on average, whole windows are rewritten instead of single offsets.
_SMALL_BATCH_BYTES = 1024
_WINDOW_BYTES = 1024 * 1024


def positions_of(run: BatchRun, first: int, stop: int, position: int) -> NDArray[np.void]:
    """Return the positions (POSITION_DTYPE) of batches `first` to before `stop`, written from `position` on."""
    rows = run.index[first:stop]
    positions = np.empty(len(rows), POSITION_DTYPE)
    positions["position"] = rows["position"] - rows["position"][0] + position
    positions["offset"] = np.where(rows["base_offset"] < 0, rows["last_offset"], rows["base_offset"])
    return positions


def renumbered(run: BatchRun, next_offset: int) -> tuple[BatchRun, int]:
    """Return a copy of the batches with offsets from `next_offset` on, without gaps, and the offset after the last.

    Raises InvalidRecordError for a compressed v0/v1 wrapper: its count is unknown without decompressing it.
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
    """Add `distance` to the offsets of all batches of a segment in place, and make the segment durable.

    positions: the file of the batches' positions. Raises OSError.
    """
    found = np.fromfile(positions, POSITION_DTYPE)
    found["offset"] += distance
    descriptor = os.open(log, os.O_RDWR | os.O_CLOEXEC)
    try:
        if len(found) * _SMALL_BATCH_BYTES > os.fstat(descriptor).st_size:
            _write_windows(descriptor, found)
        else:
            _write_each(descriptor, found)
    finally:
        os.close(descriptor)
    sync_path(log)


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
