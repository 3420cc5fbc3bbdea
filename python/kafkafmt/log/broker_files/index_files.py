"""The indexes beside a segment, read strictly. Their format is in `kafkafmt.log.indexes`.

The name of the file has the base offset of the segment. An index may end with zeros: a broker preallocates the indexes
of an active segment.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from kafkafmt.log.broker_files.errors import BrokerFileError
from kafkafmt.log.indexes import (
    OFFSET_INDEX_DTYPE,
    TIME_INDEX_DTYPE,
    TRANSACTION_INDEX_DTYPE,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    transactions_from_bytes,
)
from kafkafmt.log.segment import MAX_OFFSET
from kafkafmt.storage import AnyPath, StoragePath, read_file, storage_path

_DIGITS = 20


def offset_index(path: AnyPath) -> OffsetIndex:
    """Read an `.index`: offsets and positions of batches. Raises BrokerFileError if it is malformed, and OSError."""
    located = storage_path(path)
    return parse_offset_index(read_file(located), base_offset_of(located), str(located))


def time_index(path: AnyPath) -> TimeIndex:
    """Read a `.timeindex`: timestamps and offsets. Raises BrokerFileError if it is malformed, and OSError."""
    located = storage_path(path)
    return parse_time_index(read_file(located), base_offset_of(located), str(located))


def transaction_index(path: AnyPath) -> list[AbortedTransaction]:
    """Read a `.txnindex`: aborted transactions. Raises BrokerFileError if it is malformed, and OSError."""
    located = storage_path(path)
    return parse_transaction_index(read_file(located), base_offset_of(located), str(located))


def base_offset_of(path: StoragePath) -> int:
    """Return the base offset in the name of a file beside a segment. Raises BrokerFileError for another name."""
    digits = path.name.partition(".")[0]
    if len(digits) != _DIGITS or not digits.isascii() or not digits.isdigit() or int(digits) > MAX_OFFSET:
        message = f"expected a name that begins with the base offset in {_DIGITS} digits, found {path.name}"
        raise BrokerFileError(message, path=str(path))
    return int(digits)


def parse_offset_index(data: bytes, base_offset: int, name: str) -> OffsetIndex:
    """Parse the bytes of an `.index`. name: the file's path or URI, for errors. Raises BrokerFileError."""
    index = OffsetIndex.from_bytes(data, base_offset)
    _ensure_read(data, len(index), OFFSET_INDEX_DTYPE, name, "an offset and a position above those before")
    return index


def parse_time_index(data: bytes, base_offset: int, name: str) -> TimeIndex:
    """Parse the bytes of a `.timeindex`. name: the file's path or URI, for errors. Raises BrokerFileError."""
    is_preallocated = len(data) > TIME_INDEX_DTYPE.itemsize and not data.strip(b"\0")
    index = TimeIndex.from_bytes(b"" if is_preallocated else data, base_offset)
    expected = "a timestamp above the one before, and an offset not below"
    _ensure_read(data, len(index), TIME_INDEX_DTYPE, name, expected)
    return index


def parse_transaction_index(data: bytes, base_offset: int, name: str) -> list[AbortedTransaction]:
    """Parse the bytes of a `.txnindex`. name: the file's path or URI, for errors. Raises BrokerFileError."""
    found = transactions_from_bytes(data, base_offset)
    if found is not None:
        return found
    size = TRANSACTION_INDEX_DTYPE.itemsize
    wrong = bisect_left(
        range(len(data) // size),
        True,
        key=lambda number: transactions_from_bytes(data[: (number + 1) * size], base_offset) is None,
    )
    _ensure_read(
        data, wrong, TRANSACTION_INDEX_DTYPE, name, "version 0, a producer id, and ascending offsets"
    )
    raise AssertionError("an index that is refused has a wrong entry")


def _ensure_read(data: bytes, usable: int, dtype: np.dtype[np.void], name: str, expected: str) -> None:
    """Raise BrokerFileError if anything but zeros follows the usable entries of an index, or part of an entry."""
    size = dtype.itemsize
    position = usable * size
    if len(data) % size:
        message = f"expected entries of {size} bytes, found {len(data)} bytes"
        raise BrokerFileError(message, path=name)
    if data.count(b"\0", position) == len(data) - position and dtype is not TRANSACTION_INDEX_DTYPE:
        return
    entry = np.frombuffer(data, dtype, 1, position)[0]
    values = ", ".join(
        f"{field} {value}" for field, value in zip(dtype.names or (), entry.tolist(), strict=True)
    )
    message = f"entry {usable} at position {position}: expected {expected}, found {values}"
    raise BrokerFileError(message, path=name)
