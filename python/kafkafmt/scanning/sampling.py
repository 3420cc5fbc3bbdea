"""The records of a scan from which the types of decoded keys and values are taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from kafkafmt.scanning.options import DEFAULT_SPLIT_BYTES
from kafkafmt.scanning.tasks import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkafmt.scanning.source import RecordSource
    from kafkafmt.types import TopicPartition

# From how many partitions ids of schemas are taken at most, and from how many records at each end of one.
_MAX_PARTITIONS = 10
_RECORDS_AT_AN_END = 50


@dataclass(frozen=True)
class RecordSamples:
    """Yields undecoded records of a source. columns: those that the rows have."""

    source: RecordSource
    ranges: Mapping[TopicPartition, OffsetRange]

    def from_start(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all records, the first ones first."""
        yield from self._rows(self.ranges, columns)

    def from_ends(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all records, but the first and the last ones of each partition before the others.

        Producers add fields at any time, and each record of a scan that continues an earlier one counts.
        """
        from kafkafmt.decode.options import MAX_SAMPLE_ROWS

        share = -(-MAX_SAMPLE_ROWS // (2 * max(len(self.ranges), 1)))
        yield from self._first_and_last(self.ranges, share, columns)
        between = {
            one: OffsetRange(start + share, end - share)
            for one, (start, end) in self.ranges.items()
            if end - start > 2 * share
        }
        yield from self._rows(between, columns)

    def of_ids(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield a few of the first and of the last records of some partitions, to find the newest schema."""
        filled = [(one, wanted) for one, wanted in self.ranges.items() if wanted.end > wanted.start]
        step = -(-len(filled) // _MAX_PARTITIONS) or 1
        yield from self._first_and_last(dict(filled[::step]), _RECORDS_AT_AN_END, columns)

    def _first_and_last(
        self, ranges: Mapping[TopicPartition, OffsetRange], share: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records at the first and at the last `share` offsets of each range, in turns."""
        first, last = {}, {}
        for one, (start, end) in ranges.items():
            stop = min(start + share, end)
            first[one], last[one] = OffsetRange(start, stop), OffsetRange(max(stop, end - share), end)
        for pair in zip_longest(self._rows(first, columns), self._rows(last, columns)):
            yield from (rows for rows in pair if rows is not None)

    def _rows(
        self, ranges: Mapping[TopicPartition, OffsetRange], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        filled = {one: wanted for one, wanted in ranges.items() if wanted.end > wanted.start}
        for task in self.source.tasks(filled, columns, DEFAULT_SPLIT_BYTES) if filled else ():
            yield from task.read()
