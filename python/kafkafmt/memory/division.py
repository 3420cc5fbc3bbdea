"""Divide one total of bytes into named parts, and find the least total that is enough.

A job declares parts of the total, which are reserved first, and parts of each thread's share of the remainder. The rest
of a share is for purposes that can use any number of bytes, such as a batch or buffers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from kafkafmt.memory.errors import MemoryPlanError

_MAX_BYTES = 2**62


class Part(NamedTuple):
    """Bytes for one purpose: 1/`one_in` of a whole, at most `most_bytes`, and at least `least_bytes`.

    If `one_in` is 0, the part is `least_bytes`, independent of the whole.

    >>> Part("writing", one_in=4, most_bytes=100).of(200), Part("reading", 30).of(200)
    (50, 30)
    """

    name: str
    least_bytes: int = 0
    one_in: int = 0
    most_bytes: int | None = None

    def of(self, whole_bytes: int) -> int:
        """Return the bytes of this part of `whole_bytes`."""
        size = max(whole_bytes, 0) // self.one_in if self.one_in else 0
        if self.most_bytes is not None:
            size = min(size, self.most_bytes)
        return max(size, self.least_bytes)


@dataclass(frozen=True)
class Division:
    """Divide `total_bytes` over `threads`. reserved: parts of the total. parts: parts of each thread's share.

    The share of a thread is the total without the reserved parts, divided by the number of threads.

    >>> division = Division(1000, 2, reserved=(Part("allocator", one_in=10),), parts=(Part("reading", 150),))
    >>> division.share_bytes, division.sizes, division.rest_bytes, division.least_total(500)
    (450, {'reading': 150}, 300, 1444)
    """

    total_bytes: int
    threads: int = 1
    reserved: tuple[Part, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def share_bytes(self) -> int:
        """The share of each thread; negative if the reserved parts are larger than the total."""
        return (self.total_bytes - sum(part.of(self.total_bytes) for part in self.reserved)) // self.threads

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each part of a thread, by name."""
        return {part.name: part.of(self.share_bytes) for part in self.parts}

    @property
    def rest_bytes(self) -> int:
        """A thread's share without its parts; may be negative."""
        return self.share_bytes - sum(self.sizes.values())

    def least_total(self, rest_bytes: int) -> int:
        """Return the least total that leaves a rest of `rest_bytes`. The present total must leave less."""
        return least_total(
            lambda total: replace(self, total_bytes=total).rest_bytes >= rest_bytes, self.total_bytes
        )

    def ensure_rest(self, rest_bytes: int, what: str) -> None:
        """Raise MemoryPlanError if the rest is below `rest_bytes`. what: names the purpose in the error."""
        if self.rest_bytes < rest_bytes:
            raise MemoryPlanError(what, self.least_total(rest_bytes), self.total_bytes)


def least_total(suffices: Callable[[int], bool], too_small: int = 0, *, step: int = 1) -> int:
    """Return the least multiple of `step` above `too_small` for which `suffices(total)` is true.

    suffices: must be true for all larger totals, too. If it raises MemoryPlanError, this counts as false.
    """

    def does(number: int) -> bool:
        try:
            return suffices(number * step)
        except MemoryPlanError:
            return False

    return bisect_left(range(_MAX_BYTES // step), True, lo=too_small // step + 1, key=does) * step
