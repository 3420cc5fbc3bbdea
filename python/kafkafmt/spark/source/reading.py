"""What an executor does: a split into pyarrow record batches of bounded size, in bounded memory.

Which batches are passed over, because they are markers, aborted, or out of range, their headers decide, before
anything is decompressed; records are cut off only where a bound lies within a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from _kafkafmt.scan import BatchRun
from kafkafmt.arrow_arrays import boolean_array, int64_values
from kafkafmt.columns import arrow_batches
from kafkafmt.decoding import without
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.segment import SegmentRange
from kafkafmt.records import RUN_BYTES, Records
from kafkafmt.spark.files import open_records
from kafkafmt.spark.source.batch_rows import BatchSource, batch_rows, damage_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkafmt.spark.source.logs import Split
    from kafkafmt.spark.source.options import ReadOptions
    from kafkafmt.spark.source.schema import OutputColumns

_LOG = logging.getLogger(__name__)


def read_split(split: Split, options: ReadOptions, output: OutputColumns) -> Iterator[pa.RecordBatch]:
    """The rows of a split.

    Raises KafkaFormatError, with file, position and offsets, for damage, unless the options say otherwise; what
    stands before it comes first. EOFError where the file has become shorter, and FileNotFoundError.
    """
    limit = options.max_decompressed_bytes
    with open_records(split.segment, split.start, split.end, max_decompressed_bytes=limit) as source:
        if source.end_position < split.end:
            expected = f"expected {split.end} bytes, as when it was listed, found {source.end_position}"
            raise EOFError(f"{split.segment.uri}: file truncated: {expected}")
        reader = _SplitReader(source, split, options, output)
        for rows in reader.read():
            yield from bounded(rows, options.max_batch_bytes)


def bounded(rows: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Slices alike, of `most_bytes` or up to half as much again; one row at the least.

    What is a little larger stays whole: the few rows of a remnant would cost Spark a batch of their own.
    """
    count = max(1, -(-rows.num_rows // max(1, round(rows.nbytes / most_bytes))))
    for first in range(0, rows.num_rows, count):
        yield rows.slice(first, count)


class _SplitReader:
    def __init__(self, source: Records, split: Split, options: ReadOptions, output: OutputColumns) -> None:
        self._source = source
        self._split = split
        self._options = options
        self._output = output
        self._where = BatchSource(split.segment.uri, split.segment.topic_partition)

    def read(self) -> Iterator[pa.RecordBatch]:
        """All rows; behind damage reading goes on where the next valid batch is, if the options say so."""
        rows_of: Callable[[SelectedRecords], Iterator[pa.RecordBatch]]
        rows_of = self._records if self._options.unit == "records" else self._batches
        position = self._split.start
        while position < self._split.end:
            records = SelectedRecords(
                self._source,
                self._split,
                position,
                with_control=self._options.unit == "batches",
                verify=self._options.verify,
            )
            try:
                yield from rows_of(records)
                return
            except KafkaFormatError as error:
                records.described(error)
                if self._options.on_corrupt == "fail" or error.position is None:
                    raise
                position = records.position_after(error)
                if self._options.on_corrupt == "keep":
                    yield self._dressed(damage_row(error, position, self._where, self._output.columns))
                else:
                    _LOG.warning("passed over %d bytes: %s", position - error.position, error)

    def _dressed(self, arrays: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(arrays, schema=self._output.schema)

    def _batches(self, records: SelectedRecords) -> Iterator[pa.RecordBatch]:
        # The bytes of a batch are a view of the run, which so must have memory of its own.
        for run in records.runs(run_bytes=min(self._options.max_batch_bytes, RUN_BYTES)):
            damage = None
            if self._options.verify and not run.valid().all():
                run, damage = _sound_part(run)
            if len(run):
                yield self._dressed(batch_rows(run, self._where, self._output.columns))
            if damage is not None:
                raise damage

    def _records(self, records: SelectedRecords) -> Iterator[pa.RecordBatch]:
        columns = list(self._output.columns)
        has_bounds = self._split.start_offset is not None or self._split.end_offset is not None
        built = [*columns, "offset"] if has_bounds and "offset" not in columns else columns
        rows: pa.RecordBatch
        for rows in arrow_batches(
            records, built, verify=self._options.verify, chunk_bytes=self._options.max_batch_bytes
        ):
            if has_bounds:
                rows = self._within_bounds(rows)
            if rows.num_rows:
                yield self._dressed(rows.columns[: len(columns)])

    def _within_bounds(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        offsets = int64_values(rows.column("offset"))
        start, end = self._split.start_offset, self._split.end_offset
        wanted = np.ones(len(offsets), np.bool_)
        if start is not None:
            wanted &= offsets >= start
        if end is not None:
            wanted &= offsets < end
        return rows if wanted.all() else rows.filter(boolean_array(wanted))


def _sound_part(run: BatchRun) -> tuple[BatchRun, KafkaFormatError | None]:
    """The batches in front of the first whose CRC fails, and the error of that."""
    try:
        run.ensure_valid()
    except KafkaFormatError as error:
        stop = int(run.index["position"].searchsorted(error.position or 0))
        return BatchRun(run.buffer, run.index[:stop], run.origin), error.with_traceback(None)
    return run, None


class SelectedRecords(SegmentRange):
    """The batches of a split, from `position` on, that are to be read: bytes that are no whole batch are damage."""

    def __init__(
        self, source: Records, split: Split, position: int, *, with_control: bool, verify: bool
    ) -> None:
        super().__init__(source, position, is_active=split.is_log_end)
        self._split = split
        self._with_control = with_control
        self._verify = verify

    def runs(
        self, position: int | None = None, *, run_bytes: int = RUN_BYTES, reuse_memory: bool = False
    ) -> Iterator[BatchRun]:
        """As `SegmentRange.runs`.

        With `verify` raises CorruptRecordError, too, for a damaged batch whose header would have it left out: as a
        control batch, or as one of an aborted transaction.
        """
        end, limit = self._split.end_offset, self._split.next_base_offset
        for run in super().runs(position, run_bytes=run_bytes, reuse_memory=reuse_memory):
            if limit is not None:
                self._ensure_below(limit, run)
            in_range = self._in_range(run.index)
            part = run if in_range.all() else BatchRun(run.buffer, run.index[in_range], run.origin)
            part, damage = without(part, self._left_out(part.index), verify=self._verify)
            if len(part):
                yield part
            if damage is not None:
                try:
                    raise damage
                finally:
                    del damage  # no cycle of error, traceback and frame
            if end is not None and run.index["base_offset"][-1] >= end:
                return

    def _ensure_below(self, limit: int, run: BatchRun) -> None:
        """Raise ValueError for a sound batch that reaches where the next segment begins."""
        late = run.index["last_offset"] >= limit
        if late.any() and (late & run.valid()).any():
            found = int(run.index["last_offset"][late].max())
            raise ValueError(
                f"{self._split.segment.uri}: offsets {limit} to {found} may be in the next segment, too, which begins "
                f"at {limit}: checkOverlaps=true looks where segments end, and reads them once"
            )

    def _in_range(self, rows: NDArray[np.void]) -> NDArray[np.bool_]:
        wanted = np.ones(len(rows), np.bool_)
        if self._split.start_offset is not None:
            wanted &= rows["last_offset"] >= self._split.start_offset
        if self._split.end_offset is not None:  # a wrapper's base offset is -1: its records are looked at
            wanted &= rows["base_offset"] < self._split.end_offset
        return wanted

    def _left_out(self, rows: NDArray[np.void]) -> NDArray[np.bool_]:
        left_out = np.zeros(len(rows), np.bool_)
        if not self._with_control:
            left_out |= rows["is_control"]
        transactional = rows["is_transactional"] & ~rows["is_control"]
        if transactional.any():
            first, last = rows["last_offset"][0], rows["last_offset"][-1]
            for aborted in self._split.aborted:
                if aborted.first_offset <= last and aborted.last_offset >= first:
                    left_out |= (
                        transactional
                        & (rows["producer_id"] == aborted.producer_id)
                        & (rows["base_offset"] >= aborted.first_offset)
                        & (rows["last_offset"] <= aborted.last_offset)
                    )
        return left_out
