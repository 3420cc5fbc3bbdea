"""Cut and join numpy columns, as `Records.to_numpy` returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kafkafmt.columns.read import BinaryColumn, HeadersColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkafmt.columns.read import Column


def slice_columns(columns: dict[str, Column], first: int, stop: int) -> dict[str, Column]:
    """Return records `first` to `stop` (exclusive) of each column, without a copy of the values."""
    return {name: _slice_column(column, first, stop) for name, column in columns.items()}


def _slice_column(column: Column, first: int, stop: int) -> Column:
    if isinstance(column, BinaryColumn):
        return _slice_binary(column, first, stop)
    if isinstance(column, HeadersColumn):
        offsets = column.offsets[first : stop + 1]
        keys, values = (_slice_binary(one, offsets[0], offsets[-1]) for one in (column.keys, column.values))
        return HeadersColumn(offsets - offsets[0], keys, values)
    return column[first:stop]


def _slice_binary(column: BinaryColumn, first: int, stop: int) -> BinaryColumn:
    valid = None if column.valid is None else column.valid[first:stop]
    return BinaryColumn(column.offsets[first : stop + 1], column.data, valid)


def join_columns(parts: Sequence[dict[str, Column]]) -> dict[str, Column]:
    """Return the records of one or more parts, which have the same columns, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return {name: _join([part[name] for part in parts]) for name in parts[0]}


def _join(columns: Sequence[Column]) -> Column:
    if isinstance(columns[0], BinaryColumn):
        return _join_binary([column for column in columns if isinstance(column, BinaryColumn)])
    if isinstance(columns[0], HeadersColumn):
        headers = [column for column in columns if isinstance(column, HeadersColumn)]
        return HeadersColumn(
            _join_offsets([column.offsets for column in headers]),
            _join_binary([column.keys for column in headers]),
            _join_binary([column.values for column in headers]),
        )
    return np.concatenate(columns)  # type: ignore[arg-type]


def _join_binary(columns: Sequence[BinaryColumn]) -> BinaryColumn:
    data = np.concatenate([column.data[column.offsets[0] : column.offsets[-1]] for column in columns])
    valid = None
    if any(column.valid is not None for column in columns):
        masks = [
            np.ones(len(column), np.bool_) if column.valid is None else column.valid for column in columns
        ]
        valid = np.concatenate(masks)
    return BinaryColumn(_join_offsets([column.offsets for column in columns]), data, valid)


def _join_offsets(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    joined = [np.zeros(1, np.int64)]
    end = 0
    for offsets in parts:
        joined.append(offsets[1:] - offsets[0] + end)
        end = int(joined[-1][-1]) if len(offsets) > 1 else end
    return np.concatenate(joined)
