"""The three indexes beside a segment: offset to position, timestamp to offset, and aborted transactions.

All are sorted arrays of big-endian entries without a checksum, so no entry is trusted. Reading keeps the entries up to
the first that breaks the order, such as the zeros of a preallocated file, and raises no errors. The user of an entry
checks it against the log, and scans the log if it does not match.

    .index      | relative offset int32 | position int32 |                       OffsetIndex
    .timeindex  | timestamp int64 | relative offset int32 |                      TimeIndex
    .txnindex   | version int16 | producer id int64 | first offset int64 |       TransactionIndex, AbortedTxn
                | last offset int64 | last stable offset int64 |
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkafmt.storage import AnyPath, StoragePath, read_file, storage_of, storage_path

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
# How many bytes of an index are read first, and how many bytes contain a whole entry from any position on.
_FIRST_READ_BYTES, _ENTRY_IN_ANY = 64 * 1024, 2 * 12


class TimestampOffset(NamedTuple):
    """A timestamp in milliseconds, and its offset."""

    timestamp: int
    offset: int


class AbortedTransaction(NamedTuple):
    """An aborted transaction, an entry of `.txnindex` (Kafka's AbortedTxn).

    first_offset: that of its first batch.
    last_offset: that of its abort marker.
    last_stable_offset: after the marker, no transaction was open below this offset.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, eq=False)
class OffsetIndex:
    """The valid entries of an `.index` file, of `OFFSET_INDEX_DTYPE`. Offsets are relative to base_offset.

    An entry has the last offset and the position of a batch. For several batches that were appended at once, it has the
    last offset of all and the position of the first.
    """

    base_offset: int
    entries: NDArray[np.void]

    @classmethod
    def read(cls, path: AnyPath, base_offset: int) -> OffsetIndex:
        """Read the index from a file; empty if the file is missing, unreadable or has no valid entry."""
        return cls.from_bytes(_read_bytes(storage_path(path)), base_offset)

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int) -> OffsetIndex:
        """Parse the bytes of an index file; empty if they have no valid entry."""
        entries = _entries(data, OFFSET_INDEX_DTYPE)
        offsets, positions = entries["relative_offset"].astype("i8"), entries["position"].astype("i8")
        # No entry is ever made for the first batch, so positions start above 0.
        usable = (np.diff(offsets, prepend=-1) > 0) & (np.diff(positions, prepend=0) > 0)
        return cls(base_offset, entries[: _leading(usable)])

    def __len__(self) -> int:
        return len(self.entries)

    def position_at_or_below(self, offset: int) -> int:
        """Return the position of the last entry whose offset is `offset` or less; 0 if there is none."""
        slot = int(self.entries["relative_offset"].searchsorted(offset - self.base_offset, side="right"))
        return int(self.entries["position"][slot - 1]) if slot else 0

    def entry_at_or_below(self, position: int) -> tuple[int, int] | None:
        """Return offset and position of the last entry whose position is `position` or less; None if there is none."""
        slot = int(self.entries["position"].searchsorted(position, side="right"))
        if not slot:
            return None
        entry = self.entries[slot - 1]
        return self.base_offset + int(entry["relative_offset"]), int(entry["position"])


@dataclass(frozen=True, eq=False)
class TimeIndex:
    """The valid entries of a `.timeindex` file, of `TIME_INDEX_DTYPE`. Offsets are relative to base_offset.

    An entry (timestamp, offset) means that no record, up to the batch with that offset, has a higher timestamp.
    """

    base_offset: int
    entries: NDArray[np.void]

    @classmethod
    def read(cls, path: AnyPath, base_offset: int) -> TimeIndex:
        """Read the index from a file; empty if the file is missing, unreadable or has no valid entry."""
        return cls.from_bytes(_read_bytes(storage_path(path)), base_offset)

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int) -> TimeIndex:
        """Parse the bytes of an index file; empty if they have no valid entry."""
        entries = _entries(data, TIME_INDEX_DTYPE)
        timestamps, offsets = entries["timestamp"].astype("i8"), entries["relative_offset"].astype("i8")
        usable = np.ones(len(entries), np.bool_)
        usable[1:] = (timestamps[1:] > timestamps[:-1]) & (offsets[1:] >= offsets[:-1])
        usable &= (timestamps > NO_TIMESTAMP) & (offsets >= 0)
        return cls(base_offset, entries[: _leading(usable)])

    def __len__(self) -> int:
        return len(self.entries)

    def last_below(self, timestamp: int) -> TimestampOffset | None:
        """Return the last entry with a timestamp below `timestamp`; None if there is none."""
        slot = int(self.entries["timestamp"].searchsorted(timestamp, side="left"))
        if not slot:
            return None
        entry = self.entries[slot - 1]
        return TimestampOffset(int(entry["timestamp"]), self.base_offset + int(entry["relative_offset"]))


def read_transaction_index(
    path: StoragePath, base_offset: int, *, is_active: bool = False
) -> list[AbortedTransaction] | None:
    """Read a `.txnindex` file as `transactions_from_bytes`: empty if it is missing, None if it is unreadable."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        return []
    except OSError:
        return None
    return transactions_from_bytes(data, base_offset, is_active=is_active)


def transactions_from_bytes(
    data: bytes, base_offset: int, *, is_active: bool = False
) -> list[AbortedTransaction] | None:
    """Parse the bytes of a `.txnindex` file. Returns its entries; None if one of them is invalid.

    is_active: the file of an active segment may end with an incomplete entry, which is left out.
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
    """Return the entries of a `.txnindex` file, sorted by their last offsets."""
    ordered = sorted(transactions, key=lambda transaction: transaction.last_offset)
    rows = [(TRANSACTION_INDEX_VERSION, *transaction) for transaction in ordered]
    return np.array(rows, TRANSACTION_INDEX_DTYPE)


class IndexBuilder:
    """Choose the entries of a segment's offset and time index as Kafka does (LogSegment.append, .recover).

    A batch gets an offset entry if it begins more than `index_interval_bytes` after the last batch with an entry. If
    the highest timestamp has risen since the last time entry, it gets a time entry, too.
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
        """Add batches: rows of the shallow index, with positions in the segment."""
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
        """Continue after existing entries: the last offset entry has `last_position`, the last time entry `highest`."""
        self._last_position, self._highest = last_position, highest
        self._last_timestamp = highest.timestamp

    def take(self) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Return the offset entries and the time entries since the last call."""
        taken = (
            _joined(self._offset_entries, OFFSET_INDEX_DTYPE),
            _joined(self._time_entries, TIME_INDEX_DTYPE),
        )
        self._offset_entries, self._time_entries = [], []
        return taken

    def finish(self) -> tuple[NDArray[np.void], NDArray[np.void]]:
        """Return the remaining entries, as `take`. The last time entry is for the highest timestamp of the segment."""
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


def read_index_bytes(path: StoragePath) -> bytes:
    """Read an index at least up to its first zero entry; empty if the file is missing.

    A broker preallocates the index of an active segment with zeros. Raises OSError.
    """
    data = bytearray()
    size = _FIRST_READ_BYTES
    try:
        with storage_of(path).open(path) as file:
            while True:
                part = file.read(size)
                data += part
                if len(part) < size or not any(data[-_ENTRY_IN_ANY:]):
                    return bytes(data)
                size = len(data)
    except FileNotFoundError:
        return b""


def _read_bytes(path: StoragePath) -> bytes:
    try:
        return read_index_bytes(path)
    except OSError:
        return b""


def _entries(data: bytes, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    return np.frombuffer(data, dtype, len(data) // dtype.itemsize)


def _joined(parts: list[NDArray[np.void]], dtype: np.dtype[np.void]) -> NDArray[np.void]:
    # Without the dtype numpy would join big-endian entries into an array of native ones.
    return np.concatenate([np.empty(0, dtype), *parts], dtype=dtype)


def _leading(usable: NDArray[np.bool_]) -> int:
    """Return how many values are true before the first false one."""
    return len(usable) if usable.all() else int(usable.argmin())
