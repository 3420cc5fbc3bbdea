"""Erase records with `kafkafmt.jobs.erase`, as Spark jobs: one erases segments, and one proves the result.

The result appears at once, after both. A job that Spark repeats writes no segment twice, as for `convert`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from _kafkafmt.records.key_table import KeySet
from kafkafmt.jobs.erase import (
    EraseOptions,
    EraseReport,
    EraseTarget,
    Replacement,
    Runner,
    erase_directory,
)
from kafkafmt.jobs.files import Progress
from kafkafmt.jobs.rewrite import OnCorrupt, RewriteError, SegmentTask
from kafkafmt.log.topics import Topics, left_out_in_words
from kafkafmt.spark.context import spark_session
from kafkafmt.spark.jobs.frames import DAMAGE, report_frame
from kafkafmt.spark.jobs.running import JobError, run
from kafkafmt.storage import is_uri, storage_path
from kafkafmt.storage.locations import without_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)
_Report = TypeVar("_Report")

_TYPES = {"partition": "int", "damage": DAMAGE}

# Shows the progress of work on tasks, if it yields a callback.
ShowProgress = Callable[[str, Sequence[SegmentTask]], AbstractContextManager[Progress | None]]


def erase(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    keys: Iterable[bytes] | None = None,
    where: str | None = None,
    replacement: Replacement | None = None,
    topics: Topics = None,
    on_corrupt: OnCorrupt = "fail",
    force: bool = False,
    from_segment_start: bool = False,
) -> DataFrame:
    """Write the segments under a log directory or partition folder without some records into a new log directory.

    Runs when it is called, on the executors. A second job proves the result before it is published.

    Args:
        source: a folder or a URI, as s3://bucket/logs. Local folders must be at the same paths on all machines.
        keys: records with one of these keys are erased.
        where: `MODULE:CALLABLE`, which the executors import; see `EraseOptions`. Give it or `keys`.
        replacement: the new value of the records; None: the records go.
        topics: a name, a glob as `'page-*'`, or several of them, also as `'a,b'`.

    The other options are those of `kafkafmt erase`.

    Returns a row for each segment. The reference of `kafkafmt.spark` lists the columns.

    Raises ValueError, in one line, for invalid options and folders. Raises JobError if a segment or a proof fails, with
    the first error, or if Spark fails the job. Then nothing is published, and a later call continues.
    """
    options = EraseOptions(
        None if keys is None else KeySet(keys), where, replacement, on_corrupt=on_corrupt, force=force
    )
    if is_uri(str(target)):
        raise RewriteError(
            f"{without_secrets(str(target))}: expected a local folder to write to, found a URI"
        )
    found, erased = storage_path(source), EraseTarget(Path(target).resolve())
    with erased.locked(found):
        tasks = erased.plan(found, topics, from_segment_start=from_segment_start)
        left_out = left_out_in_words(found, "topics='*' searches them, too") if topics is None else None
        if left_out is not None:
            _LOG.warning(left_out)
        result = erase_directory(erased, tasks, options, _runner(spark, _no_progress))
        if not result.is_published:
            raise JobError(f"{target}: not written: {result.errors[0]}")
        erased.remove_state()
    return report_frame(spark, result.reports, EraseReport, _TYPES)


@contextlib.contextmanager
def erase_runner(master: str | None, progress: ShowProgress) -> Iterator[Runner]:
    """Start Spark, and yield what runs the work of `erase_directory` on it, during the block.

    Raises SparkUnavailableError if Spark cannot be started.
    """
    with spark_session("kafkafmt erase", master) as spark:
        yield _runner(spark, progress)


@contextlib.contextmanager
def _no_progress(what: str, tasks: Sequence[SegmentTask]) -> Iterator[None]:
    yield


def _runner(spark: SparkSession, show: ShowProgress) -> Runner:
    def run_tasks(
        tasks: Sequence[SegmentTask],
        work: Callable[..., _Report],
        failed: Callable[[SegmentTask, Exception], _Report],
        what: str,
    ) -> list[_Report]:
        with show(what, tasks) as progress:
            return run(spark, tasks, [task.source_bytes for task in tasks], work, progress=progress)

    return run_tasks
