"""Numbers, booleans, texts, bytes and enums as Arrow arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from _kafkafmt.payloads.protobuf import join_ranges
from kafkafmt.columns.arrow import boolean_array, number_array, string_array, text_array
from kafkafmt.decode.protobuf.cells import Cells, Run

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Numbers:
    """Numbers, whose bytes are as the type has them."""

    type: pa.DataType

    def array(self, run: Run, cells: Cells) -> pa.Array:
        return number_array(self.type, cells.values, cells.valid)


class NarrowNumbers:
    """Numbers of a type with another range. stored: how the kernel's integers are read."""

    def __init__(self, numbers: Numbers, stored: np.dtype[Any], path: str) -> None:
        self.type = numbers.type
        self._numbers, self._stored, self._path = numbers, stored, path

    def array(self, run: Run, cells: Cells) -> pa.Array:
        given = cells.values.view(self._stored)
        fitting = given.astype(self.type.to_pandas_dtype())
        for cell in cells.chosen((fitting.astype(self._stored) != given) | ((fitting < 0) != (given < 0))):
            problem = f"{self._path}: expected a number of type {self.type}; found {given[cell]}"
            run.errors.setdefault(int(cells.rows[cell]), problem)
        return self._numbers.array(run, replace(cells, values=fitting))


class Booleans:
    """Booleans."""

    type = pa.bool_()

    def array(self, run: Run, cells: Cells) -> pa.Array:
        return boolean_array(cells.values != 0, cells.valid)


@dataclass(frozen=True)
class Bytes:
    """Bytes, or text, which the kernel has checked."""

    type: pa.DataType

    def array(self, run: Run, cells: Cells) -> pa.Array:
        data, offsets = join_ranges(run.payloads.data, cells.values)
        return string_array(self.type, offsets, data, cells.valid)


class Enums:
    """Numbers of enums as their names. A number without a name is text with the number."""

    type = pa.string()

    def __init__(self, names: dict[int, str], *, is_closed: bool) -> None:
        self.default = next(iter(names))
        numbers = sorted(names)
        self._numbers = np.array(numbers, np.int32)
        self._names = text_array([names[number] for number in numbers])
        self.is_closed = is_closed

    def array(self, run: Run, cells: Cells) -> pa.Array:
        values = cells.values
        places = np.minimum(np.searchsorted(self._numbers, values), len(self._numbers) - 1)
        known = self._numbers[places] == values
        names = self._names
        if not known.all():
            unknown = values[~known]
            others, indexes = np.unique(unknown, return_inverse=True)
            places[~known] = len(names) + indexes.reshape(-1)
            names = pa.concat_arrays([names, text_array([str(number) for number in others.tolist()])])
        return names.take(number_array(pa.int64(), places.astype(np.int64), cells.valid))

    def is_known(self, values: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which numbers have a name."""
        return np.isin(values, self._numbers)
