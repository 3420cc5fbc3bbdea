"""What a program takes from its start to its end: time, the processors' time, and resident memory at its peak."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.process_memory import peak_mib

from bench import ROOT

# How often the peak is asked for; it only grows, so that what is missed is what it grew by since the last time.
_SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class Run:
    """processor_seconds: of all threads, and of the processes that it started and waited for."""

    seconds: float
    processor_seconds: float
    peak_mib: float


class ProgramError(Exception):
    """The program ended with another status than 0; the message ends with what it wrote last."""


def run(command: Sequence[str], log: Path) -> Run:
    """Run it until it ends; what it prints goes to `log`. Raises ProgramError."""
    started = time.perf_counter()
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    peak = 0.0
    ended = os.pidfd_open(process.pid)
    try:
        while not select.select([ended], [], [], _SAMPLE_SECONDS)[0]:
            with suppress(StopIteration):  # it ended, and has no memory
                peak = peak_mib(process.pid)
        seconds = time.perf_counter() - started
    finally:
        os.close(ended)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ProgramError(f"{' '.join(command)}: status {process.returncode}:\n{_tail(log)}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, peak)


def _tail(log: Path, lines: int = 20) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


@dataclass
class Measured:
    """A contender's runs of one work."""

    runs: list[Run] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return min(run.seconds for run in self.runs)

    @property
    def processor_seconds(self) -> float:
        return min(run.processor_seconds for run in self.runs)

    @property
    def peak_mib(self) -> float:
        return max(run.peak_mib for run in self.runs)
