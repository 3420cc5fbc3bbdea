"""Run iterators in threads, and return their items in order. What waits to be returned is bounded."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

_Item = TypeVar("_Item")
_END = object()


def in_threads(jobs: Iterator[Iterator[_Item]], threads: int, waiting: int) -> Generator[_Item, None, None]:
    """Yield the items of all jobs, job after job, as one thread would.

    Jobs are taken from `jobs` in the caller's thread, up to one more than there are threads. An error of `jobs` or of a
    job is raised after the items before it. After an error, and if the generator is closed, the threads end with the
    next item.

    waiting: the most items of a job that wait to be yielded. The job's thread then waits.
    """
    running: deque[_Job[_Item]] = deque()
    failure: BaseException | None = None
    has_more = True
    with ThreadPoolExecutor(threads, "scan") as pool:
        try:
            while has_more or running:
                while has_more and len(running) <= threads:
                    try:
                        job = _Job(next(jobs), waiting)
                    except StopIteration:
                        has_more = False
                    except Exception as error:
                        has_more, failure = False, error
                    else:
                        running.append(job)
                        pool.submit(job.run)
                if running:
                    yield from running[0].items()
                    running.popleft()
            if failure is not None:
                raise failure
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for job in running:
                job.cancel()


class _Job(Generic[_Item]):
    def __init__(self, iterator: Iterator[_Item], waiting: int) -> None:
        self._iterator = iterator
        self._room = threading.Semaphore(waiting)
        self._ready: SimpleQueue[Any] = SimpleQueue()
        self._is_cancelled = False

    def run(self) -> None:
        """Make the items, in a thread."""
        last: object = _END
        try:
            for item in self._iterator:
                self._room.acquire()
                if self._is_cancelled:
                    break
                self._ready.put((item,))
        except BaseException as error:
            last = error
        finally:
            close = getattr(self._iterator, "close", None)
            with suppress(Exception):
                if close is not None:
                    close()
            self._ready.put(last)

    def items(self) -> Iterator[_Item]:
        """Yield the items as they come. Raises the error of the job."""
        while True:
            found = self._ready.get()
            if isinstance(found, BaseException):
                raise found
            if found is _END:
                return
            self._room.release()
            yield found[0]

    def cancel(self) -> None:
        """End the job with its next item."""
        self._is_cancelled = True
        self._room.release()
