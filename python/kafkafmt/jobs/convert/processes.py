"""Convert segments in parallel, each in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event

from kafkafmt.jobs.convert.segment import Progress, convert_segment
from kafkafmt.jobs.convert.tasks import ConvertOptions, SegmentReport, SegmentTask
from kafkafmt.jobs.worker_processes import die_with_parent, interrupts_blocked, interrupts_held

_POLL_SECONDS = 0.1


def convert_in_processes(
    tasks: Sequence[SegmentTask], options: ConvertOptions, jobs: int, progress: Progress | None = None
) -> Generator[SegmentReport, None, None]:
    """Convert segments in `jobs` processes. Yields the reports in the order in which segments finish.

    progress: called with the number of source bytes read since its last call. If this process dies, the others end,
    too; if the iterator is closed, they end soon.
    """
    if min(jobs, len(tasks)) <= 1:
        for task in tasks:
            yield convert_segment(task, options, progress)
        return
    context = multiprocessing.get_context("spawn")
    done_bytes, stop = context.Value("q", 0), context.Event()
    executor = ProcessPoolExecutor(min(jobs, len(tasks)), context, _start_worker, (done_bytes, stop))
    reported = 0
    try:
        with interrupts_blocked():  # only this process handles an interrupt, and sets `stop`
            waiting = {executor.submit(_convert_in_worker, task, options): task for task in tasks}
        with interrupts_held() as let_through:
            while waiting:
                finished, _ = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
                let_through()
                if progress is not None:
                    progress(done_bytes.value - reported)
                    reported = done_bytes.value
                for future in finished:
                    yield _outcome(future, waiting.pop(future))
    finally:
        stop.set()
        executor.shutdown(cancel_futures=True)


def _outcome(future: Future[SegmentReport], task: SegmentTask) -> SegmentReport:
    try:
        return future.result()
    except BrokenProcessPool:
        error = RuntimeError("a worker process was killed, perhaps for want of memory: try fewer jobs")
        return SegmentReport.of(task).fail(error)


class _Stopped(BaseException):
    """The parent process has stopped the conversion."""


class _Worker:
    """The objects that a worker process shares with its parent."""

    done_bytes: Synchronized[int]
    stop: Event


def _start_worker(done_bytes: Synchronized[int], stop: Event) -> None:
    _Worker.done_bytes, _Worker.stop = done_bytes, stop
    die_with_parent()


def _convert_in_worker(task: SegmentTask, options: ConvertOptions) -> SegmentReport:
    def progress(read_bytes: int) -> None:
        if _Worker.stop.is_set():
            raise _Stopped
        with _Worker.done_bytes.get_lock():
            _Worker.done_bytes.value += read_bytes

    return convert_segment(task, options, progress)
