"""Run work over many files as one Spark job. A large file is a task, small files share one, the largest run first.

The work reports damage and errors of the file system in its result, and does not raise them: a retry would fail again.
So Spark retries only tasks whose executor was lost, and slow tasks if speculation is enabled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kafkafmt._util.user_errors import UserError
from kafkafmt.spark.context import first_line

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.2
# Large against the 30 to 45 ms that a task costs, and small enough to repeat if an executor is lost.
_TASK_BYTES = 128 * 1024 * 1024
# The cost of opening a file, as bytes to read.
_OPEN_COST_BYTES = 256 * 1024
# The least number of tasks for each core, so that a small job keeps all cores busy.
_TASKS_A_CORE = 4

_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")

Progress = Callable[[int], None]
Merge = Callable[[Any, Any], Any]


class JobError(UserError, RuntimeError):
    """Spark failed a job, as when executors are lost repeatedly or have no kafkafmt. The message is one line."""


def context_of(spark: SparkSession) -> SparkContext:
    """Return the SparkContext of a session. Raises TypeError for a session of Spark Connect, which has none."""
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
    """Run `work` on each item on the executors, and return the results in the order of `items`.

    Args:
        sizes: the size of each item in bytes.
        merge: if given, results are pairs (key, value). It merges two values of a key, on the executors. The pairs
            are returned in any order.
        progress: called with the bytes of the items that were finished since its last call.

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
    """Yield the numbers of the items of each task, the largest items first."""
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
    """A job that runs in another thread, so that the calling thread can report progress and be interrupted."""

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
        reported = 0
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            if progress is not None:
                progress(self._done_bytes.value - reported)
                reported = self._done_bytes.value
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
