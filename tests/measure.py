"""How much memory something takes at its peak."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

_IN_A_PROCESS = """
import json, resource, sys
sys.path[:0] = [sys.argv[1]]
def resident():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
from {module} import {name} as run
run(*json.loads(sys.argv[2]))
before = resident()
run(*json.loads(sys.argv[3]))
print(resident() - before)
"""


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
