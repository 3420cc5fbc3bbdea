"""Batches of records, and payloads of rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from kafkafmt.columns.read import arrow_schema
from kafkafmt.decode.binary_rows import binary_rows
from kafkafmt.decode.payloads import Payloads

Headers = Sequence[tuple[str, bytes | None]]


def batch(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
) -> pa.RecordBatch:
    """Return records of the topic orders, partition 3, from offset 100 on."""
    count = len(values)
    named = [
        None if row is None else [{"key": key, "value": value} for key, value in row]
        for row in headers or [None] * count
    ]
    columns = {
        "key": list(keys or [None] * count),
        "value": list(values),
        "topic": ["orders"] * count,
        "partition": [3] * count,
        "offset": list(range(100, 100 + count)),
        "headers": named,
    }
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(list(columns)))


def payloads(values: Sequence[bytes]) -> Payloads:
    """Return payloads as decoders take them."""
    rows = binary_rows(pa.array(values, pa.binary()))
    return Payloads(rows.data, rows.starts, rows.ends)
