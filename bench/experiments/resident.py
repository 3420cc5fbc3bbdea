"""Resident and virtual memory of this process, and of another; of Linux, which alone tells them apart."""

from __future__ import annotations

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


def bare_interpreter_mib() -> float:
    """The same for an interpreter that does nothing."""
    done = subprocess.run([sys.executable, "-c", _PRINT_PEAK], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024
