"""What Python's garbage collector leaves out while a server or a mirror runs."""

from __future__ import annotations

import gc
import subprocess
import sys

from kafkafmt.server.yielding import frozen_start

PROGRAM = """
import gc
from kafkafmt.server.yielding import frozen_start
before = gc.get_freeze_count()
try:
    with frozen_start():
        print(gc.get_freeze_count() - before > 10_000)
        raise OSError
except OSError:
    print(gc.get_freeze_count())
"""


def test_objects_of_the_start_when_something_runs_then_are_frozen_until_it_ends() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "0"]


def test_objects_that_the_caller_has_frozen_then_stay_frozen() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    with frozen_start():
        assert gc.get_freeze_count() <= before
    assert before - gc.get_freeze_count() < 1000
