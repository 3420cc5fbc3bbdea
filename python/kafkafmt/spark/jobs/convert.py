"""The conversion of `kafkafmt.jobs.convert` as a Spark job.

Each attempt at a segment writes files of its own and commits by renaming them, so one of them wins, and nothing is
there twice however often Spark runs a task.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt.converted_chunks import DEFAULT_CHUNK_SIZE
from kafkafmt.jobs.convert import (
    ConvertOptions,
    SegmentReport,
    SegmentTask,
    convert_segment,
    plan,
    split_unchanged,
)
from kafkafmt.jobs.convert.tasks import OnCorrupt
from kafkafmt.spark.context import spark_context
from kafkafmt.spark.jobs.frames import DAMAGE, report_frame
from kafkafmt.spark.jobs.running import JobError, context_of, run
from kafkafmt.spark.values import one_of
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = {
    "topic": "string",
    "partition": "int",
    "path": "string",
    "target": "string",
    "base_offset": "bigint",
    "status": "string",
    "source_bytes": "bigint",
    "target_bytes": "bigint",
    "records_converted": "bigint",
    "seconds": "double",
    "damage": DAMAGE,
    "removed": "array<string>",
    "kept": "array<string>",
    "partial_messages": "bigint",
    "error": "string",
    "error_type": "string",
}


def convert(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to_magic: int | None = None,
    codec: Codec | str | None = None,
    level: int | None = None,
    topics: str | None = None,
    on_corrupt: OnCorrupt = "fail",
    zstd_fallback: Codec | str | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    force: bool = False,
    from_segment_start: bool = False,
) -> DataFrame:
    """Convert the segments under a log directory or partition folder into another format, codec, or both.

    Runs now, on the executors, from file to file in memory bounded by `chunk_size`; both folders must be at the
    same paths on all machines. Done once however often it is started: a second run does what is missing. The
    options are those of `kafkafmt convert`, codecs by name or as `Codec`; `topics` is a pattern, as 'page-*'.

    Returns a row a segment: topic, partition, path, target, base_offset, status (converted, unchanged, gone or failed),
    source_bytes, target_bytes, records_converted, seconds, damage (what was left out, or what it failed at), removed
    and kept (converted segments whose source is gone), partial_messages (wrappers that ended in a part of a message,
    which was left out), error and error_type. Where a segment fails the others go on: look at the status.

    Raises ValueError, in one line, for options and folders that cannot be; DirectoryLockedError, before anything is
    touched, if a broker runs on the target; and JobError where Spark gives up: what was done until then is done.
    """
    options = ConvertOptions(
        to_magic,
        on_corrupt,
        _codec("zstd_fallback", zstd_fallback),
        chunk_size,
        _codec("codec", codec),
        level,
        force=force,
    )
    tasks = plan(Path(source), Path(target), topics, from_segment_start=from_segment_start)
    with lock_log_directory(target):
        reports = _run(context_of(spark), tasks, options)
    return report_frame(spark, reports, _COLUMNS)


def convert_on_spark(
    tasks: Sequence[SegmentTask],
    options: ConvertOptions,
    master: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Generator[SegmentReport, None, None]:
    """Convert segments in a Spark of its own; reports come when all is done, in the order of `tasks`.

    progress: called with the bytes of the segments that were finished since its last call.

    Raises SparkUnavailableError where no job can be started. Where Spark gives it up, all segments that are not
    known to be done have failed.
    """
    if not tasks:
        return
    with spark_context("kafkafmt convert", master) as context:
        try:
            reports = _run(context, tasks, options, progress)
        except JobError as error:
            reports = _given_up(tasks, options, error)
    yield from reports


def _run(
    context: SparkContext,
    tasks: Sequence[SegmentTask],
    options: ConvertOptions,
    progress: Callable[[int], None] | None = None,
) -> list[SegmentReport]:
    work = partial(convert_segment, options=options)
    return run(context, tasks, [task.source_bytes for task in tasks], work, progress=progress)


def _given_up(tasks: Sequence[SegmentTask], options: ConvertOptions, error: JobError) -> list[SegmentReport]:
    done, left = split_unchanged(tasks, options)
    found = {report.path: report for report in done}
    found.update({str(task.segment): SegmentReport.of(task).fail(error) for task in left})
    return [found[str(task.segment)] for task in tasks]


def _codec(name: str, value: Codec | str | None) -> Codec | None:
    if value is None or isinstance(value, Codec):
        return value
    try:
        return Codec[one_of(tuple(codec.name.lower() for codec in Codec))(value).upper()]
    except ValueError as error:
        raise ValueError(f"{name}: {error}, found {value!r}") from None
