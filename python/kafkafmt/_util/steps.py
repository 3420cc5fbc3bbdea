"""Work in steps, for callers that do other work between the steps, as an event loop does.

The work is a generator that returns its result. After each step it yields None, or a function that the caller may call
in another thread. The caller sends the function's result to the generator, or raises its error there. A `LargeRead` is
a function whose result takes much memory. The generator has released that result when it yields again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

_Result = TypeVar("_Result")

Steps: TypeAlias = Generator["Callable[[], Any] | None", Any, _Result]


@dataclass(frozen=True)
class LargeRead:
    """A function that reads `size_bytes` into newly allocated memory."""

    size_bytes: int
    read: Callable[[], Any]

    def __call__(self) -> Any:
        return self.read()


def finish(steps: Steps[_Result]) -> _Result:
    """Run all steps one after the other in this thread, and return the result of the work."""
    take: Callable[[], Callable[[], Any] | None] = partial(next, steps)
    while True:
        try:
            step = take()
        except StopIteration as end:
            made: _Result = end.value
            return made
        try:
            take = partial(steps.send, None if step is None else step())
        except Exception as error:
            take = partial(steps.throw, error)
