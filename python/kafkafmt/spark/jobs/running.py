"""Run work over many files as one Spark job. A large file is a task, small files share one, the largest run first.

The job is `mapInArrow` over a DataFrame of pickled items, which classic sessions and Spark Connect have.

The work reports damage and errors of the file system in its result, and does not raise them: a retry would fail again.
So Spark retries only tasks whose executor was lost, and slow tasks if speculation is enabled.
"""

from __future__ import annotations

import contextlib
import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kafkafmt._util.user_errors import UserError
from kafkafmt.spark.context import first_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, Row, SparkSession

_POLL_SECONDS = 0.2
# Large against the 30 to 45 ms that a task costs, and small enough to repeat if an executor is lost.
_TASK_BYTES = 128 * 1024 * 1024
# The cost of opening a file, as bytes to read.
_OPEN_COST_BYTES = 256 * 1024
# The least number of tasks for each core, so that a small job keeps all cores busy.
_TASKS_A_CORE = 4
# Spark Connect divides a range of this many numbers by its number of cores.
_MANY = 1 << 16

_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome")

Progress = Callable[[int], None]
Merge = Callable[[Any, Any], Any]
ArrowFunction = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


class JobError(UserError, RuntimeError):
    """Spark failed a job, as when executors are lost repeatedly or have no kafkafmt. The message is one line."""


def cores_of(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at a time, as far as it says."""
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        return max(int(context.defaultParallelism), 1)
    from pyspark.sql import functions as f

    return max(spark.range(_MANY).select(f.spark_partition_id()).distinct().count(), 1)


def run(
    spark: SparkSession,
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
        merge: if given, results are pairs (key, value). It merges two values of a key, in the tasks and then here. The
            pairs are returned in any order.
        progress: called with the bytes of the items that were finished since its last call. Not with Spark Connect.

    Raises JobError.
    """
    import pyarrow as pa

    if not items:
        return []
    groups = _groups(sizes, cores_of(spark))
    tasks = [pickle.dumps([(number, items[number], sizes[number]) for number in group]) for group in groups]
    # Spark Connect has no accumulators.
    done_bytes = None if progress is None else spark.sparkContext.accumulator(0)
    numbers = pa.array(range(len(tasks)), pa.int32())
    table = pa.Table.from_arrays([numbers, pa.array(tasks, pa.binary())], ["number", "items"])
    frame = spark.createDataFrame(table).repartitionById(len(tasks), "number")
    worked = frame.mapInArrow(_worker(work, merge, done_bytes), "outcomes binary")
    found = [
        pair
        for row in collect_job(spark, worked, _reporter(progress, done_bytes))
        for pair in pickle.loads(bytes(row["outcomes"]))
    ]
    if merge is not None:
        return list(_merged(found, merge).items())  # type: ignore[arg-type]  # outcomes are pairs
    return [outcome for _, outcome in sorted(found, key=lambda pair: pair[0])]


def collect_job(
    spark: SparkSession, frame: DataFrame, while_waiting: Callable[[], None] | None = None
) -> list[Row]:
    """Run a job, and return its rows. If this thread is interrupted, the job is cancelled.

    while_waiting: called several times a second until the job has ended, and once then. Raises JobError.
    """
    from pyspark import InheritableThread

    outcome: list[list[Row] | Exception] = []

    def collect() -> None:
        try:
            outcome.append(frame.collect())
        except Exception as error:
            outcome.append(error)

    tag = f"kafkafmt-{uuid.uuid4().hex}"
    spark.addTag(tag)
    try:
        thread = InheritableThread(target=collect, session=spark)
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            if while_waiting is not None:
                while_waiting()
    except BaseException:
        with contextlib.suppress(Exception):
            spark.interruptTag(tag)
        raise
    finally:
        spark.removeTag(tag)
    (found,) = outcome
    if isinstance(found, Exception):
        raise JobError(f"Spark gave the job up: {_reason(found)}") from None
    return found


def _worker(
    work: Callable[[Any], Any], merge: Merge | None, done_bytes: Accumulator[int] | None
) -> ArrowFunction:
    """Return the function of a Spark task. It takes lists of items, and yields lists of outcomes."""

    def outcomes(items: Sequence[tuple[int, Any, int]]) -> Iterator[tuple[Any, Any]]:
        for number, item, size in items:
            outcome = work(item)
            yield outcome if merge is not None else (number, outcome)
            if done_bytes is not None:
                done_bytes.add(size)

    def run_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for items in batch.column(1).to_pylist():
                found: Any = list(outcomes(pickle.loads(items)))
                if merge is not None:
                    found = list(_merged(found, merge).items())
                yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(found)], pa.binary())], ["outcomes"])

    return run_task


def _merged(pairs: Sequence[tuple[Any, Any]], merge: Merge) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in pairs:
        found[key] = merge(found[key], value) if key in found else value
    return found


def _reporter(progress: Progress | None, done_bytes: Accumulator[int] | None) -> Callable[[], None] | None:
    """Return a function that reports the bytes that were finished since its last call."""
    if progress is None or done_bytes is None:
        return None
    reported = 0

    def report() -> None:
        nonlocal reported
        progress(done_bytes.value - reported)
        reported = done_bytes.value

    return report


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


def _reason(error: Exception) -> str:
    reason = first_line(error)
    if "No module named 'kafkafmt" in reason or "No module named '_kafkafmt" in reason:
        return f"{reason} on the executors: kafkafmt.spark.register(spark) ships it"
    return reason
