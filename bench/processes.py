"""What processes take of the processors, by /proc: of one, and of all that it started."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# Of /proc/PID/stat, behind the name: the parent, and the processor's time of the process and of children that ended.
_PARENT, _TIMES = 1, slice(11, 15)


@dataclass(frozen=True)
class Process:
    name: str
    parent: int
    processor_seconds: float


def tree(root: int) -> dict[int, Process]:
    """The process `root` and all under it, by their ids."""
    processes = _all()
    return {process: processes[process] for process in processes if _is_under(process, root, processes)}


def threads() -> dict[int, Process]:
    """The threads of this process, by their ids."""
    return _all(Path("/proc/self/task"))


def exact_seconds(process: int) -> float:
    """What the threads of one process that still run have taken of the processors, in nanoseconds' steps."""
    nanoseconds = 0
    for path in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with suppress(OSError):  # it ended
            nanoseconds += int(path.read_text().split()[0])
    return nanoseconds / 1e9


def _all(folder: Path = Path("/proc")) -> dict[int, Process]:
    processes = {}
    for path in folder.glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it ended
            continue
        fields = rest.split()
        seconds = sum(map(int, fields[_TIMES])) / _TICKS
        processes[int(path.parent.name)] = Process(name, int(fields[_PARENT]), seconds)
    return processes


def _is_under(process: int, root: int, processes: dict[int, Process]) -> bool:
    while process in processes:
        if process == root:
            return True
        process = processes[process].parent
    return False
