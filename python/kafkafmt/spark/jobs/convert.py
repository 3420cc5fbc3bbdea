"""Convert segments with `kafkafmt.jobs.convert`, as a Spark job.

Each attempt at a segment writes its own files, and commits by renaming them. So one attempt wins, and no segment exists
twice however often Spark runs a task.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kafkafmt.convert.chunks import DEFAULT_CHUNK_SIZE
from kafkafmt.jobs.convert import (
    ConvertOptions,
    ConvertReport,
    convert_run,
    convert_segment,
    plan,
    split_unchanged,
)
from kafkafmt.jobs.rewrite import OnCorrupt, SegmentTask
from kafkafmt.log.topics import Topics, left_out_in_words
from kafkafmt.spark.context import spark_session
from kafkafmt.spark.jobs.frames import DAMAGE, report_frame
from kafkafmt.spark.jobs.running import JobError, run
from kafkafmt.spark.values import one_of
from kafkafmt.storage import storage_path
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)

_FIRST = ("topic", "partition")
_TYPES = {"partition": "int", "status": "string", "damage": DAMAGE}


def convert(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to_magic: int | None = None,
    codec: Codec | str | None = None,
    level: int | None = None,
    topics: Topics = None,
    on_corrupt: OnCorrupt = "fail",
    zstd_fallback: Codec | str | None = None,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    force: bool = False,
    from_segment_start: bool = False,
) -> DataFrame:
    """Convert the segments under a log directory or partition folder to another message format, codec, or both.

    Runs when it is called, on the executors, from file to file, in memory bounded by `chunk_size` (bytes). A second run
    converts only the segments that are missing. If a segment fails, the others are still converted: see its status.

    Args:
        source, target: folders or URIs, as s3://bucket/logs. Local folders must be at the same paths on all machines.
        topics: a name, a glob as `'page-*'`, or several of them, also as `'a,b'`.

    The other options are those of `kafkafmt convert`. Codecs are names or `Codec`.

    Returns a row for each segment: topic, partition, path, target, base_offset, status (converted, unchanged, gone or
    failed), source_bytes, target_bytes, seconds, damage, removed, kept, error, error_type, records_converted and
    partial_messages. `damage` was left out, or made the segment fail. `removed` and `kept` are converted segments
    without a source. `partial_messages` counts wrappers that ended in a partial message, which was left out.

    Raises ValueError, in one line, for invalid options and folders; DirectoryLockedError, before anything is changed,
    if a broker runs on the target; JobError if Spark fails the job, which keeps the segments converted until then.
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
    found = storage_path(source)
    into = storage_path(target)
    tasks = plan(found, into, topics, from_segment_start=from_segment_start)
    left_out = left_out_in_words(found, "topics='*' converts them, too") if topics is None else None
    if left_out is not None:
        _LOG.warning(left_out)
    with convert_run(found, into, tasks, options) as writing:
        writing.begin(tasks)
        reports = _run(spark, tasks, options)
        writing.end(reports)
    frame = report_frame(spark, reports, ConvertReport, _TYPES)
    return frame.select(*_FIRST, *(name for name in frame.columns if name not in _FIRST))


def convert_on_spark(
    tasks: Sequence[SegmentTask],
    options: ConvertOptions,
    master: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Generator[ConvertReport, None, None]:
    """Start Spark, convert segments, and yield their reports at the end, in the order of `tasks`.

    progress: called with the bytes of the segments that were finished since its last call.

    If Spark fails the job, all segments that are not known to be converted are reported as failed. Raises
    SparkUnavailableError if Spark cannot be started.
    """
    if not tasks:
        return
    with spark_session("kafkafmt convert", master) as spark:
        try:
            reports = _run(spark, tasks, options, progress)
        except JobError as error:
            reports = _given_up(tasks, options, error)
    yield from reports


def _run(
    spark: SparkSession,
    tasks: Sequence[SegmentTask],
    options: ConvertOptions,
    progress: Callable[[int], None] | None = None,
) -> list[ConvertReport]:
    work = partial(convert_segment, options=options)
    return run(spark, tasks, [task.source_bytes for task in tasks], work, progress=progress)


def _given_up(tasks: Sequence[SegmentTask], options: ConvertOptions, error: JobError) -> list[ConvertReport]:
    done, left = split_unchanged(tasks, options)
    found = {report.path: report for report in done}
    found.update({str(task.segment): ConvertReport.of(task).fail(error) for task in left})
    return [found[str(task.segment)] for task in tasks]


def _codec(name: str, value: Codec | str | None) -> Codec | None:
    if value is None or isinstance(value, Codec):
        return value
    try:
        return Codec[one_of(tuple(codec.name.lower() for codec in Codec))(value).upper()]
    except ValueError as error:
        raise ValueError(f"{name}: {error}, found {value!r}") from None
