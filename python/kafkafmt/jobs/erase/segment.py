"""Erase records of one segment. `rewrite.segment` says how it is written and committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs import rewrite
from kafkafmt.jobs.erase.batches import COUNTS, BatchEraser, EraseCounts
from kafkafmt.jobs.erase.options import FROM_SEGMENT_START, EraseOptions, settings_of
from kafkafmt.jobs.files import Progress
from kafkafmt.jobs.rewrite import SegmentReport, SegmentRewrite, SegmentTask, rewrite_segment

# Bytes that are read and searched at once.
_RUN_BYTES = 1024 * 1024


@dataclass
class EraseReport(EraseCounts, SegmentReport):
    """The result for one segment. The fields after those of SegmentReport are `EraseCounts`."""


def erase_segment(task: SegmentTask, options: EraseOptions, progress: Progress | None = None) -> EraseReport:
    """Erase records of one segment, unless that was done already.

    Damage and errors of the file system are reported in the result, not raised. progress: called with the number of
    source bytes read since its last call.
    """
    return rewrite_segment(task, partial(_Erasure, options=options, progress=progress), EraseReport.of(task))


def split_unchanged(
    tasks: Sequence[SegmentTask], options: EraseOptions
) -> tuple[list[EraseReport], list[SegmentTask]]:
    """Return the reports of segments that earlier runs have written, and the remaining tasks. Raises RewriteError."""
    return rewrite.split_unchanged(tasks, partial(_Erasure, options=options), EraseReport.of)


class _Erasure(SegmentRewrite):
    """One attempt at one segment."""

    done = "erased"

    def __init__(
        self,
        task: SegmentTask,
        report: EraseReport,
        *,
        options: EraseOptions,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(task, options, report, progress)
        self.options = options
        self._erase_report = report
        self._eraser: BatchEraser | None = None

    def chunks(self, ranges: Sequence[tuple[int, int | None]]) -> Iterator[memoryview]:
        needed = _NeededBatches(self, ranges)
        select = self.options.selector(self.segment.topic_partition)
        eraser = BatchEraser(
            select, self.options.replacement, needed.__contains__, self.options.max_batch_bytes
        )
        self._eraser = eraser
        for start, end in ranges:
            with self.segment.open(start, end) as records:
                try:
                    for run in self.watched(records.runs(run_bytes=_RUN_BYTES, reuse_memory=True)):
                        if len(chunk := eraser.erase(run)):
                            yield chunk
                except KafkaFormatError as error:
                    raise records.with_source(error) from None

    def settings(self) -> dict[str, Any]:
        return settings_of(self.options)

    def extra_settings(self) -> dict[str, Any]:
        return {FROM_SEGMENT_START: self.task.log_start_offset is None}

    def fits(self, found: dict[str, Any]) -> bool:
        return {**found, **self.extra_settings()} == found

    def settings_in_words(self, found: dict[str, Any]) -> str:
        return "with other keys or options"

    def outcome(self) -> dict[str, Any]:
        assert self._eraser is not None
        return {**asdict(self._eraser.counts), "erased_offsets": self._eraser.erased.ranges}

    def complete_report(self, outcome: dict[str, Any]) -> None:
        for name in COUNTS:
            setattr(self._erase_report, name, int(outcome[name]))


class _NeededBatches:
    """The positions of batches that stay even if they lose all records. They are read when first needed.

    These are the last data batch of each producer, whose sequence numbers brokers need, and the last batch of the log,
    which has its end offset. Kafka's log cleaner keeps the last batch of a producer in the log; this keeps that of each
    segment, which needs no other segment.
    """

    def __init__(self, erasure: SegmentRewrite, ranges: Sequence[tuple[int, int | None]]) -> None:
        self._segment = erasure.segment
        self._ranges = ranges
        self._positions: set[int] | None = None

    def __contains__(self, position: int) -> bool:
        if self._positions is None:
            self._positions = self._read()
        return position in self._positions

    def _read(self) -> set[int]:
        of_producers: dict[int, int] = {}
        last: int | None = None
        for start, end in self._ranges:
            with self._segment.open(start, end) as records:
                for run in records.runs(run_bytes=_RUN_BYTES, reuse_memory=True):
                    rows = run.index
                    last = int(rows["position"][-1])
                    latest = rows[(rows["producer_id"] >= 0) & ~rows["is_control"]][::-1]
                    ids, first = np.unique(latest["producer_id"], return_index=True)
                    positions = latest["position"][first]
                    of_producers.update(zip(ids.tolist(), positions.tolist(), strict=True))
        positions_of_all = set(of_producers.values())
        if self._segment.is_active and last is not None:
            positions_of_all.add(last)
        return positions_of_all
