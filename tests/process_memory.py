"""Resident and virtual memory of this process, and of another: by /proc, which Linux has."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

MIB = 1024 * 1024
THIS = "self"
_LOOK_SECONDS = 0.005
_PRINT_PEAK = "print(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])"


def _kibibytes(name: str, process: int | str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def peak_mib(process: int | str = THIS) -> float:
    """The most that was ever resident; unlike ru_maxrss it starts anew with the program."""
    return _kibibytes("VmHWM", process) / 1024


def resident_mib(process: int | str = THIS) -> float:
    """What is resident now."""
    return _kibibytes("VmRSS", process) / 1024


def virtual_bytes(process: int | str = THIS) -> int:
    return _kibibytes("VmSize", process) * 1024


def limit_virtual_bytes(beyond: int, process: int | str = THIS) -> None:
    """Let a process have so much address space beyond what it has, and no more: it is refused memory then."""
    most = virtual_bytes(process) + beyond
    resource.prlimit(0 if process == THIS else int(process), resource.RLIMIT_AS, (most, most))


def bare_interpreter_mib() -> float:
    """The same for an interpreter that does nothing."""
    done = subprocess.run([sys.executable, "-c", _PRINT_PEAK], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def family_peak_mib(command: Sequence[str | Path]) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run a command; the peaks of it and of all processes that it starts, added up, and how it ended."""
    peaks: dict[int, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watch = threading.Thread(target=_watch, args=(process, peaks))
        watch.start()
        output, errors = process.communicate()
        watch.join()
    return sum(peaks.values()), subprocess.CompletedProcess(command, process.returncode, output, errors)


def _watch(process: subprocess.Popen[str], peaks: dict[int, float]) -> None:
    while process.returncode is None:
        for one in family(process.pid):
            with contextlib.suppress(OSError, StopIteration):  # it has ended
                peaks[one] = max(peaks.get(one, 0), peak_mib(one))
        time.sleep(_LOOK_SECONDS)


def family(process: int) -> Iterator[int]:
    """The ids of a process and of all processes that it started, and so on."""
    yield process
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))
