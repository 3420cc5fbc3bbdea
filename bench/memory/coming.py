"""Which partitions a process has, second by second: more come until all were there, and some are always taken away.

The same on every run; only how many records were taken by then is not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

FIRST = 8
MORE = 8
MOST_AWAY = 16


class Coming:
    """Hands out what goes and what comes at the next second; all partitions are there at least each second time."""

    def __init__(self, partitions: int, seed: int = 1) -> None:
        self._new = list(range(partitions))
        self._chosen = random.Random(seed)
        self._chosen.shuffle(self._new)
        self._away: list[int] = []
        self.assigned: set[int] = set()

    @property
    def is_all_here(self) -> bool:
        return not self._away and not self._new

    def first(self) -> tuple[Sequence[int], Sequence[int]]:
        return self._changed([], self._taken_from_new(FIRST))

    def next(self) -> tuple[Sequence[int], Sequence[int]]:
        """Partitions that are taken away, and partitions that are added behind that."""
        if self._away:
            back, self._away = self._away, []
            return self._changed([], back + self._taken_from_new(MORE))
        most = min(MOST_AWAY, len(self.assigned) // 4)
        self._away = self._chosen.sample(sorted(self.assigned), self._chosen.randint(1, most))
        return self._changed(self._away, self._taken_from_new(MORE))

    def all_back(self) -> tuple[Sequence[int], Sequence[int]]:
        """What is still away or was never there comes: what is here has ended."""
        back, self._away = self._away, []
        return self._changed([], back + self._taken_from_new(len(self._new)))

    def _taken_from_new(self, count: int) -> list[int]:
        taken, self._new = self._new[:count], self._new[count:]
        return taken

    def _changed(self, gone: list[int], come: list[int]) -> tuple[Sequence[int], Sequence[int]]:
        self.assigned.difference_update(gone)
        self.assigned.update(come)
        return gone, come
