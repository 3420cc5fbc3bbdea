"""Resident and virtual memory of this process, and of another; of Linux, which alone tells them apart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MIB = 1024 * 1024
_STATUS = Path("/proc/self/status")
_PRINT_PEAK = "print(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])"


def _kibibytes(name: str) -> int:
    return int(next(line for line in _STATUS.read_text().splitlines() if line.startswith(name)).split()[1])


def peak_mib() -> float:
    """The most that was ever resident; unlike ru_maxrss it starts anew with the program."""
    return _kibibytes("VmHWM") / 1024


def virtual_bytes() -> int:
    return _kibibytes("VmSize") * 1024


def bare_interpreter_mib() -> float:
    """The same for an interpreter that does nothing."""
    done = subprocess.run([sys.executable, "-c", _PRINT_PEAK], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024
