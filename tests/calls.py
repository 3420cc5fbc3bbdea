"""How much work a call is: the functions that it calls, Python's and C's, which no load of the machine changes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_of(call: Callable[[], object]) -> int:
    """How many functions are called within a call, in this thread."""
    return len(traced_calls(call))


def traced_calls(call: Callable[[], object]) -> list[str]:
    """The names of the functions that are called within a call, in this thread, in their order."""
    names: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)
        elif event == "c_call":
            names.append(argument.__name__)

    was_collecting = gc.isenabled()
    gc.disable()  # others have callbacks at the collector
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        if was_collecting:
            gc.enable()
    return names[:-1]  # the last one is what ends the tracing
