"""Convert the rows of an Arrow column to one run of batches, for a log directory or a broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafkafmt.errors import KafkaFormatError
from kafkafmt.records.runs import whole_batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.types import TopicPartition


def run_of(batches: pa.Array) -> BatchRun:
    """Return the batches in the rows of a column without nulls, as views of its data. Checks CRCs.

    Raises KafkaFormatError for bytes that are no batch and for damage; ValueError if a row contains a partial batch.
    """
    data, ends = _joined(batches)
    try:
        run = whole_batches(data)
    except (ValueError, KafkaFormatError):
        for row in batches:  # find the row: in the joined data, the error may name bytes of the next row
            whole_batches(row.as_buffer())
        raise
    run.ensure_valid()
    if not np.isin(ends, np.append(run.index["position"], len(data))).all():
        raise ValueError("column batch: expected whole batches in each row, found a part of one")
    return run


@contextlib.contextmanager
def naming(where: TopicPartition) -> Iterator[None]:
    """Add the partition to errors that its rows raise in the block."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise ValueError(f"partition {where}: {error}") from None
    except KafkaFormatError as error:
        error.path = f"partition {where}"
        raise


def _joined(batches: pa.Array) -> tuple[memoryview, NDArray[np.int64]]:
    """Return the data of the cells of an array without nulls, as one view, and the end of each cell in it."""
    offset_type = np.int64 if pa.types.is_large_binary(batches.type) else np.int32
    _, offsets, data = batches.buffers()
    bounds = np.frombuffer(offsets, offset_type)[batches.offset : batches.offset + len(batches) + 1]
    view = memoryview(data if data is not None else b"")[bounds[0] : bounds[-1]]
    return view, (bounds[1:] - bounds[0]).astype(np.int64)
