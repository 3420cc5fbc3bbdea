"""The methods of `Records` that read records as columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kafkafmt.columns.read import (
    CHUNK_BYTES,
    Column,
    RunSource,
    arrow_batches,
    numpy_batches,
    to_arrow,
    to_numpy,
)

if TYPE_CHECKING:
    import pyarrow as pa


class ColumnReads:
    """Reads the records of a `RunSource` as numpy or Arrow columns."""

    def to_numpy(
        self: RunSource, columns: Sequence[str] | None = None, *, verify: bool = True, control: bool = False
    ) -> dict[str, Column]:
        """Return the records as numpy columns, without a Python object per record.

        See `kafkafmt.columns.read.to_numpy`.
        """
        return to_numpy(self, columns, verify=verify, control=control)

    def to_arrow(
        self: RunSource,
        columns: Sequence[str] | None = None,
        *,
        verify: bool = True,
        control: bool = False,
        views: bool = False,
    ) -> pa.Table:
        """Return the records as an Arrow table with the columns of Spark's Kafka source.

        See `kafkafmt.columns.read.to_arrow`.
        """
        return to_arrow(self, columns, verify=verify, control=control, views=views)

    def numpy_batches(
        self: RunSource,
        columns: Sequence[str] | None = None,
        *,
        verify: bool = True,
        control: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[dict[str, Column]]:
        """Iterate the records as numpy columns, chunk by chunk; see `kafkafmt.columns.read.numpy_batches`."""
        return numpy_batches(self, columns, verify=verify, control=control, chunk_bytes=chunk_bytes)

    def arrow_batches(
        self: RunSource,
        columns: Sequence[str] | None = None,
        *,
        verify: bool = True,
        control: bool = False,
        views: bool = False,
        chunk_bytes: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Iterate the records as Arrow record batches, one per chunk; see `kafkafmt.columns.read.arrow_batches`."""
        return arrow_batches(
            self, columns, verify=verify, control=control, views=views, chunk_bytes=chunk_bytes
        )
