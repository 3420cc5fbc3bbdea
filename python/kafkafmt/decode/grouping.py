"""Group rows by the bytes of integers, and put the values of groups back in the order of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


def group_rows(keys: Sequence[NDArray[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group rows whose keys are equal.

    keys: columns of integers with an entry a row, at least one row each.

    Returns the first row of each group, and the group of each row. Groups are numbered from 0.
    """
    groups = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        if (key == key[0]).all():
            continue
        values, numbers = np.unique(key, return_inverse=True)
        _, groups = np.unique(groups * len(values) + numbers.reshape(-1), return_inverse=True)
        groups = groups.reshape(-1).astype(np.int64)
    _, first = np.unique(groups, return_index=True)
    return first.astype(np.int64), groups


def rows_of_groups(groups: NDArray[np.int64], count: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each of `count` groups, in ascending order. Rows whose group is -1 are in none."""
    if count == 1:
        yield np.flatnonzero(groups == 0) if groups.any() else np.arange(len(groups))
        return
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(count + 1))
    for group in range(count):
        yield order[bounds[group] : bounds[group + 1]]


def in_row_order(
    kind: pa.DataType, parts: Sequence[tuple[NDArray[np.int64], pa.Array]], count: int
) -> pa.Array:
    """Return an array of `count` rows with the values of each part at its rows, and null in all other rows."""
    import pyarrow as pa

    from kafkafmt.columns.arrow import number_array

    if len(parts) == 1 and len(parts[0][0]) == count:
        return parts[0][1]
    if not parts:
        return pa.nulls(count, kind)
    places = np.full(count, -1, np.int64)
    start = 0
    for rows, array in parts:
        places[rows] = np.arange(start, start + len(array))
        start += len(array)
    values = pa.concat_arrays([array for _, array in parts]) if len(parts) > 1 else parts[0][1]
    return values.take(number_array(pa.int64(), places, places >= 0))
