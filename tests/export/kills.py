"""Run a function in a process that is killed at a step: a call or a return of Python code in the given modules."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

_CONTEXT = multiprocessing.get_context("forkserver")


class Run(NamedTuple):
    """What a process did. steps: until it was killed or ended."""

    steps: int
    was_killed: bool


def preload(module: str) -> None:
    """Import a module once, before the processes are forked."""
    _CONTEXT.set_forkserver_preload([module])


def run_until_step(step: int, modules: Sequence[str], work: Callable[..., object], *arguments: object) -> Run:
    """Run `work` in a process, and kill it at a step; -1 for never. modules: parts of the paths whose steps count."""
    count = _CONTEXT.Value("q", 0)
    process = _CONTEXT.Process(target=_work, args=(step, modules, count, work, *arguments))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return Run(int(count.value), process.exitcode != 0)


def _work(
    step: int, modules: Sequence[str], count: Any, work: Callable[..., object], *arguments: object
) -> None:
    def profile(frame: FrameType, event: str, argument: object) -> None:
        if any(name in frame.f_code.co_filename for name in modules):
            count.value += 1
            if count.value == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(profile)
    work(*arguments)
    sys.setprofile(None)
