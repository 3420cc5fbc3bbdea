"""How much memory something takes at its peak."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

_IN_A_PROCESS = """
import json, sys
sys.path[:0] = [sys.argv[1]]
from measure import most_resident_bytes
from {module} import {name} as run
run(*json.loads(sys.argv[2]))
before = most_resident_bytes()
run(*json.loads(sys.argv[3]))
print(most_resident_bytes() - before)
"""


def most_resident_bytes() -> int:
    """The most of this process that was ever resident. On Linux ru_maxrss begins with that of the parent process."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_bytes(action: Callable[[], object]) -> int:
    """What Python allocates, numpy and bytes included: not what libraries in C do."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak_resident_bytes(module: str, name: str, before: list[str], arguments: list[str]) -> int:
    """By how much a process grows that calls a function of a test module, having called it with `before`."""
    command = [
        sys.executable,
        "-c",
        _IN_A_PROCESS.format(module=module, name=name),
        str(Path(__file__).parent),
    ]
    found = subprocess.run(
        [*command, json.dumps(before), json.dumps(arguments)], stdout=subprocess.PIPE, text=True, check=True
    )
    return int(found.stdout)
