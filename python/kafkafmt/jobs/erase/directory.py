"""Erase records of a whole log directory: each segment first, then the proofs, then the publication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from kafkafmt.jobs.erase.options import EraseOptions
from kafkafmt.jobs.erase.proof import SegmentProof, prove_segment
from kafkafmt.jobs.erase.segment import EraseReport, erase_segment, split_unchanged
from kafkafmt.jobs.erase.target import EraseTarget
from kafkafmt.jobs.rewrite import SegmentTask

_Report = TypeVar("_Report")


class Runner(Protocol):
    """Runs work on each segment: in processes, or on Spark.

    work: called with a task, and with `progress` as a keyword argument or without. failed: returns the report of a task
    that could not be run. what: what is done, for a progress bar.
    """

    def __call__(
        self,
        tasks: Sequence[SegmentTask],
        work: Callable[..., _Report],
        failed: Callable[[SegmentTask, Exception], _Report],
        what: str,
        /,
    ) -> Sequence[_Report]: ...


@dataclass
class Erasure:
    """The result for a directory. errors: why it was not published, a line for each; empty if it was."""

    reports: list[EraseReport] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def is_published(self) -> bool:
        """Whether the new log directory is complete, proven, and at its place."""
        return not self.errors


def erase_directory(
    target: EraseTarget, tasks: Sequence[SegmentTask], options: EraseOptions, run: Runner
) -> Erasure:
    """Erase records of the segments `tasks`, prove the result, and publish it.

    If a segment fails, or is deleted meanwhile, or a proof fails, nothing is published; a later run continues. The
    state of the erasure stays for `partition_rows`; then call `target.remove_state`.

    Raises RewriteError if an unfinished erasure had other options, and OSError.
    """
    unchanged, left = split_unchanged(tasks, options)
    found = Erasure(unchanged)
    for report in run(left, partial(erase_segment, options=options), _failed, "erasing"):
        found.reports.append(report)
        if report.status in ("failed", "gone"):
            found.errors.append(f"{report.status}: {report.error}")
        found.errors += [f"kept: {path}: its source is gone" for path in report.kept]
    if found.errors:
        return found
    target.remove_deleted(tasks)
    target.carry_files(tasks)
    proven = []
    folders = {str(task.target): task.target_folder for task in tasks}
    for proof in run(tasks, partial(prove_segment, options=options), _unproven, "proving"):
        if proof.error is not None:
            found.errors.append(f"not proven: {proof.error}")
        proven += [folders[proof.target] / name for name in proof.targets]
    found.errors += [f"not proven: {path}: no source has it" for path in target.unproven(proven)]
    if not found.errors:
        target.publish()
    return found


def _failed(task: SegmentTask, error: Exception) -> EraseReport:
    return EraseReport.of(task).fail(error)


def _unproven(task: SegmentTask, error: Exception) -> SegmentProof:
    return SegmentProof(str(task.segment), str(task.target), error=str(error))
