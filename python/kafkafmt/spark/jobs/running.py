"""Work on many files as one Spark job: a large file is a task, small ones share one, and the largest go first.

Work returns what it has to tell and raises neither for what data is nor for what a file system says: a retry would
find the same. What Spark does again is tasks whose executor was lost, or, with speculation, slow ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kafkafmt.spark.context import first_line

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.2
# A task costs 30 to 45 ms: this much takes longer, and is soon done again where an executor is lost.
_TASK_BYTES = 128 * 1024 * 1024
# What a file costs beside its bytes.
_OPEN_COST_BYTES = 256 * 1024
# So that cores have something to do to the end, where there is little.
_TASKS_A_CORE = 4

_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")

Progress = Callable[[int], None]
Merge = Callable[[Any, Any], Any]


class JobError(RuntimeError):
    """Spark gave a job up: executors were lost again and again, or have no kafkafmt. One line."""


def context_of(spark: SparkSession) -> SparkContext:
    """The context that a session's jobs run in. Raises TypeError for a session of Spark Connect, which has none."""
    context: SparkContext | None = getattr(spark, "sparkContext", None)
    if context is None:
        raise TypeError(f"jobs take a SparkSession with a context, not {type(spark).__module__}'s")
    return context


def run(
    context: SparkContext,
    items: Sequence[_Item],
    sizes: Sequence[int],
    work: Callable[[_Item], _Outcome],
    *,
    merge: Merge | None = None,
    progress: Progress | None = None,
) -> list[_Outcome]:
    """What `work` makes of each item, on the executors, in the order of `items`, whose `sizes` are in bytes.

    merge: what is made are (key, value), and values of one key are merged on the executors: the pairs come in
    any order. progress: called with the bytes of the items that were finished since its last call.

    Raises JobError.
    """
    if not items:
        return []
    groups = _groups(sizes, context.defaultParallelism)
    tasks = [[(number, items[number], sizes[number]) for number in group] for group in groups]
    found = _Job(context, tasks, work, merge).run(progress)
    if merge is not None:
        return [pair for _, pair in found]
    return [outcome for _, outcome in sorted(found, key=lambda each: each[0])]


def _groups(sizes: Sequence[int], cores: int) -> Iterator[list[int]]:
    """The numbers of the items that share a task, the largest ones first."""
    most = min(_TASK_BYTES, (sum(sizes) + _OPEN_COST_BYTES * len(sizes)) // (_TASKS_A_CORE * cores))
    together: list[int] = []
    cost = 0
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        more = sizes[number] + _OPEN_COST_BYTES
        if together and cost + more > most:
            yield together
            together, cost = [], 0
        together.append(number)
        cost += more
    yield together


class _Job:
    """One job, in a thread of its own, so that this one can tell how far it is and be interrupted."""

    def __init__(
        self,
        context: SparkContext,
        tasks: Sequence[Sequence[tuple[int, Any, int]]],
        work: Callable[[Any], Any],
        merge: Merge | None,
    ) -> None:
        self._context = context
        self._tasks = tasks
        self._work = work
        self._merge = merge
        self._done_bytes = context.accumulator(0)
        self._outcome: list[tuple[int, Any]] | Exception = []

    def run(self, progress: Progress | None) -> list[tuple[int, Any]]:
        from pyspark import InheritableThread

        thread = InheritableThread(target=self._collect)
        thread.start()
        told = 0
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            if progress is not None:
                progress(self._done_bytes.value - told)
                told = self._done_bytes.value
        if isinstance(self._outcome, Exception):
            raise JobError(f"Spark gave the job up: {_reason(self._outcome)}") from None
        return self._outcome

    def _collect(self) -> None:
        work, done_bytes = self._work, self._done_bytes

        def run_task(task: Iterable[tuple[int, Any, int]]) -> Iterator[tuple[int, Any]]:
            for number, item, size in task:
                yield number, work(item)
                done_bytes.add(size)

        try:
            outcomes: RDD[Any] = self._context.parallelize(self._tasks, len(self._tasks)).flatMap(run_task)
            if self._merge is not None:
                merged = outcomes.map(lambda outcome: outcome[1]).reduceByKey(self._merge)
                outcomes = merged.map(lambda pair: (0, pair))
            self._outcome = outcomes.collect()
        except Exception as error:
            self._outcome = error


def _reason(error: Exception) -> str:
    reason = first_line(error)
    if "No module named 'kafkafmt" in reason or "No module named '_kafkafmt" in reason:
        return f"{reason} on the executors: kafkafmt.spark.register(spark) ships it"
    return reason
