"""The Spark jobs of an export. Their tasks read, decode and write Parquet in the Python workers.

No row passes through the JVM. A task gets a pickled `ExportTask`, and returns the descriptions of its files. The driver
commits them once for each table. A job has the tasks of up to 100 tables, because the lease of a table keeps a
descriptor open, or a thread for a store.

Each attempt of a task writes files of its own, so Spark may repeat a task, or run it twice at a time: the files of the
attempt whose result arrives are committed, those of others are removed.

A job is `mapInArrow` over a range, which classic sessions and Spark Connect have.
"""

from __future__ import annotations

import contextlib
import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kafkafmt.export.plan import ExportOptions, ExportPlan, ScanSource, sources_of
from kafkafmt.export.running import FAILURES, TableReport, abort, committed, failed, planned
from kafkafmt.export.tables import Destination
from kafkafmt.export.writing import below
from kafkafmt.spark.jobs.running import ArrowFunction, collect_job, cores_of
from kafkafmt.storage import storage_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from kafkafmt.export.tables import DataFile
    from kafkafmt.export.tasks import ExportTask

_RESULT = "number bigint, is_repeated boolean, result binary"
_TABLES_A_JOB = 100


@dataclass(eq=False)
class _Table:
    plan: ExportPlan
    files: list[DataFile] = field(default_factory=list)
    error: Exception | None = None
    is_repeated: bool = False


def run_export_on_spark(
    spark: SparkSession, scan: ScanSource, destination: Destination, options: ExportOptions
) -> Iterator[TableReport]:
    """Export a scan, and yield a report of each table. See `kafkafmt.spark.export`."""
    options = replace(options, processes=cores_of(spark))
    tables: list[_Table] = []
    try:
        for topic, part in sources_of(scan, destination, options):
            plan = planned(topic, part, destination, options)
            if isinstance(plan, TableReport):
                yield plan
            elif not plan.tasks:
                yield committed(plan, [])
            else:
                tables.append(_Table(plan))
            if len(tables) == _TABLES_A_JOB:
                yield from _exported(spark, tables)
        yield from _exported(spark, tables)
    finally:
        for table in tables:
            abort(table.plan, table.files, has_ended=False)
            with contextlib.suppress(*FAILURES):
                _remove_other_attempts(table.plan, [])


def _exported(spark: SparkSession, tables: list[_Table]) -> Iterator[TableReport]:
    """Export tables with one job. Yields the report of each, and takes it from the list. Raises JobError."""
    _run_tasks(spark, [(table, task) for table in tables for task in table.plan.tasks])
    while tables:
        # After an error in a commit its files may be those of the table: they are not removed.
        yield _committed(tables.pop())


def _committed(table: _Table) -> TableReport:
    if table.error is not None:
        abort(table.plan, table.files, has_ended=not table.is_repeated)
        report = failed(table.plan, table.error)
    else:
        report = committed(table.plan, table.files)
    if table.is_repeated and (report.error is None or table.error is not None):
        with contextlib.suppress(*FAILURES):
            _remove_other_attempts(table.plan, [] if table.error is not None else table.files)
    return report


def _remove_other_attempts(plan: ExportPlan, files: Sequence[DataFile]) -> None:
    """Remove the files of a run that are not committed: those of attempts that were killed, or were too late."""
    if not plan.tasks:
        return
    folder = plan.table.data_folder
    known = {file.path for file in files}
    storage: Any = storage_of(folder)
    with contextlib.suppress(FileNotFoundError):
        for path, _ in list(storage.walk(folder)):
            if path not in known and path.rpartition("/")[2].startswith(plan.tasks[0].prefix):
                storage.delete(below(folder, path))


def _run_tasks(spark: SparkSession, tasks: Sequence[tuple[_Table, ExportTask]]) -> None:
    """Run the tasks as one job. The results are the files and errors of the tables. Raises JobError."""
    if not tasks:
        return
    work = _worker([pickle.dumps(task) for _, task in tasks])
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    found = collect_job(spark, numbers.mapInArrow(work, _RESULT))
    speculates = spark.conf.get("spark.speculation", "false") == "true"
    for row in found:
        table, _ = tasks[row["number"]]
        result = pickle.loads(bytes(row["result"]))
        table.is_repeated |= speculates or row["is_repeated"]
        if isinstance(result, Exception):
            table.error = table.error or result
        else:
            table.files += result


def _worker(pickled: Sequence[bytes]) -> ArrowFunction:
    """Return the function of a Spark task. It takes numbers of tasks, and yields their files or errors."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        is_repeated = context is not None and context.attemptNumber() > 0
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(_run_task(pickle.loads(pickled[number])))
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([number], pa.int64()),
                        pa.array([is_repeated], pa.bool_()),
                        pa.array([result], pa.binary()),
                    ],
                    ["number", "is_repeated", "result"],
                )

    return run


def _run_task(task: ExportTask) -> list[DataFile] | Exception:
    """Return the files. Errors of the data and of stores are returned: another attempt would fail again."""
    try:
        return replace(task, attempt=uuid.uuid4().hex[:8]).run_task()
    except FAILURES as error:
        with contextlib.suppress(Exception):
            if str(pickle.loads(pickle.dumps(error))) == str(error):
                return error
        return ValueError(str(error))
