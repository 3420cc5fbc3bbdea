"""Work in steps, for those who have something else to do in between: an event loop, say.

Work is a generator, and returns its result. Behind each step it yields None, or a function that may be called in
another thread, whose result it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

_Result = TypeVar("_Result")

Steps: TypeAlias = Generator["Callable[[], Any] | None", Any, _Result]


def finish(steps: Steps[_Result]) -> _Result:
    """Take all steps, one after the other, in this thread."""
    result = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as end:
            made: _Result = end.value
            return made
        result = None if step is None else step()
