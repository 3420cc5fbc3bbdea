"""Convert one segment to another format or codec. `rewrite.segment` says how it is written and committed.

A converted segment has the sidecar `<base offset>.converted`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from kafkafmt.codecs.measuring import decompressed_bytes
from kafkafmt.convert.chunks import ConvertedChunks
from kafkafmt.convert.options import ConversionStats
from kafkafmt.jobs import rewrite
from kafkafmt.jobs.convert.memory import ConvertMemory
from kafkafmt.jobs.convert.tasks import ConvertOptions, ConvertReport
from kafkafmt.jobs.files import Progress
from kafkafmt.jobs.rewrite import (
    Run,
    RunDescription,
    SegmentRewrite,
    SegmentTask,
    rewrite_segment,
    run_in_processes,
    writing_to,
)
from kafkafmt.log import Segment, SegmentRecords
from kafkafmt.memory.errors import MemoryPlanError
from kafkafmt.records.base import RunFilter
from kafkafmt.storage import StoragePath
from kafkafmt.types import Codec

_SETTINGS = ("to_magic", "codec", "level")


def convert_segment(
    task: SegmentTask, options: ConvertOptions, progress: Progress | None = None
) -> ConvertReport:
    """Convert one segment, unless that was done already.

    Damage and errors of the file system are reported in the result, not raised. progress: called with the number of
    source bytes read since its last call.
    """
    return rewrite_segment(
        task, partial(_Conversion, options=options, progress=progress), ConvertReport.of(task)
    )


def convert_in_processes(
    tasks: Sequence[SegmentTask], options: ConvertOptions, jobs: int, progress: Progress | None = None
) -> Generator[ConvertReport, None, None]:
    """Convert segments in `jobs` processes, as `run_in_processes`."""
    return run_in_processes(tasks, partial(convert_segment, options=options), _failed, jobs, progress)


def split_unchanged(
    tasks: Sequence[SegmentTask], options: ConvertOptions
) -> tuple[list[ConvertReport], list[SegmentTask]]:
    """Return the reports of segments that earlier runs have converted, and the remaining tasks.

    Raises RewriteError if earlier runs had another to_magic, codec or level, unless `options.force` is set.
    """
    return rewrite.split_unchanged(tasks, partial(_Conversion, options=options), ConvertReport.of)


def convert_run(
    source: StoragePath, target: StoragePath, tasks: Sequence[SegmentTask], options: ConvertOptions
) -> AbstractContextManager[Run]:
    """Return the context of a run that writes `tasks`, as `rewrite.writing_to`."""
    settings = dict(zip(_SETTINGS, (options.to_magic, _name(options.codec), options.level), strict=True))
    return writing_to(target, tasks, RunDescription("kafkafmt-convert", str(source), settings))


def _failed(task: SegmentTask, error: Exception) -> ConvertReport:
    return ConvertReport.of(task).fail(error)


class _BoundedRecords(SegmentRecords):
    """The records of a segment. Raises MemoryPlanError for a batch that is larger than the memory."""

    def __init__(
        self, segment: Segment, start: int, end: int | None, options: ConvertOptions, run_filter: RunFilter
    ) -> None:
        super().__init__(segment.path, start, end, is_active=segment.is_active, run_filter=run_filter)
        self._options = options

    def read_at(self, position: int, size: int, memory: bytearray | None = None) -> memoryview | bytes:
        bound = self._options.memory
        if bound is not None and size > max(bound.max_batch_bytes, self._options.chunk_size):
            raise _too_large(position, size, bound)
        return super().read_at(position, size, memory)


class _Conversion(SegmentRewrite):
    """One attempt at converting one segment."""

    done = "converted"

    def __init__(
        self,
        task: SegmentTask,
        report: ConvertReport,
        *,
        options: ConvertOptions,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(task, options, report, progress)
        self.options = options
        self.stats = ConversionStats()
        self._convert_report = report

    def chunks(self, ranges: Sequence[tuple[int, int | None]]) -> Iterator[memoryview]:
        options, self.stats = self.options, ConversionStats()
        for start, end in ranges:
            with _BoundedRecords(self.segment, start, end, options, self.watched) as records:
                yield from ConvertedChunks(
                    records,
                    options.conversion(),
                    chunk_size=options.chunk_size,
                    stats=self.stats,
                    reuse_memory=True,
                )

    @property
    def has_transactions(self) -> bool:
        return self.options.to_magic not in (0, 1)

    def settings(self) -> dict[str, Any]:
        options = self.options
        return dict(zip(_SETTINGS, (options.to_magic, _name(options.codec), options.level), strict=True))

    def settings_in_words(self, found: dict[str, Any]) -> str:
        given = {f"--{name.replace('_', '-')}": found.get(name) for name in _SETTINGS}
        return f"with {' '.join(f'{name} {value}' for name, value in given.items() if value is not None)}"

    def extra_settings(self) -> dict[str, Any]:
        return {"zstd_fallback": _name(self.options.zstd_fallback)}

    def fits(self, found: dict[str, Any]) -> bool:
        # Without a fallback, the source had no zstd batches.
        return found.get("zstd_fallback") in (None, _name(self.options.zstd_fallback))

    def outcome(self) -> dict[str, Any]:
        return {
            "records_converted": self.stats.records_converted,
            "partial_messages": self.stats.partial_messages,
        }

    def complete_report(self, outcome: dict[str, Any]) -> None:
        self._convert_report.records_converted = int(outcome.get("records_converted", 0))
        self._convert_report.partial_messages = int(outcome.get("partial_messages", 0))

    def refuse_too_large(self, position: int | None) -> None:
        memory = self.options.memory
        if memory is None or position is None:
            return
        with self.segment.open(position) as records:
            run = next(records.runs(run_bytes=self.options.chunk_size))
            size = decompressed_bytes(int(run.index["codec"][0]), run.payload(0))
        if size is not None and size > memory.max_batch_bytes:
            raise _too_large(position, size, memory, " decompressed")


def _too_large(position: int, size: int, memory: ConvertMemory, how: str = "") -> MemoryPlanError:
    what = f"batch at position {position}: {size} bytes{how}, where {memory.each_job} has room for a batch of"
    return MemoryPlanError(f"{what} {memory.max_batch_bytes}", memory.least_total(size), memory.total_bytes)


def _name(codec: Codec | None) -> str | None:
    return None if codec is None else codec.name.lower()
