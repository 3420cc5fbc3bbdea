"""Whether a series is flat: the rule.

The first sixth of a run is the warm-up, which does not count. A series is flat if the median of the last quarter of the
rest is not above the median of its first quarter by more than the tolerance. The tolerance is a share of the first
median, or a fixed amount if that is more. The slope is the median of the slopes between all pairs of points (Theil and
Sen), so single peaks do not change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bench.endurance.sampling import DESCRIPTORS, HIGH, MEDIAN, MEMORY, THREADS, Points

Array = np.ndarray[tuple[int], np.dtype[np.float64]]
_WARM_UP_SHARE = 1 / 6
_MINUTES_AN_HOUR = 60


class Tolerance(NamedTuple):
    """How much higher the end may be than the start. share: of the start; least: at least so much."""

    share: float
    least: float
    unit: str
    form: str

    def most(self, start: float) -> float:
        return max(self.share * start, self.least)


TOLERANCES: Mapping[str, Tolerance] = {
    MEMORY: Tolerance(0.05, 6, "MiB", ".1f"),
    DESCRIPTORS: Tolerance(0.05, 4, "", ".0f"),
    THREADS: Tolerance(0.05, 1, "", ".0f"),
    # The other work on the machine is in these, too.
    MEDIAN: Tolerance(0.5, 5, "ms", ".1f"),
    HIGH: Tolerance(1.0, 50, "ms", ".1f"),
}


@dataclass(frozen=True)
class Verdict:
    """start, end: the medians of the first and the last quarter after the warm-up. slope: of an hour."""

    start: float
    end: float
    slope: float
    most: float

    @property
    def is_flat(self) -> bool:
        return self.end - self.start <= self.most


def verdict(points: Points, tolerance: Tolerance) -> Verdict | None:
    """Judge a series; None if it has too few points."""
    if not points:
        return None
    minutes, values = np.array(points).T
    counts = minutes >= minutes[-1] * _WARM_UP_SHARE
    minutes, values = minutes[counts], values[counts]
    quarter = len(values) // 4
    if quarter == 0:
        return None
    start, end = float(np.median(values[:quarter])), float(np.median(values[-quarter:]))
    return Verdict(start, end, _slope(minutes, values) * _MINUTES_AN_HOUR, tolerance.most(start))


def _slope(minutes: Array, values: Array) -> float:
    """The median slope of all pairs of points."""
    earlier, later = np.triu_indices(len(values), 1)
    return float(np.median((values[later] - values[earlier]) / (minutes[later] - minutes[earlier])))
