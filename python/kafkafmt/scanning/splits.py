"""Read a split of a log into pyarrow record batches of bounded size, in bounded memory.

Control batches, aborted batches and batches outside the range are skipped by their headers, before decompression.
Records are filtered only if a bound is within a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafkafmt._util.sizes import size_text
from kafkafmt.columns.arrow import boolean_array, int64_values
from kafkafmt.columns.read import TimestampRangeError, arrow_batches
from kafkafmt.errors import DecompressionLimitError, InvalidRecordError, KafkaFormatError
from kafkafmt.log.segment import SegmentRange
from kafkafmt.records.base import RUN_BYTES, Records
from kafkafmt.records.runs import (
    first_misplaced,
    first_offsets,
    of_ended_transactions,
    out_of_order,
    slice_run,
    sound_part,
    with_row,
    without,
)
from kafkafmt.scanning.batch_rows import BatchSource, batch_rows, damage_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.log.splitting import Split
    from kafkafmt.scanning.options import LogReadOptions, ReadColumns

_LOG = logging.getLogger(__name__)


def read_split(split: Split, options: LogReadOptions, output: ReadColumns) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split.

    Raises KafkaFormatError, with file, position and offsets, for damage, after the rows before it, unless `on_corrupt`
    is skip or keep; EOFError if the file has become shorter; FileNotFoundError.
    """
    with split.segment.open(
        split.start,
        split.end,
        topic_partition=split.segment.topic_partition or options.topic_partition,
        max_decompressed_bytes=options.max_decompressed_bytes,
    ) as source:
        if source.end_position < split.end:
            expected = f"expected {split.end} bytes, as when it was listed, found {source.end_position}"
            raise EOFError(f"{split.segment}: file truncated: {expected}")
        reader = _SplitReader(source, split, options, output)
        for rows in reader.read():
            yield from bounded(rows, options.max_batch_bytes)


def bounded(rows: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield slices of equal size, of `most_bytes` or up to 1.5 times as much, and of at least one row.

    Rows a little larger than `most_bytes` are not cut: the few remaining rows would cost Spark another batch.
    """
    count = max(1, -(-rows.num_rows // max(1, round(rows.nbytes / most_bytes))))
    for first in range(0, rows.num_rows, count):
        yield rows.slice(first, count)


class _SplitReader:
    def __init__(self, source: Records, split: Split, options: LogReadOptions, output: ReadColumns) -> None:
        self._source = source
        self._split = split
        self._options = options
        self._output = output
        self._where = BatchSource(str(split.segment), source.topic_partition)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows. After damage, continue at the next valid batch, unless `on_corrupt` is fail.

        A sound record whose timestamp Arrow cannot hold is no damage: TimestampRangeError is raised in any case.
        """
        rows_of: Callable[[Records], Iterator[pa.RecordBatch]]
        rows_of = self._records if self._options.unit == "records" else self._batches
        position = self._split.start
        selection = _Selection(self._split, self._options)
        while position < self._split.end:
            # A partial batch is damage, except at the end of the log.
            records = SegmentRange(
                self._source, position, is_active=self._split.is_log_end, run_filter=selection.select
            )
            try:
                yield from rows_of(records)
                return
            except KafkaFormatError as error:
                records.with_source(error)
                if isinstance(error, DecompressionLimitError):
                    limit = size_text(self._options.max_decompressed_bytes)
                    error.message += f"; {self._options.names.max_decompressed} is {limit}"
                if self._options.on_corrupt == "fail" or error.position is None:
                    raise
                if isinstance(error, TimestampRangeError):
                    raise
                position = records.position_after(error)
                if self._options.on_corrupt == "keep":
                    yield self._dressed(damage_row(error, position, self._where, self._output.columns))
                else:
                    _LOG.warning("passed over %d bytes: %s", position - error.position, error)

    def _dressed(self, arrays: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(arrays, schema=self._output.schema)

    def _batches(self, records: Records) -> Iterator[pa.RecordBatch]:
        # The column of a batch's bytes is a view of the run, so each run needs its own memory.
        for run in records.runs(run_bytes=min(self._options.max_batch_bytes, RUN_BYTES)):
            damage = None
            if self._options.verify and not run.valid().all():
                run, damage = sound_part(run)
            if len(run):
                yield self._dressed(batch_rows(run, self._where, self._output.columns))
            if damage is not None:
                raise damage

    def _records(self, records: Records) -> Iterator[pa.RecordBatch]:
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


class _Selection:
    """Selects the batches of a split that are to be read."""

    def __init__(self, split: Split, options: LogReadOptions) -> None:
        self._split = split
        self._with_control = options.unit == "batches"
        self._verify = options.verify
        self._check_overlaps = options.names.check_overlaps

    def select(self, runs: Iterator[BatchRun]) -> Iterator[BatchRun]:
        """Yield the runs without the batches that are not selected.

        With `verify`, a damaged batch whose header would exclude it is yielded, and nothing after it: its reader raises
        CorruptRecordError. Raises InvalidRecordError, after the batches before it, for a batch whose offsets cannot be
        right: no CRC covers the base offset by which it is selected.
        """
        limit, last = self._split.next_base_offset, None
        least = self._split.segment.base_offset  # the offset after the batch before `last`
        for run in runs:
            if limit is not None:
                self._ensure_below(limit, run)
            ordered, damage = self._in_order(run, last, least) if self._verify else (run, None)
            if damage is None and last is not None and self._ends_after(last):
                return
            rows = ordered.index
            part = without(ordered, ~self._in_range(rows) | self._left_out(rows), verify=self._verify)
            if len(part):
                yield part
            if damage is not None:
                raise damage
            if len(rows) > 1:
                least = int(rows["last_offset"][-2]) + 1
            else:
                least = self._least_of_first(rows) if last is None else int(last["last_offset"]) + 1
            last = rows[-1].copy()

    def _in_order(
        self, run: BatchRun, last: np.void | None, least: int
    ) -> tuple[BatchRun, KafkaFormatError | None]:
        """Return the batches before the first one whose offsets cannot be right, and its error.

        last: the row of the batch before `run`. least: the lowest offset that is possible for it. Offsets after the end
        of the split are no error.
        """
        next_offset = least if last is None else int(last["last_offset"]) + 1
        if not out_of_order(run.index, next_offset).any():
            return run, None
        sound, damage = sound_part(run)
        if last is None and len(sound):
            least = self._least_of_first(sound.index)
        rows = sound.index if last is None else np.append(last, sound.index)
        misplaced, message = first_misplaced(rows, least, following=partial(self._run_after, sound))
        if misplaced == len(rows):
            return sound, damage
        if misplaced and self._ends_after(rows[misplaced - 1]):
            error = None
        else:
            error = with_row(InvalidRecordError(f"offsets of a log ascend: {message}"), rows[misplaced])
        return slice_run(run, 0, max(misplaced - len(rows) + len(sound), 0)), error

    def _least_of_first(self, rows: NDArray[np.void]) -> int:
        """Return the lowest offset that the first batch that is read can have.

        It is its own, unless it begins the segment: nothing is known of the batch before it.
        """
        base_offset = self._split.segment.base_offset
        return max(base_offset, int(first_offsets(rows[:1])[0])) if rows["position"][0] else base_offset

    def _run_after(self, run: BatchRun) -> BatchRun | None:
        with self._split.segment.open() as records:  # also after the end of the split
            return records.sound_run_at(run.end_position)

    def _ends_after(self, row: np.void) -> bool:
        end = self._split.end_offset
        return end is not None and bool(row["last_offset"] >= end)

    def _ensure_below(self, limit: int, run: BatchRun) -> None:
        """Raise ValueError for a valid batch with offsets at or above the base offset of the next segment."""
        late = run.index["last_offset"] >= limit
        if late.any() and (late & run.valid()).any():
            found = int(run.index["last_offset"][late].max())
            raise ValueError(
                f"{self._split.segment}: offsets {limit} to {found} may be in the next segment, too, which begins "
                f"at {limit}: {self._check_overlaps} looks up the ends of segments, and reads each offset once"
            )

    def _in_range(self, rows: NDArray[np.void]) -> NDArray[np.bool_]:
        wanted = np.ones(len(rows), np.bool_)
        if self._split.start_offset is not None:
            wanted &= rows["last_offset"] >= self._split.start_offset
        if self._split.end_offset is not None:  # a wrapper's base offset is -1: its records are filtered
            wanted &= rows["base_offset"] < self._split.end_offset
        return wanted

    def _left_out(self, rows: NDArray[np.void]) -> NDArray[np.bool_]:
        aborted = of_ended_transactions(rows, self._split.aborted)
        return aborted if self._with_control else aborted | rows["is_control"]
