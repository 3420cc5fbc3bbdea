"""The conversion of `kafkafmt.jobs.convert` as a Spark job: one task a segment, largest first.

A task returns a report and raises neither for what the data is nor for what the file system says: a retry would
find the same. What Spark does again is tasks whose executor was lost, or, with speculation, slow ones; each
attempt writes files of its own and commits by renaming them, so one of them wins and nothing is there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from kafkafmt.jobs.convert import (
    ConvertOptions,
    SegmentReport,
    SegmentTask,
    convert_segment,
    split_unchanged,
)
from kafkafmt.spark.context import SparkUnavailableError, first_line, spark_context

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["SparkUnavailableError", "convert_on_spark"]

_POLL_SECONDS = 0.2


def convert_on_spark(
    tasks: Sequence[SegmentTask],
    options: ConvertOptions,
    master: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Generator[SegmentReport, None, None]:
    """Convert segments in a Spark job of its own; reports come when all is done, in the order of `tasks`.

    progress: called with the bytes of the segments that were finished since its last call.

    Raises SparkUnavailableError where no job can be started.
    """
    if not tasks:
        return
    with spark_context("kafkafmt convert", master) as context:
        reports = _Job(context, tasks, options).run(progress)
    yield from reports


class _Job:
    def __init__(self, context: SparkContext, tasks: Sequence[SegmentTask], options: ConvertOptions) -> None:
        self.context = context
        self.tasks = tasks
        self.options = options
        self.done_bytes = context.accumulator(0)
        self.outcome: list[SegmentReport] | Exception = []

    def run(self, progress: Callable[[int], None] | None) -> list[SegmentReport]:
        """The reports; where Spark gave the job up, all that are not known to be done have failed."""
        from pyspark import InheritableThread

        thread = InheritableThread(target=self._collect)
        thread.start()
        told = 0
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            if progress is not None:
                progress(self.done_bytes.value - told)
                told = self.done_bytes.value
        if isinstance(self.outcome, Exception):
            reason = RuntimeError(f"Spark gave the job up: {first_line(self.outcome)}")
            done, left = split_unchanged(self.tasks, self.options)
            found = {report.path: report for report in done}
            found.update({str(task.segment): SegmentReport.of(task).fail(reason) for task in left})
            return [found[str(task.segment)] for task in self.tasks]
        return self.outcome

    def _collect(self) -> None:
        options, done_bytes = self.options, self.done_bytes

        def convert(task: SegmentTask) -> SegmentReport:
            report = convert_segment(task, options)
            done_bytes.add(task.source_bytes)
            return report

        try:
            self.outcome = self.context.parallelize(self.tasks, len(self.tasks)).map(convert).collect()
        except Exception as error:
            self.outcome = error
