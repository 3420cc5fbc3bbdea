"""Segments are rewritten in processes, of which one is killed."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kafkafmt.jobs.rewrite import run_in_processes


class LateTasks(list[Any]):
    """Tasks of which the third comes when a process has ended. The pool ends the other one, unless it starts then."""

    def __iter__(self) -> Iterator[Any]:
        others = multiprocessing.active_children()  # of tests before this one
        yield from self[:2]
        new = [one.sentinel for one in multiprocessing.active_children() if one not in others]
        assert not new or multiprocessing.connection.wait(new, 60)
        yield from self[2:]


def die_at_the_first(task: int, progress: Callable[[int], None]) -> None:
    if task == 0:
        os._exit(1)
    threading.Event().wait()


def test_processes_when_one_is_killed_before_all_tasks_are_submitted_then_each_task_has_a_report() -> None:
    tasks, others = LateTasks(range(5)), multiprocessing.active_children()
    reports = list(run_in_processes(tasks, die_at_the_first, lambda task, error: (task, str(error)), 2))
    assert sorted(task for task, _ in reports) == [*tasks]
    assert {error for _, error in reports} == {
        "a worker process was killed, perhaps for want of memory: try fewer jobs"
    }
    left = [one for one in multiprocessing.active_children() if one not in others]
    for process in left:
        process.join(60)
    assert all(not process.is_alive() for process in left)
