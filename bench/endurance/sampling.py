"""Samples of a command: what its processes use, and the latencies that its clients saw, as series over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench import processes

SAMPLE_SECONDS = 5.0
_MOST_WINDOWS = 120
_KIB_A_MIB = 1024
MEMORY, DESCRIPTORS, THREADS = "memory", "descriptors", "threads"
MEDIAN, HIGH = "latency p50", "latency p99"

Points = list[tuple[float, float]]
"""Minutes since the start, and the value."""


class Usage(NamedTuple):
    """What a process uses with all that it started. memory_mib: proportional set size, so shared pages count once."""

    memory_mib: float
    descriptors: int
    threads: int


def usage_of(root: int) -> Usage:
    """Measure a process and all under it. One that ends meanwhile does not count."""
    memory_kib = descriptors = threads = 0
    for process in processes.tree(root):
        folder = Path(f"/proc/{process}")
        with suppress(OSError):
            rollup = (folder / "smaps_rollup").read_text()
            memory_kib += int(rollup.partition("\nPss:")[2].split()[0])
            descriptors += len(list((folder / "fd").iterdir()))
            threads += len(list((folder / "task").iterdir()))
    return Usage(memory_kib / _KIB_A_MIB, descriptors, threads)


@dataclass
class Samples:
    """The samples of a command, each with the seconds since the start and the latencies since the one before it."""

    seconds: list[float] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)
    latencies_ms: list[Sequence[float]] = field(default_factory=list)

    def add(self, seconds: float, usage: Usage, latencies_ms: Sequence[float]) -> None:
        self.seconds.append(seconds)
        self.usage.append(usage)
        self.latencies_ms.append(latencies_ms)

    def series(self) -> Mapping[str, Points]:
        """The series by name, a point for each window of at least one sample.

        A point is the median of the window's samples, and for latency a percentile of all its latencies.
        """
        series: dict[str, Points] = {name: [] for name in (MEMORY, DESCRIPTORS, THREADS, MEDIAN, HIGH)}
        windows = min(len(self.seconds), _MOST_WINDOWS)
        for window in np.array_split(np.arange(len(self.seconds)), windows) if windows else ():
            minutes = round(self.seconds[window[-1]] / 60, 3)
            samples = zip(*(self.usage[number] for number in window), strict=True)
            for name, values in zip((MEMORY, DESCRIPTORS, THREADS), samples, strict=True):
                series[name].append((minutes, round(float(np.median(values)), 2)))
            latencies = np.concatenate([self.latencies_ms[number] for number in window])
            if len(latencies):
                median, high = np.percentile(latencies, (50, 99))
                series[MEDIAN].append((minutes, round(float(median), 2)))
                series[HIGH].append((minutes, round(float(high), 2)))
        return series
