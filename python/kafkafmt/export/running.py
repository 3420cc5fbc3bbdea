"""Run exports on this machine: tasks of several tables in several processes, a commit for each table."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafkafmt._util.user_errors import UserError
from kafkafmt.errors import KafkaFormatError
from kafkafmt.export.errors import ExportError, NoRecordsError
from kafkafmt.export.plan import ExportOptions, ExportPlan, ScanSource, plan_table, sources_of
from kafkafmt.jobs.worker_processes import die_with_parent, interrupts_blocked, interrupts_held
from kafkafmt.storage.locations import without_secrets

if TYPE_CHECKING:
    from kafkafmt.export.tables import DataFile, Destination
    from kafkafmt.export.tasks import ExportTask
    from kafkafmt.scanning.tasks import OffsetRange
    from kafkafmt.types import TopicPartition

_POLL_SECONDS = 0.1
# The tasks that wait for a process, so that none is idle while the next table is planned.
_WAITING_PER_PROCESS = 2
FAILURES = (UserError, KafkaFormatError, OSError, ValueError)


@dataclass(frozen=True)
class TableReport:
    """What an export has done to one table.

    topic: None for a table of all topics. ranges: the exported offsets of each partition. gone: offsets that the source
    no longer had. error: why nothing was exported; None if all was. undecoded: the keys and values that could not be
    decoded, and are null.
    """

    topic: str | None
    location: str
    rows: int = 0
    files: int = 0
    size_in_bytes: int = 0
    source_bytes: int = 0
    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    gone: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    error: Exception | None = None
    undecoded: int = 0


@dataclass(eq=False)
class _Table:
    plan: ExportPlan
    files: list[DataFile] = field(default_factory=list)
    left: int = 0
    error: Exception | None = None


def run_export(
    scan: ScanSource,
    destination: Destination,
    options: ExportOptions,
    progress: Callable[[int], object] = lambda read_bytes: None,
) -> Generator[TableReport, None, None]:
    """Export a scan, and yield a report of each table when it is committed, or when it has failed.

    A table that fails leaves the others unaffected. If the iterator is closed, files without a commit are removed.

    progress: called with the number of stored bytes that were read since its last call.

    Raises as `sources_of` does.
    """
    if options.processes > 1:
        yield from _Pool(scan, destination, options, progress).run()
        return
    for topic, part in sources_of(scan, destination, options):
        plan = planned(topic, part, destination, options)
        if isinstance(plan, TableReport):
            yield plan
            continue
        files: list[DataFile] = []
        try:
            for task in plan.tasks:
                files += task.run_task(progress)
        except BaseException as error:
            abort(plan, files)
            if not isinstance(error, FAILURES):
                raise
            yield failed(plan, error)
            continue
        yield committed(plan, files)


def planned(
    topic: str | None, scan: ScanSource, destination: Destination, options: ExportOptions
) -> ExportPlan | TableReport:
    """Plan the export of a table, or return its report: of a failure, or of a topic without records and columns."""
    try:
        return plan_table(topic, scan, destination, options)
    except NoRecordsError as error:
        return TableReport(topic, error.location)
    except FAILURES as error:
        return TableReport(topic, topic or without_secrets(destination.target), error=error)


def abort(plan: ExportPlan, files: Sequence[DataFile], *, has_ended: bool = True) -> None:
    """Abort a plan after an error. If files cannot be removed, the next export of the table removes them."""
    with contextlib.suppress(*FAILURES):
        plan.abort(files, has_ended=has_ended)


def failed(plan: ExportPlan, error: Exception) -> TableReport:
    """Return the report of an export that has failed."""
    return TableReport(plan.topic, plan.table.location, error=error)


def committed(plan: ExportPlan, files: list[DataFile]) -> TableReport:
    """Commit the files of all tasks of a plan, and return the report."""
    try:
        plan.commit(files)
    except FAILURES as error:
        return failed(plan, error)
    return TableReport(
        plan.topic,
        plan.table.location,
        sum(file.rows for file in files),
        len(files),
        sum(file.size_in_bytes for file in files),
        sum(task.size_in_bytes for task in plan.tasks),
        dict(plan.ranges),
        dict(plan.gone),
        undecoded=sum(file.undecoded for file in files),
    )


class _Pool:
    """Runs the tasks of several tables in processes."""

    def __init__(
        self,
        scan: ScanSource,
        destination: Destination,
        options: ExportOptions,
        progress: Callable[[int], object],
    ) -> None:
        self._sources = sources_of(scan, destination, options)
        self._destination, self._options, self._progress = destination, options, progress
        self._executor = ProcessPoolExecutor(
            options.processes, multiprocessing.get_context("spawn"), die_with_parent
        )
        self._waiting: dict[Future[list[DataFile]], tuple[_Table, ExportTask]] = {}
        self._queued: deque[tuple[_Table, ExportTask]] = deque()
        self._tables: list[_Table] = []

    def run(self) -> Iterator[TableReport]:
        has_ended = True
        try:
            with interrupts_held() as let_through:
                more = True
                while more or self._waiting or self._queued:
                    let_through()
                    more = more and (yield from self._fill())
                    done, _ = wait(self._waiting, _POLL_SECONDS, FIRST_COMPLETED)
                    for future in done:
                        yield from self._finish(future)
        except BrokenProcessPool:
            has_ended = False  # what a killed process has written, the next export removes
            raise ExportError(
                "a process was killed, perhaps for want of memory: try fewer processes"
            ) from None
        finally:
            self._executor.shutdown(cancel_futures=True)
            for future, (table, _) in self._waiting.items():
                if not future.cancelled() and future.exception() is None:
                    table.files += future.result()
            for table in self._tables:
                abort(table.plan, table.files, has_ended=has_ended)

    def _fill(self) -> Generator[TableReport, None, bool]:
        """Submit tasks until enough wait. Returns whether there are more tables."""
        enough = self._options.processes * _WAITING_PER_PROCESS
        while len(self._waiting) < enough:
            while not self._queued:
                topic, scan = next(self._sources, (None, None))
                if scan is None:
                    return False
                plan = planned(topic, scan, self._destination, self._options)
                if isinstance(plan, TableReport):
                    yield plan
                elif not plan.tasks:
                    yield committed(plan, [])
                else:
                    table = _Table(plan, left=len(plan.tasks))
                    self._tables.append(table)
                    self._queued.extend((table, task) for task in plan.tasks)
            table, task = self._queued.popleft()
            with interrupts_blocked():  # only this process handles an interrupt
                self._waiting[self._executor.submit(task.run_task)] = table, task
        return True

    def _finish(self, future: Future[list[DataFile]]) -> Iterator[TableReport]:
        """Take the result of a task. After the last one of a table, commit its files, or remove them if one failed."""
        table, task = self._waiting.pop(future)
        table.left -= 1
        try:
            table.files += future.result()
            self._progress(task.size_in_bytes)
        except FAILURES as error:
            table.error = table.error or error
            before = len(self._queued)
            self._queued = deque(one for one in self._queued if one[0] is not table)
            table.left -= before - len(self._queued)
        if table.left:
            return
        self._tables.remove(table)
        if table.error is None:
            yield committed(table.plan, table.files)
        else:
            abort(table.plan, table.files)
            yield failed(table.plan, table.error)
