"""Wall clocks of processes that can be stepped: a preloaded library adds an offset, which is in a file."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
_NANOSECONDS = 1_000_000_000


class Clock:
    """The clock of the processes that run with its `environment`."""

    def __init__(self, file: Path, library: Path) -> None:
        self._file = file
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(file)}
        self.offset = 0.0
        self.step_to(0)

    def step_to(self, seconds: float) -> None:
        """Let the clock be that much before or after the system's, from now on."""
        data = struct.pack("=q", round(seconds * _NANOSECONDS))
        with self._file.open("r+b" if self._file.exists() else "wb", buffering=0) as file:
            file.write(data)
        self.offset = seconds


def compiled(folder: Path) -> Path:
    """The library that moves clocks, compiled into the folder."""
    library = folder / "clock.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return library
