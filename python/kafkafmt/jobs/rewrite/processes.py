"""Work on segments in parallel, in several processes."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any, TypeVar

from kafkafmt.jobs.files import Progress
from kafkafmt.jobs.rewrite.tasks import SegmentTask
from kafkafmt.jobs.worker_processes import die_with_parent, interrupts_blocked, interrupts_held

_POLL_SECONDS = 0.1

_Report = TypeVar("_Report")


def run_in_processes(
    tasks: Sequence[SegmentTask],
    work: Callable[..., _Report],
    failed: Callable[[SegmentTask, Exception], _Report],
    jobs: int,
    progress: Progress | None = None,
) -> Generator[_Report, None, None]:
    """Work on segments in `jobs` processes. Yields the reports in the order in which segments finish.

    work: called as `work(task, progress=progress)`, with a callback of its own. It is sent once to each process.
    failed: returns the report of a task whose process was killed.
    progress: called with the number of source bytes read since its last call. If this process dies, the others end,
    too; if the iterator is closed, they end soon.
    """
    if min(jobs, len(tasks)) <= 1:
        for task in tasks:
            yield work(task, progress=progress)
        return
    context = multiprocessing.get_context("spawn")
    done_bytes, stop = context.Value("q", 0), context.Event()
    executor = ProcessPoolExecutor(min(jobs, len(tasks)), context, _start_worker, (work, done_bytes, stop))
    reported = 0
    try:
        with interrupts_blocked():  # only this process handles an interrupt, and sets `stop`
            waiting = _submitted(executor, tasks)
        submitted = len(waiting)
        with interrupts_held() as let_through:
            while waiting:
                finished, _ = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
                let_through()
                if progress is not None:
                    progress(done_bytes.value - reported)
                    reported = done_bytes.value
                for future in finished:
                    yield _outcome(future, waiting.pop(future), failed)
        for task in tasks[submitted:]:
            yield failed(task, _worker_killed())
    finally:
        stop.set()
        processes = list((executor._processes or {}).values())
        executor.shutdown(cancel_futures=True)
        for process in processes:  # one that was started while the pool broke waits for tasks for ever
            process.terminate()


def _submitted(executor: ProcessPoolExecutor, tasks: Sequence[SegmentTask]) -> dict[Future[Any], SegmentTask]:
    """Submit tasks until a worker process is killed. Returns them by their futures."""
    waiting: dict[Future[Any], SegmentTask] = {}
    with contextlib.suppress(BrokenProcessPool):
        for task in tasks:
            waiting[executor.submit(_run_in_worker, task)] = task
    return waiting


def _outcome(
    future: Future[_Report], task: SegmentTask, failed: Callable[[SegmentTask, Exception], _Report]
) -> _Report:
    try:
        return future.result()
    except BrokenProcessPool:
        return failed(task, _worker_killed())


def _worker_killed() -> RuntimeError:
    return RuntimeError("a worker process was killed, perhaps for want of memory: try fewer jobs")


class _Stopped(BaseException):
    """The parent process has stopped the work."""


class _Worker:
    """The objects that a worker process shares with its parent."""

    work: Callable[..., Any]
    done_bytes: Synchronized[int]
    stop: Event


def _start_worker(work: Callable[..., Any], done_bytes: Synchronized[int], stop: Event) -> None:
    _Worker.work, _Worker.done_bytes, _Worker.stop = work, done_bytes, stop
    die_with_parent()


def _run_in_worker(task: SegmentTask) -> Any:
    def progress(read_bytes: int) -> None:
        if _Worker.stop.is_set():
            raise _Stopped
        with _Worker.done_bytes.get_lock():
            _Worker.done_bytes.value += read_bytes

    return _Worker.work(task, progress=progress)
