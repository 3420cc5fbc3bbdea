"""Payloads as Arrow arrays, the limit of their columns, and the search for the rows with which an operation fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from _kafkafmt.payloads.nodes import max_column_bytes
from kafkafmt.columns.arrow import number_array
from kafkafmt.decode.payloads import Payloads

# What Arrow raises for values that a type cannot have. Some casts fail only if there is a value, or a null.
MISFITS = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


class ColumnBudget:
    """The bytes that columns may take: see `max_column_bytes`.

    payload_bytes: of all payloads, or of what else the columns are made of, which `made_of` names in errors.
    """

    def __init__(self, payload_bytes: int, made_of: str = "payloads") -> None:
        self._payload_bytes, self._made_of = payload_bytes, made_of
        self._column_bytes = 0

    def take(self, size: int) -> None:
        """Count bytes that columns will take. Raises OverflowError above the limit."""
        self._column_bytes += size
        limit = max_column_bytes(self._payload_bytes)
        if self._column_bytes > limit:
            raise OverflowError(
                f"{self._made_of} of {self._payload_bytes} bytes: expected columns of at most {limit} bytes in all; "
                "found more"
            )


def payload_bytes(payloads: Payloads, row: int) -> bytes:
    """Return the bytes of one payload."""
    return payloads.data[payloads.starts[row] : payloads.ends[row]].tobytes()


def binary_array(payloads: Payloads) -> pa.Array:
    """Return payloads, in the order of their bytes, as an array of large binary. Copies only if there are gaps."""
    count = len(payloads)
    data = pa.py_buffer(payloads.data)
    starts, ends = payloads.starts, payloads.ends
    if not count:
        return pa.nulls(0, pa.large_binary())
    if (starts[1:] == ends[:-1]).all():
        offsets = np.append(starts, ends[-1:])
        return pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(offsets), data])
    if (starts[1:] < ends[:-1]).any():
        raise ValueError("payloads overlap or are not in the order of their bytes")
    # Every other entry is the gap between two payloads: Arrow copies the payloads, without an object for each.
    offsets = np.stack([starts, ends], axis=1).reshape(-1)
    entries = pa.Array.from_buffers(pa.large_binary(), 2 * count - 1, [None, pa.py_buffer(offsets), data])
    return entries.take(number_array(pa.int64(), np.arange(0, 2 * count, 2)))


def chunk_error_rows(count: int, operation: Callable[[int, int], Any]) -> Iterator[int]:
    """Yield the rows with which `operation(start, end)` on rows raises one of MISFITS, found by halving."""
    ranges = [(0, count)]
    while ranges:
        start, end = ranges.pop()
        try:
            operation(start, end)
        except MISFITS:
            if end - start == 1:
                yield start
            else:
                middle = (start + end) // 2
                ranges += [(middle, end), (start, middle)]
