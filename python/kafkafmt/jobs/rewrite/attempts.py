"""Run attempts at segments, and find the segments for which none is needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs.files import is_deleted
from kafkafmt.jobs.rewrite.log_starts import is_log_start_carried
from kafkafmt.jobs.rewrite.segment import SegmentRewrite
from kafkafmt.jobs.rewrite.targets import LocalTarget, StoreTarget
from kafkafmt.jobs.rewrite.tasks import RewriteError, SegmentReport, SegmentTask
from kafkafmt.log.checkpoints import LogStartOffsets
from kafkafmt.storage import RemotePath, side_by_side, storage_of
from kafkafmt.storage.remote import RemoteEntry

if TYPE_CHECKING:
    from kafkafmt.storage import RemoteStatus

_Report = TypeVar("_Report", bound=SegmentReport)
# Creates the attempt at a segment.
Rewrite: TypeAlias = "Callable[[SegmentTask, _Report], SegmentRewrite]"


def rewrite_segment(task: SegmentTask, rewrite: Rewrite[_Report], report: _Report) -> _Report:
    """Write one segment, unless that was done already, and return its report.

    Damage and errors of the file system are reported in the result, not raised.
    """
    started = time.perf_counter()
    try:
        rewrite(task, report).run()
    except (KafkaFormatError, OSError, ValueError) as error:
        report.fail(error)
        if isinstance(error, FileNotFoundError) and is_deleted(task.segment.path):
            report.status = "gone"
    report.seconds = time.perf_counter() - started
    return report


def split_unchanged(
    tasks: Sequence[SegmentTask], rewrite: Rewrite[_Report], report_of: Callable[[SegmentTask], _Report]
) -> tuple[list[_Report], list[SegmentTask]]:
    """Return the reports of segments that earlier runs have written, and the remaining tasks.

    Raises RewriteError if earlier runs had other settings, unless the option `force` is set.
    """
    listings = _listings(tasks)
    log_starts = LogStartOffsets()

    def look_at(task: SegmentTask) -> _Report | None:
        """Return the report of a segment that is done; None for others."""
        report = report_of(task)
        try:
            attempt = rewrite(task, report)
            if isinstance(attempt.target, StoreTarget):
                attempt.target.listing = listings[str(task.target_folder)]
            if (other := attempt.other_options()) is not None:
                folder = task.target_folder.parent
                raise RewriteError(
                    f"{folder}: holds segments that were {attempt.done} {other}: --force replaces them"
                )
            if not attempt.adopt_done() or task.stale or not is_log_start_carried(task, log_starts):
                return None
        except OSError:
            return None
        if isinstance(attempt.target, LocalTarget):
            attempt.target.remove_lock()
        return report

    found = side_by_side(look_at, tasks, in_parallel=bool(listings))
    left = [task for task, report in zip(tasks, found, strict=True) if report is None]
    return [report for report in found if report is not None], left


def _listings(tasks: Iterable[SegmentTask]) -> dict[str, dict[str, RemoteStatus]]:
    """List the target folders in a store, each once. Returns the status of their files, by folder and name."""
    folders = {
        str(task.target_folder): task.target_folder
        for task in tasks
        if isinstance(task.target_folder, RemotePath)
    }
    return dict(zip(folders, side_by_side(_files_in, folders.values(), in_parallel=True), strict=True))


def _files_in(folder: RemotePath) -> dict[str, RemoteStatus]:
    try:
        with storage_of(folder).entries(folder) as entries:
            return {entry.name: entry.status for entry in entries if isinstance(entry, RemoteEntry)}
    except FileNotFoundError:
        return {}
