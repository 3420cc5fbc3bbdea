"""The three indexes beside a segment: offset to position, timestamp to offset, and aborted transactions.

All are sorted arrays of big-endian entries without a checksum, so nothing they say is taken on trust. Reading
keeps the entries up to the first that breaks the order (the zeros of a preallocated file do) and never fails;
whoever uses an entry checks it against the log and scans the log instead where it does not hold.

    .index      | relative offset int32 | position int32 |                       OffsetIndex
    .timeindex  | timestamp int64 | relative offset int32 |                      TimeIndex
    .txnindex   | version int16 | producer id int64 | first offset int64 |       TransactionIndex, AbortedTxn
                | last offset int64 | last stable offset int64 |
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkafmt._util.files import read_regular

if TYPE_CHECKING:
    from numpy.typing import NDArray

OFFSET_INDEX_DTYPE = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
TIME_INDEX_DTYPE = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])
TRANSACTION_INDEX_DTYPE = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
TRANSACTION_INDEX_VERSION = 0

# The broker's default of `log.index.interval.bytes`.
DEFAULT_INDEX_INTERVAL_BYTES = 4096
NO_TIMESTAMP = -1


class TimestampOffset(NamedTuple):
    """A timestamp in milliseconds, and the offset it belongs to."""

    timestamp: int
    offset: int


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted, as `.txnindex` has it (Kafka's AbortedTxn).

    first_offset is that of its first batch, last_offset that of the abort marker; below last_stable_offset no
    transaction was open once it had ended.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True)
class OffsetIndex:
    """The usable entries of an `.index` file; see `OFFSET_INDEX_DTYPE`. Offsets are relative to base_offset.

    An entry holds the last offset of a batch, or of several that were appended at once, and the position of
    the first of them.
    """

    base_offset: int
    entries: NDArray[np.void]

    @classmethod
    def read(cls, path: Path, base_offset: int) -> OffsetIndex:
        """The index in a file; empty where the file is missing, unreadable or holds nothing of use."""
        return cls.from_bytes(_read_bytes(path), base_offset)

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int) -> OffsetIndex:
        """The index that a file with these bytes holds; empty where they hold nothing of use."""
        entries = _entries(data, OFFSET_INDEX_DTYPE)
        offsets, positions = entries["relative_offset"].astype("i8"), entries["position"].astype("i8")
        # No entry is ever made for the first batch, so positions start above 0.
        usable = (np.diff(offsets, prepend=-1) > 0) & (np.diff(positions, prepend=0) > 0)
        return cls(base_offset, entries[: _leading(usable)])

    def __len__(self) -> int:
        return len(self.entries)

    def position_at_or_below(self, offset: int) -> int:
        """The position of the last entry whose offset is `offset` or less; 0 where there is none."""
        slot = int(self.entries["relative_offset"].searchsorted(offset - self.base_offset, side="right"))
        return int(self.entries["position"][slot - 1]) if slot else 0

    def entry_at_or_below(self, position: int) -> tuple[int, int] | None:
        """Offset and position of the last entry whose position is `position` or less."""
        slot = int(self.entries["position"].searchsorted(position, side="right"))
        if not slot:
            return None
        entry = self.entries[slot - 1]
        return self.base_offset + int(entry["relative_offset"]), int(entry["position"])


@dataclass(frozen=True)
class TimeIndex:
    """The usable entries of a `.timeindex` file; see `TIME_INDEX_DTYPE`. Offsets are relative to base_offset.

    An entry (timestamp, offset) says that no record up to the offset's batch has a higher timestamp.
    """

    base_offset: int
    entries: NDArray[np.void]

    @classmethod
    def read(cls, path: Path, base_offset: int) -> TimeIndex:
        """The index in a file; empty where the file is missing, unreadable or holds nothing of use."""
        return cls.from_bytes(_read_bytes(path), base_offset)

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int) -> TimeIndex:
        """The index that a file with these bytes holds; empty where they hold nothing of use."""
        entries = _entries(data, TIME_INDEX_DTYPE)
        timestamps, offsets = entries["timestamp"].astype("i8"), entries["relative_offset"].astype("i8")
        usable = np.ones(len(entries), np.bool_)
        usable[1:] = (timestamps[1:] > timestamps[:-1]) & (offsets[1:] >= offsets[:-1])
        usable &= (timestamps > NO_TIMESTAMP) & (offsets >= 0)
        return cls(base_offset, entries[: _leading(usable)])

    def __len__(self) -> int:
        return len(self.entries)

    def last_below(self, timestamp: int) -> TimestampOffset | None:
        """The last entry with a lower timestamp."""
        slot = int(self.entries["timestamp"].searchsorted(timestamp, side="left"))
        if not slot:
            return None
        entry = self.entries[slot - 1]
        return TimestampOffset(int(entry["timestamp"]), self.base_offset + int(entry["relative_offset"]))


def read_transaction_index(
    path: Path, base_offset: int, *, is_active: bool = False
) -> list[AbortedTransaction] | None:
    """The entries of a `.txnindex` file as `transactions_from_bytes` has them, none where it is missing."""
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return []
    except OSError:
        return None
    return transactions_from_bytes(data, base_offset, is_active=is_active)


def transactions_from_bytes(
    data: bytes, base_offset: int, *, is_active: bool = False
) -> list[AbortedTransaction] | None:
    """The entries that a `.txnindex` file with these bytes holds; None where what it says cannot be.

    The file of an active segment may end within an entry, which is left out.
    """
    entries = _entries(data, TRANSACTION_INDEX_DTYPE)
    last_offsets = entries["last_offset"].astype("i8")
    usable = (
        (entries["version"] == TRANSACTION_INDEX_VERSION)
        & (entries["producer_id"] >= 0)
        & (entries["first_offset"] >= 0)
        & (entries["first_offset"] < last_offsets)
        & (np.diff(last_offsets, prepend=base_offset - 1) > 0)
    )
    if not usable.all() or (entries.nbytes != len(data) and not is_active):
        return None
    return [AbortedTransaction(*entry[1:]) for entry in entries.tolist()]


def transaction_entries(transactions: Iterable[AbortedTransaction]) -> NDArray[np.void]:
    """Entries of a `.txnindex` file, in the order of their last offsets."""
    ordered = sorted(transactions, key=lambda transaction: transaction.last_offset)
    rows = [(TRANSACTION_INDEX_VERSION, *transaction) for transaction in ordered]
    return np.array(rows, TRANSACTION_INDEX_DTYPE)


class IndexBuilder:
    """Chooses the entries of a segment's offset and time index as Kafka does (LogSegment.append, .recover).

    A batch gets an entry where more than `index_interval_bytes` lie between it and the last that got one; a
    time entry goes with it where the highest timestamp so far is new.
    """

    def __init__(self, base_offset: int, index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES) -> None:
        self.base_offset = base_offset
        self.index_interval_bytes = index_interval_bytes
        self._last_position = 0
        self._highest = TimestampOffset(NO_TIMESTAMP, base_offset)
        self._last_timestamp = NO_TIMESTAMP
        self._offset_entries: list[NDArray[np.void]] = []
        self._time_entries: list[NDArray[np.void]] = []

    def add(self, rows: NDArray[np.void]) -> None:
        """Take note of batches, rows of the shallow index with positions in the segment."""
        chosen = self._choose(rows["position"].tolist())
        last_offsets = rows["last_offset"]
        entries = np.empty(len(chosen), OFFSET_INDEX_DTYPE)
        entries["relative_offset"] = last_offsets[chosen] - self.base_offset
        entries["position"] = rows["position"][chosen]
        self._offset_entries.append(entries)

        timestamps = np.concatenate(([self._highest.timestamp], rows["max_timestamp"]))
        offsets = np.concatenate(([self._highest.offset], last_offsets))
        highest = np.maximum.accumulate(timestamps)
        rises = np.zeros(len(timestamps), np.intp)
        rises[1:] = np.where(timestamps[1:] > highest[:-1], np.arange(1, len(timestamps)), 0)
        earliest = np.maximum.accumulate(rises)
        self._add_times(highest[1:][chosen], offsets[earliest[1:][chosen]])
        self._highest = TimestampOffset(int(highest[-1]), int(offsets[earliest[-1]]))

    def resume(self, last_position: int, highest: TimestampOffset) -> None:
        """Go on behind entries that files have: the position in the last offset entry, and the last time entry."""
        self._last_position, self._highest = last_position, highest
        self._last_timestamp = highest.timestamp

    def take(self) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """The offset entries and the time entries that were not taken yet."""
        taken = (
            _joined(self._offset_entries, OFFSET_INDEX_DTYPE),
            _joined(self._time_entries, TIME_INDEX_DTYPE),
        )
        self._offset_entries, self._time_entries = [], []
        return taken

    def finish(self) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """The entries that were not taken yet: the last time entry is for the highest timestamp of all."""
        self._add_times(np.array([self._highest.timestamp]), np.array([self._highest.offset]))
        return self.take()

    def _choose(self, positions: Sequence[int]) -> list[int]:
        chosen = []
        number = bisect_right(positions, self._last_position + self.index_interval_bytes)
        while number < len(positions):
            chosen.append(number)
            self._last_position = positions[number]
            number = bisect_right(positions, self._last_position + self.index_interval_bytes, number + 1)
        return chosen

    def _add_times(self, timestamps: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        new = np.diff(timestamps, prepend=self._last_timestamp) > 0
        if new.any():
            entries = np.empty(int(new.sum()), TIME_INDEX_DTYPE)
            entries["timestamp"] = timestamps[new]
            entries["relative_offset"] = offsets[new] - self.base_offset
            self._time_entries.append(entries)
            self._last_timestamp = int(timestamps[-1])


def _read_bytes(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError:
        return b""


def _entries(data: bytes, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    return np.frombuffer(data, dtype, len(data) // dtype.itemsize)


def _joined(parts: list[NDArray[np.void]], dtype: np.dtype[np.void]) -> NDArray[np.void]:
    # Without the dtype numpy would join big-endian entries into an array of native ones.
    return np.concatenate([np.empty(0, dtype), *parts], dtype=dtype)


def _leading(usable: NDArray[np.bool_]) -> int:
    """How many hold before the first that does not."""
    return len(usable) if usable.all() else int(usable.argmin())
