"""Read the records of a partition in a range of offsets, as Arrow rows.

A range may begin and end within a batch. Batches are fetched whole, and their records outside the range are left out.
So ranges that are cut at any offset return each record once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from kafkafmt.client.errors import CorruptFetchedBatchError
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.columns.arrow import boolean_array, int64_values
from kafkafmt.columns.read import arrow_batches
from kafkafmt.errors import KafkaFormatError
from kafkafmt.scanning.brokers.runs import read_runs
from kafkafmt.scanning.splits import bounded

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.scanning.brokers.options import BrokerOptions
    from kafkafmt.scanning.brokers.runs import PartitionRange
    from kafkafmt.scanning.options import ReadColumns
    from kafkafmt.types import TopicPartition

_LOG = logging.getLogger(__name__)


def read_records(
    wanted: PartitionRange, options: BrokerOptions, output: ReadColumns, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range by ascending offset. `options.includes_control` must be False.

    output: some of `kafkafmt.columns.read.COLUMNS`. batch_bytes: about the size of an Arrow batch.

    Raises CorruptFetchedBatchError, with partition and offsets, for damage, after the records before it, unless it is
    skipped; DataLossError for deleted offsets, unless they are skipped; BrokerError.
    """
    left = wanted
    while left.start < left.end:
        try:
            for rows in _read(left, options, output, batch_bytes):
                yield from bounded(rows, batch_bytes)
            return
        except CorruptFetchedBatchError as error:
            if options.on_corrupt == "fail" or error.next_offset is None:
                raise
            _LOG.warning("skipped offsets %s to %d: %s", error.base_offset, error.next_offset - 1, error)
            left = replace(left, start=max(error.next_offset, left.start + 1))


def _read(
    wanted: PartitionRange, options: BrokerOptions, output: ReadColumns, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    columns = output.columns
    built = columns if "offset" in columns else (*columns, "offset")
    with closing(read_runs(wanted, options)) as runs:
        source = _FetchedRuns(wanted.topic_partition, runs)
        # The consumer checks the CRCs of batches.
        for rows in arrow_batches(source, built, verify=False, chunk_bytes=batch_bytes):
            inside = _inside(rows, wanted)
            if inside.num_rows:
                yield pa.RecordBatch.from_arrays(inside.columns[: len(columns)], schema=output.schema)


def _inside(rows: pa.RecordBatch, wanted: PartitionRange) -> pa.RecordBatch:
    """Return the rows in the range. Only the first and the last batch of a range have others."""
    offsets = int64_values(rows.column("offset"))
    is_inside = (offsets >= wanted.start) & (offsets < wanted.end)
    return rows if is_inside.all() else rows.filter(boolean_array(is_inside))


@dataclass
class _FetchedRuns:
    """The batches of a range as a source of columns."""

    topic_partition: TopicPartition | None
    fetched: Iterator[BatchRun]
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    size_in_bytes: int = 0  # unknown

    def runs(self, *, run_bytes: int, reuse_memory: bool) -> Iterator[BatchRun]:
        return self.fetched

    def with_source(self, error: KafkaFormatError) -> KafkaFormatError:
        """Return an error of a batch with its partition and offsets. Errors of the consumer have them."""
        if isinstance(error, CorruptFetchedBatchError) or error.last_offset is None:
            return error
        assert self.topic_partition is not None
        offset = error.last_offset if error.base_offset is None else error.base_offset
        return CorruptFetchedBatchError(error, self.topic_partition, offset, error.last_offset + 1)
