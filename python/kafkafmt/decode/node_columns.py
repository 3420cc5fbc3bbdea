"""The columns that kernels fill, as trees of nodes, and their Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from _kafkafmt.payloads.nodes import Layout
from kafkafmt.columns.arrow import bitmap

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class Column:
    """A column of a reader. node: its number. children: of a struct, of a list (one), or of a map (its entries)."""

    type: pa.DataType
    layout: Layout
    node: int
    children: Sequence[Column] = ()
    members: bool = False  # a struct with a member for each branch of a union

    @property
    def width(self) -> int:
        """Return the bytes of a value of a plain column."""
        if self.layout != Layout.PLAIN:
            return 0
        return 1 if pa.types.is_boolean(self.type) else int(self.type.bit_width) // 8

    @property
    def specification(self) -> tuple[int, int, int, int]:
        """Return the node as NodeColumns takes it."""
        first = self.children[0].node if self.children else 0
        return self.layout, self.width, first, len(self.children)

    def array(self, parts: list[Any]) -> pa.Array:
        """Return the array of the column. parts: what a kernel read, by nodes."""
        length, validity, offsets, data = parts[self.node]
        if self.layout == Layout.EMPTY:
            return pa.nulls(length)
        children = [child.array(parts) for child in self.children]
        buffers = [_bits(validity)]
        if offsets is not None:
            buffers.append(pa.py_buffer(offsets.astype(np.int64) if _is_large(self.type) else offsets))
        if data is not None:
            buffers.append(_bits(data) if pa.types.is_boolean(self.type) else pa.py_buffer(data))
        if children or pa.types.is_struct(self.type):
            return pa.Array.from_buffers(self.type, length, buffers, children=children)
        return pa.Array.from_buffers(self.type, length, buffers)


def columns_by_node(root: Column) -> list[Column]:
    """Return all columns of a tree by their numbers, which have no gaps."""
    found = []
    pending = [root]
    while pending:
        column = pending.pop()
        found.append(column)
        pending += column.children
    return sorted(found, key=lambda column: column.node)


def _is_large(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_list(kind))


def _bits(values: NDArray[np.uint8] | None) -> pa.Buffer | None:
    return bitmap(None if values is None else values.view(np.bool_))
