"""Payloads that are decoded in one call, their errors, and the values of a field of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from kafkafmt.columns.arrow import bitmap, number_array
from kafkafmt.decode.arrays import ColumnBudget
from kafkafmt.decode.payloads import Payloads

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class Run:
    """One call of a decoder. errors: what is wrong with payloads, by index; the first that was found."""

    payloads: Payloads
    errors: dict[int, str] = field(default_factory=dict)
    budget: ColumnBudget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = ColumnBudget(self.payloads.size_in_bytes)

    def fail(self, cells: Cells, cell: int, path: str, problem: str) -> None:
        """Add an error to the payload of a message, at its first byte."""
        place = cell if cells.owners is None else int(np.searchsorted(cells.owners, cell))
        self.fail_at(int(cells.rows[cell]), int(cells.values[place, 0]), path, problem)

    def fail_at(self, row: int, position: int, path: str, problem: str) -> None:
        """Add an error to a payload. position: in the bytes of all payloads."""
        start = int(self.payloads.starts[row])
        place = path or "the message"
        self.errors.setdefault(row, f"position {position - start}, {place}: expected {problem}")


@dataclass(frozen=True)
class Cells:
    """The values of a field of many messages, or the items of a repeated one.

    values: numbers, or ranges of bytes as two columns. owners: of ranges of messages, the cell that each belongs to,
    ascending; a cell with several ranges is merged. present: uint8 a cell; None if all are. rows: the payload of each
    cell.
    """

    values: NDArray[Any]
    owners: NDArray[np.int64] | None
    present: NDArray[np.uint8] | None
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        return None if self.present is None else self.present.view(np.bool_)

    def chosen(self, among: NDArray[np.bool_]) -> list[int]:
        """Return those of some cells that are present."""
        valid = self.valid
        found: list[int] = np.flatnonzero(among if valid is None else among & valid).tolist()
        return found


class Column(Protocol):
    """Makes Arrow arrays of one kind of value."""

    @property
    def type(self) -> pa.DataType: ...

    def array(self, run: Run, cells: Cells) -> pa.Array:
        """Return the values of cells; null for those that are absent. Adds errors of payloads to the run."""
        ...


def joined_messages(parts: Sequence[Cells]) -> Cells:
    """Return the messages of several fields that are present, one field after the other."""
    values, owners, rows, count = [], [], [], 0
    for part in parts:
        cells = places = np.arange(len(part))
        if part.owners is not None:
            cells, places = np.unique(part.owners, return_inverse=True)
        values.append(part.values)
        owners.append(places.reshape(-1) + count)
        rows.append(part.rows[cells])
        count += len(cells)
    return Cells(np.concatenate(values), np.concatenate(owners), None, np.concatenate(rows))


def payload_cells(payloads: Payloads) -> Cells:
    """Return payloads as the cells of a message."""
    ranges = np.stack([payloads.starts, payloads.ends], axis=1)
    rows = np.arange(len(payloads))
    return Cells(ranges, rows, None, rows)


def without_rows(array: pa.Array, rows: Sequence[int]) -> pa.Array:
    """Return an array without nulls with null at some rows."""
    valid = np.ones(len(array), np.bool_)
    valid[list(rows)] = False
    if not pa.types.is_struct(array.type):
        return array.take(number_array(pa.int64(), np.arange(len(array)), valid))
    children = [array.field(place) for place in range(array.type.num_fields)]
    return pa.Array.from_buffers(array.type, len(array), [bitmap(valid)], children=children)
