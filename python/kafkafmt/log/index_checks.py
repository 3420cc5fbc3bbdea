"""Check the indexes beside a segment against its batches, while these are read.

A wrong index makes reads slower, and a broker that trusts it may return wrong records. Unfinished indexes of an active
segment are valid: a broker preallocates them with zeros, and writes an entry in several steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kafkafmt._util.files import NotRegularFileError
from kafkafmt.log.indexes import (
    NO_TIMESTAMP,
    OFFSET_INDEX_DTYPE,
    TIME_INDEX_DTYPE,
    OffsetIndex,
    TimeIndex,
)
from kafkafmt.log.segment import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, Segment
from kafkafmt.records.runs import first_offsets
from kafkafmt.storage import StoragePath, read_file

if TYPE_CHECKING:
    from numpy.typing import NDArray


class IndexCheck:
    """Checks the `.index` and the `.timeindex` of one segment.

    index, time_index: the bytes of the files, read before the segment is; None for a file that is missing.
    """

    def __init__(
        self, base_offset: int, index: bytes | None, time_index: bytes | None, *, is_active: bool
    ) -> None:
        self._found: dict[str, str] = {}
        self._is_active = is_active
        self._base_offset = base_offset
        if is_active:  # preallocated zeros would count as an entry
            index, time_index = (
                None if data is None else _without_zeros(data) for data in (index, time_index)
            )
        offset_entries = OffsetIndex.from_bytes(index or b"", base_offset).entries
        time_entries = TimeIndex.from_bytes(time_index or b"", base_offset).entries
        for suffix, data, entries, dtype in (
            (OFFSET_INDEX_SUFFIX, index, offset_entries, OFFSET_INDEX_DTYPE),
            (TIME_INDEX_SUFFIX, time_index, time_entries, TIME_INDEX_DTYPE),
        ):
            self._check_form(suffix, data, len(entries), dtype.itemsize)
        self._positions = offset_entries["position"].astype("i8")
        self._offsets = offset_entries["relative_offset"].astype("i8") + base_offset
        self._timestamps = time_entries["timestamp"].astype("i8")
        self._time_offsets = time_entries["relative_offset"].astype("i8") + base_offset
        self._checked = self._times_checked = 0
        self._highest, self._last_offset = NO_TIMESTAMP, base_offset - 1

    @classmethod
    def of(cls, segment: Segment) -> IndexCheck:
        """Return what checks the files beside a segment, which are read now. Raises OSError."""
        suffixes = OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
        index, time_index = (_read_if_there(segment.path.with_suffix(suffix)) for suffix in suffixes)
        return cls(segment.base_offset, index, time_index, is_active=segment.is_active)

    def add(self, rows: NDArray[np.void]) -> None:
        """Check the next batches of the segment: rows of the shallow index, in order."""
        self._check_positions(rows)
        self._check_timestamps(rows)
        self._last_offset = int(rows["last_offset"][-1])

    def findings(self) -> list[str]:
        """Return a line for each wrong index, which names its first wrong entry. Call it after all batches."""
        if self._checked < len(self._positions):
            position = self._positions[self._checked]
            self._note(OFFSET_INDEX_SUFFIX, self._checked, f"position {position} is past the last batch")
        above = int(self._offsets.searchsorted(self._last_offset, "right"))
        if above < len(self._offsets):
            message = f"offset {self._offsets[above]} is above the last one, {self._last_offset}"
            self._note(OFFSET_INDEX_SUFFIX, above, message)
        if self._times_checked < len(self._time_offsets):
            number = self._times_checked
            message = f"offset {self._time_offsets[number]} is above the last one, {self._last_offset}"
            self._note(TIME_INDEX_SUFFIX, number, message)
        return [f"{suffix}: {message}" for suffix, message in self._found.items()]

    def _check_form(self, suffix: str, data: bytes | None, usable: int, size: int) -> None:
        if data is None:
            if not self._is_active:
                self._found[suffix] = "missing"
            return
        rest = data[usable * size :]
        if self._is_active:
            rest = rest[size:]
        elif len(data) % size:
            self._found[suffix] = f"expected entries of {size} bytes, found {len(data)} bytes"
        if rest.strip(b"\0"):
            self._note(suffix, usable, "expected it to be above the one before it")

    def _check_positions(self, rows: NDArray[np.void]) -> None:
        end = int(rows["position"][-1]) + int(rows["size"][-1])
        stop = int(self._positions.searchsorted(end))
        wanted = self._positions[self._checked : stop]
        batches = rows["position"].searchsorted(wanted, "right") - 1
        begins = (batches >= 0) & (rows["position"][batches] == wanted)
        right = begins & (first_offsets(rows)[batches] <= self._offsets[self._checked : stop])
        if not right.all():
            number = self._checked + int(right.argmin())
            where = f"offset {self._offsets[number]} at position {self._positions[number]}"
            self._note(
                OFFSET_INDEX_SUFFIX, number, f"expected a batch that begins there, found none for {where}"
            )
        self._checked = stop

    def _check_timestamps(self, rows: NDArray[np.void]) -> None:
        highest = np.maximum.accumulate(np.maximum(rows["max_timestamp"], self._highest))
        stop = int(self._time_offsets.searchsorted(int(rows["last_offset"][-1]), "right"))
        batches = rows["last_offset"].searchsorted(self._time_offsets[self._times_checked : stop])
        right = highest[batches] == self._timestamps[self._times_checked : stop]
        if not right.all():
            wrong = int(right.argmin())
            number = self._times_checked + wrong
            self._note(
                TIME_INDEX_SUFFIX,
                number,
                f"expected {highest[batches[wrong]]}, the highest timestamp up to offset "
                f"{self._time_offsets[number]}, found {self._timestamps[number]}",
            )
        self._times_checked, self._highest = stop, int(highest[-1])

    def _note(self, suffix: str, number: int, message: str) -> None:
        self._found.setdefault(suffix, f"entry {number}: {message}")


def _without_zeros(data: bytes) -> bytes:
    """Return the bytes of an index; empty if all are zero, as it has no entry yet."""
    return data if data.strip(b"\0") else b""


def _read_if_there(path: StoragePath) -> bytes | None:
    try:
        return read_file(path)
    except (FileNotFoundError, NotRegularFileError):
        return None
