"""Batches out of the rows of an Arrow column: a run of them all, that a log directory or a broker is given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.appending import whole_batches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.scan import BatchRun
    from kafkafmt.types import TopicPartition


def run_of(batches: pa.Array) -> BatchRun:
    """The batches in the rows of a column without nulls, whole ones in each, whose CRCs hold; nothing is copied.

    Raises KafkaFormatError for bytes that are no batch and for damage, ValueError for a part of a batch.
    """
    data, ends = _joined(batches)
    try:
        run = whole_batches(data, 0)
    except (ValueError, KafkaFormatError):
        for row in batches:  # which one it is: an error in the middle of all would tell of what follows
            whole_batches(row.as_buffer(), 0)
        raise
    run.ensure_valid()
    if not np.isin(ends, np.append(run.index["position"], len(data))).all():
        raise ValueError("column batch: expected whole batches in each row, found a part of one")
    return run


@contextlib.contextmanager
def telling(where: TopicPartition) -> Iterator[None]:
    """Have errors that rows cause tell whose rows these are."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise ValueError(f"partition {where}: {error}") from None
    except KafkaFormatError as error:
        error.path = f"partition {where}"
        raise


def _joined(batches: pa.Array) -> tuple[memoryview, NDArray[np.int64]]:
    """The byte strings of an array without nulls, end to end as they stand there, and where each ends."""
    wide = np.int64 if pa.types.is_large_binary(batches.type) else np.int32
    _, offsets, data = batches.buffers()
    bounds = np.frombuffer(offsets, wide)[batches.offset : batches.offset + len(batches) + 1]
    view = memoryview(data if data is not None else b"")[bounds[0] : bounds[-1]]
    return view, (bounds[1:] - bounds[0]).astype(np.int64)
