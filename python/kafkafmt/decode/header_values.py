"""The values of one header of each record of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from kafkafmt.columns.arrow import int64_values, number_array, text_array, true_values
from kafkafmt.decode.binary_rows import BinaryRows, binary_rows


def header_values(headers: Any, name: str, *, first: bool = False) -> BinaryRows:
    """Return the value of the last or the first header with this name of each record, null for records without.

    headers: an Arrow array of lists of structs of key and value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    entries = headers.flatten()
    parents = int64_values(pc.list_parent_indices(headers))
    chosen = np.flatnonzero(true_values(pc.equal(entries.field("key"), text_array([name])[0])))
    if first:
        chosen = chosen[::-1]
    places = np.full(len(headers), -1, np.int64)
    places[parents[chosen]] = chosen  # of several indexes for a place numpy keeps the last
    return binary_rows(entries.field("value").take(number_array(pa.int64(), places, places >= 0)))
