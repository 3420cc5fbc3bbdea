"""Resident and virtual memory of this process, and of another: by /proc, which Linux has."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

MIB = 1024 * 1024
THIS = "self"
_PRINT_PEAK = "print(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])"


def _kibibytes(name: str, process: int | str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def peak_mib(process: int | str = THIS) -> float:
    """The most that was ever resident; unlike ru_maxrss it starts anew with the program."""
    return _kibibytes("VmHWM", process) / 1024


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
