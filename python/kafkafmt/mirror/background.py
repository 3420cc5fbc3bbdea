"""Run tasks beside a mirror, each at its interval in a thread of its own: groups are synced, heartbeats are written.

A task that fails is logged and called again at its next time. It never ends the mirror. The same holds for unexpected
exceptions, whose trace is logged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors
import structlog

from kafkafmt.mirror.errors import MirrorError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

_log = structlog.get_logger()

# A task that is not awaited may be waiting for a cluster that is down.
_JOIN_SECONDS = 10.0


@dataclass
class Task:
    """What is called every `interval` seconds.

    runs_last: it is called once more after a mirror that does not follow has ended.
    """

    name: str
    interval: float
    call: Callable[[], None]
    runs_last: bool = False
    has_failed: bool = False

    def run(self) -> bool:
        """Call it, and return whether it succeeded. Log its failure as a warning once, until it succeeds again.

        An unexpected exception is logged as an error, with its trace: kafka-python raises KeyError for some answers.
        """
        try:
            self.call()
        except (kafka_errors.KafkaError, MirrorError, OSError) as error:
            log = _log.debug if self.has_failed else _log.warning
            log(f"{self.name} failed, and is tried again", error=str(error))
            self.has_failed = True
        except Exception as error:
            log = _log.debug if self.has_failed else _log.error
            log(f"{self.name} failed, and is tried again", error=repr(error), exc_info=True)
            self.has_failed = True
        else:
            self.has_failed = False
        return not self.has_failed


class Background:
    """A context manager that runs tasks in threads.

    is_following: whether the mirror runs until it is ended. Else tasks with `runs_last` see all that it has moved: the
    end waits until a running call has returned, and calls them once more. If such a task fails then, its name is added
    to `failed`.
    """

    def __init__(self, tasks: Sequence[Task], failed: list[str], *, is_following: bool) -> None:
        self._failed = failed
        self._tasks, self._is_following = tasks, is_following
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._repeat, args=(task,), name="mirror-background", daemon=True)
            for task in tasks
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        for task, thread in zip(self._tasks, self._threads, strict=True):
            if kind is not None or self._is_following or not task.runs_last:
                thread.join(_JOIN_SECONDS)
                continue
            thread.join()
            if not task.run():
                self._failed.append(task.name)
                _log.error(f"{task.name} failed at the end of the mirror")

    def _repeat(self, task: Task) -> None:
        while not self._is_over.is_set():
            task.run()
            self._is_over.wait(task.interval)
