"""How a contender is driven: a line `WORK PATH` in, a line of JSON out.

One process serves all rows of the table, and waits on its standard input while others work. What is read from
disk, decoded or allocated before the work is done before the clock starts. Needs the standard library only:
peers run in a venv of their own.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

RUNS = 7
SECONDS = 1.0
MOST_SECONDS = 4.0
FEWEST_RUNS = 2


class Tally(NamedTuple):
    """What a run did: records (or batches) gone through, and bytes that came out."""

    items: int
    produced: int = 0


Run = Callable[[], Tally]
Prepare = Callable[[bytes], Run]


def measure(run: Run) -> dict[str, float]:
    """The best and the median of at least 7 runs and a second; of 2 runs and 4 seconds where they are long.

    Beside them the fewest seconds of the processor that one of them took, in all threads of this process.
    """
    gc.collect()
    tally = run()  # a warm-up: first touch of memory, contexts of codecs
    seconds: list[float] = []
    processor_seconds: list[float] = []
    while (len(seconds) < RUNS or sum(seconds) < SECONDS) and (
        len(seconds) < FEWEST_RUNS or sum(seconds) < MOST_SECONDS
    ):
        started, worked = time.perf_counter(), time.process_time()
        again = run()
        seconds.append(time.perf_counter() - started)
        processor_seconds.append(time.process_time() - worked)
        if again != tally:
            raise AssertionError(f"runs differ: {tally}, then {again}")
    return {
        "seconds": min(seconds),
        "median_seconds": statistics.median(seconds),
        "processor_seconds": min(processor_seconds),
        "runs": len(seconds),
        "count": tally.items,
        "produced": tally.produced,
    }


def serve(works: dict[str, Prepare], close: Callable[[], None] = lambda: None) -> None:
    """Answer on standard output until standard input ends. close: called when a work was measured."""
    for line in sys.stdin:
        work, path = line.rstrip("\n").split(" ", 1)
        if work not in works:
            answer: dict[str, float | str] = {"error": "not measured"}
        else:
            answer = dict(measure(works[work](Path(path).read_bytes())))
            close()
        print(json.dumps(answer), flush=True)
