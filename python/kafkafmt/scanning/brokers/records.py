"""Read the records of partitions in ranges of offsets, as Arrow rows.

A range may begin and end within a batch. Batches are fetched whole, and their records outside the range are left out.
So ranges that are cut at any offset return each record once.

The consumer fetches in a thread of its own. Other threads check the batches, decompress them and convert them to Arrow,
so that the next batches are fetched meanwhile. Rows come in order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from kafkafmt._util.cores import cores
from kafkafmt.client.errors import CorruptFetchedBatchError
from kafkafmt.columns.arrow import boolean_array, int64_values
from kafkafmt.columns.read import TimestampRangeError, arrow_batches
from kafkafmt.errors import KafkaFormatError
from kafkafmt.records.runs import chunk_ranges, slice_run
from kafkafmt.scanning.brokers.errors import broker_errors
from kafkafmt.scanning.brokers.runs import PartitionRange, RangeReader, read_runs
from kafkafmt.scanning.in_threads import in_threads
from kafkafmt.scanning.splits import bounded

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.scanning.brokers.options import BrokerOptions
    from kafkafmt.scanning.options import ReadColumns
    from kafkafmt.types import TopicPartition

_LOG = logging.getLogger(__name__)

# A fetch of more bytes waits less for the broker, and one of more than 16 MiB needs new memory each time.
FETCH_BYTES = 8 * 1024 * 1024
# Stored bytes that a thread converts at once. Compressed ones take longer.
_PART_BYTES, _COMPRESSED_PART_BYTES = 4 * 1024 * 1024, 1024 * 1024
# Arrow batches of a part that wait for the reader.
_WAITING_BATCHES = 4
_MOST_THREADS = 4
# Partitions of which the first batches are fetched while the one before is read.
_PARTITIONS_AHEAD = 1


def read_ranges(
    ranges: Sequence[PartitionRange],
    options: BrokerOptions,
    output: ReadColumns,
    batch_bytes: int,
    fetch_bytes: int = FETCH_BYTES,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the records of ranges of different partitions, range after range, by ascending offset.

    `options.includes_control` must be False.

    output: some of `kafkafmt.columns.read.COLUMNS`. batch_bytes: about the size of an Arrow batch. fetch_bytes: the
    most bytes of a partition in a fetch, unless the clients are configured with another number.

    Raises CorruptFetchedBatchError, with partition and offsets, for damage, after the records before it, unless it is
    skipped; DataLossError for deleted offsets, unless they are skipped; BrokerError. Raises TimestampRangeError, after
    the records before it, for a sound record whose timestamp Arrow cannot hold. Such a record is never skipped.
    """
    reading = _Reading(deque(one for one in ranges if one.start < one.end), options, output, batch_bytes)
    while reading.left:
        try:
            yield from reading.rows(fetch_bytes)
        except CorruptFetchedBatchError:
            raise
        except KafkaFormatError:  # which does not say where to continue
            yield from reading.rows_around_damage()


@dataclass(frozen=True)
class _Part:
    """Some batches of a range. start: where the batches before it end."""

    wanted: PartitionRange
    start: int
    run: BatchRun


@dataclass
class _Reading:
    """A read of some ranges.

    left: the ranges whose rows were not all yielded. part: the part whose rows were yielded last, and their number.
    """

    left: deque[PartitionRange]
    options: BrokerOptions
    output: ReadColumns
    batch_bytes: int
    part: _Part | None = None
    part_rows: int = 0

    def rows(self, fetch_bytes: int) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows of the ranges that are left. Raises KafkaFormatError for a damaged batch, after those before.

        fetch_bytes: as for `read_ranges`.
        """
        self.part = None
        settings = {"keep_control_batches": False, "trim_first_batch": False, "check_crcs": False}
        with (
            broker_errors(self.options.clients.bootstrap_servers),
            closing(self.options.clients.consumer(fetch_bytes, **settings)) as consumer,
            closing(RangeReader(consumer, self.left, self.options, _PARTITIONS_AHEAD).runs()) as runs,
            closing(
                in_threads(map(self._converted, _parts(runs)), min(cores(), _MOST_THREADS), _WAITING_BATCHES)
            ) as converted,
        ):
            for part, rows in converted:
                if part is not self.part:
                    self.part, self.part_rows = part, 0
                    while self.left[0] is not part.wanted:
                        self.left.popleft()
                self.part_rows += rows.num_rows
                yield rows
        self.left.clear()

    def rows_around_damage(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows that are left of the first range. Raises the errors of `read_ranges` after the rows before.

        The consumer checks the batches, so that it finds the damage again, and the next valid batch.
        """
        wanted, skipped = self.left.popleft(), 0
        if self.part is not None:
            wanted, skipped = replace(wanted, start=max(self.part.start, wanted.start)), self.part_rows
        while wanted.start < wanted.end:
            try:
                with closing(read_runs(wanted, self.options)) as runs:
                    for run in runs:
                        for rows in self._rows_of(run, wanted, is_checked=True):
                            yield from self._without(rows, skipped)
                            skipped = max(0, skipped - rows.num_rows)
                return
            except CorruptFetchedBatchError as error:
                if self.options.on_corrupt == "fail" or error.next_offset is None:
                    raise
                _LOG.warning("skipped offsets %d to %d: %s", error.offset, error.next_offset - 1, error)
                wanted, skipped = replace(wanted, start=max(error.next_offset, wanted.start + 1)), 0

    @staticmethod
    def _without(rows: pa.RecordBatch, skipped: int) -> Iterator[pa.RecordBatch]:
        if rows.num_rows > skipped:
            yield rows.slice(skipped)

    def _converted(self, part: _Part) -> Iterator[tuple[_Part, pa.RecordBatch]]:
        """Yield the rows of a part, in a thread."""
        for rows in self._rows_of(part.run, part.wanted, is_checked=False):
            yield part, rows

    def _rows_of(
        self, run: BatchRun, wanted: PartitionRange, *, is_checked: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a run that are in a range. is_checked: whether the consumer has checked the CRCs."""
        columns = self.output.columns
        built = columns if "offset" in columns else (*columns, "offset")
        source = _FetchedRun(
            wanted.topic_partition, run, self.options.max_decompressed_bytes, is_checked=is_checked
        )
        verify = self.options.checks_crcs and not is_checked
        for rows in arrow_batches(source, built, verify=verify, chunk_bytes=self.batch_bytes):
            inside = _inside(rows, wanted)
            if inside.num_rows:
                arrays = inside.columns[: len(columns)]
                yield from bounded(
                    pa.RecordBatch.from_arrays(arrays, schema=self.output.schema), self.batch_bytes
                )


def _parts(runs: Iterator[tuple[PartitionRange, BatchRun]]) -> Iterator[_Part]:
    """Yield the batches in parts, each for one thread."""
    reached: dict[PartitionRange, int] = {}
    for wanted, run in runs:
        most = _COMPRESSED_PART_BYTES if run.index["codec"].any() else _PART_BYTES
        for first, stop in chunk_ranges(run.index["size"], most):
            yield _Part(wanted, reached.get(wanted, wanted.start), slice_run(run, first, stop))
            reached[wanted] = int(run.index["last_offset"][stop - 1]) + 1


def _inside(rows: pa.RecordBatch, wanted: PartitionRange) -> pa.RecordBatch:
    """Return the rows in the range. Only the first and the last batch of a range have others."""
    offsets = int64_values(rows.column("offset"))
    is_inside = (offsets >= wanted.start) & (offsets < wanted.end)
    return rows if is_inside.all() else rows.filter(boolean_array(is_inside))


@dataclass
class _FetchedRun:
    """A run as a source of columns. is_checked: whether the CRCs of its batches were checked before."""

    topic_partition: TopicPartition | None
    run: BatchRun
    max_decompressed_bytes: int
    is_checked: bool

    @property
    def size_in_bytes(self) -> int:
        return int(self.run.index["size"].sum())

    def runs(self, *, run_bytes: int, reuse_memory: bool) -> Iterator[BatchRun]:
        return iter((self.run,))

    def with_source(self, error: KafkaFormatError) -> KafkaFormatError:
        """Return the error of a batch with its partition and offsets, if its header is valid."""
        if isinstance(error, CorruptFetchedBatchError) or not self.is_checked or error.last_offset is None:
            return error
        assert self.topic_partition is not None
        if isinstance(error, TimestampRangeError):  # the record is sound, and must not be skipped
            error.message = f"{self.topic_partition}: {error.message}"
            return error
        offset = error.last_offset if error.base_offset is None else error.base_offset
        return CorruptFetchedBatchError(error, self.topic_partition, offset, error.last_offset + 1)
