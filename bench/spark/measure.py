"""A local Spark, what it is asked to do with a source's rows, and the clocks: of the wall, and of the processors."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bench import ROOT as PROJECT
from bench.processes import Process, tree
from bench.spark.logs import ROOT
from bench.spark.sources import CeilingSource
from kafkafmt.spark.data_source import KafkafmtDataSource

WRITTEN = ROOT / "written"


@contextmanager
def local_spark(cores: int, jars: Path | None = None) -> Iterator[SparkSession]:
    """A local Spark as it comes, that knows the sources."""
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable)
    builder = SparkSession.builder.master(f"local[{cores}]").config("spark.driver.memory", "4g")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.executorEnv.PYTHONPATH", str(PROJECT))
    if jars is not None:
        builder = builder.config("spark.jars", ",".join(map(str, jars.glob("*.jar"))))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    for source in (KafkafmtDataSource, CeilingSource):
        session.dataSource.register(source)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def on_one_processor() -> Iterator[None]:
    """All that runs under this process on one processor: `local[1]` alone has Java and Python work side by side."""
    before = os.sched_getaffinity(0)
    _put_on({min(before)})
    try:
        yield
    finally:
        _put_on(before)


def _put_on(processors: set[int]) -> None:
    """This process, those under it, and what they start from now on."""
    for process in (os.getpid(), *_processes_under_this()):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(ProcessLookupError):  # it ended
                os.sched_setaffinity(int(thread.name), processors)


def count(frame: DataFrame) -> Any:
    return frame.count()


def sum_of_offsets(frame: DataFrame) -> Any:
    return frame.agg(f.sum("offset")).collect()[0][0]


def sum_of_lengths(frame: DataFrame) -> Any:
    return frame.agg(f.sum(f.length("value"))).collect()[0][0]


def write_parquet(frame: DataFrame) -> None:
    try:
        frame.write.parquet(str(WRITTEN))
    finally:
        shutil.rmtree(WRITTEN, ignore_errors=True)


Work = Callable[[DataFrame], Any]
WORKS: dict[str, Work] = {
    "count()": count,
    "sum(offset)": sum_of_offsets,
    "sum(length(value))": sum_of_lengths,
    "Parquet write": write_parquet,
}


@dataclass(frozen=True)
class Contender:
    """A frame, made anew for each run, the records in it, and how often it runs after a run that does not count."""

    frame: Callable[[], DataFrame]
    records: int
    rounds: int


@dataclass(frozen=True)
class Measured:
    """One run: seconds of the wall, and of the processors, in Python and in Java; what the work came to."""

    seconds: float
    python_seconds: float
    java_seconds: float
    records: int
    result: Any


def take_turns(work: Work, contenders: dict[str, Contender]) -> dict[str, Measured]:
    """The best run of each contender, which take turns, so that noise meets all alike."""
    runs: dict[str, list[Measured]] = {name: [] for name in contenders}
    for number in range(1 + max(contender.rounds for contender in contenders.values())):
        for name, contender in contenders.items():
            if number <= contender.rounds:
                runs[name].append(_measured(work, contender))
    return {name: min(taken[1:], key=lambda run: run.seconds) for name, taken in runs.items()}


def _measured(work: Work, contender: Contender) -> Measured:
    before = _processor_seconds()
    started = time.perf_counter()
    result = work(contender.frame())
    seconds = time.perf_counter() - started
    python, java = (after - start for after, start in zip(_processor_seconds(), before, strict=True))
    return Measured(seconds, python, java, contender.records, result)


def _processor_seconds() -> tuple[float, float]:
    """What all processes under this one have taken so far: Python's, and others', which are Java's."""
    totals = [0.0, 0.0]
    for process in _processes_under_this().values():
        totals[not process.name.startswith("python")] += process.processor_seconds
    return totals[0], totals[1]


def _processes_under_this() -> dict[int, Process]:
    processes = tree(os.getpid())
    del processes[os.getpid()]
    return processes
