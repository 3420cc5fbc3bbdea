"""Check all segments under some paths with `kafkafmt.jobs.verify`, as a Spark job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kafkafmt.jobs.files import Progress
from kafkafmt.jobs.verify import FileCheck, check_file, check_logs
from kafkafmt.log.segment import OFFSET_INDEX_SUFFIX, Segment
from kafkafmt.log.topics import Topics
from kafkafmt.spark.jobs.files import Paths, list_files
from kafkafmt.spark.jobs.frames import DAMAGE, report_frame
from kafkafmt.spark.jobs.running import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES = {
    "partition": "int",
    "status": "string",
    "damage": DAMAGE,
    "findings": "array<struct<kind: string, message: string>>",
    "notes": "array<struct<kind: string, message: string>>",
}


def verify(
    spark: SparkSession,
    paths: Paths,
    *,
    topics: Topics = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Check lengths, CRCs, offsets and all records of all segments under some paths, on any file system.

    Runs when it is called, on the executors.

    Args:
        paths: as for the data source: log directories, partition folders, segments or patterns, local or URIs.
        topics: a name, a glob as `'page-*'`, or several of them, also as `'a,b'`. By default all topics are checked,
            also Kafka's own.
        options: the options of the file system, as `{"region": "eu-west-1"}`.

    Returns a row for each file: path, topic, partition, status, size_in_bytes, batches, records, base_offset,
    last_offset, tail_bytes, damage, findings (overlaps and wrong indexes), notes (gaps and empty segments) and error.

    The status is ok, damaged, gone (deleted since it was listed), or failed (could not be read). `damage` is an array
    of damaged ranges in order, so `explode` makes a row of each. A partial batch at the end of a log is no damage:
    `tail_bytes` is its size.

    Raises OSError and ValueError, in one line, if paths contain no segments; JobError if Spark fails the job.
    """
    checks = check_files(spark, list_files(paths, topics, options, includes_internal=True))
    return report_frame(spark, check_logs(checks), FileCheck, _TYPES)


def check_files(
    spark: SparkSession, segments: Sequence[Segment], progress: Progress | None = None
) -> list[FileCheck]:
    """Check segments, and their indexes if the log has indexes. Returns the checks in the order of `segments`.

    `check_logs` adds the findings that need several segments. Raises JobError.
    """
    with_indexes = {
        str(one.path.parent) for one in segments if OFFSET_INDEX_SUFFIX in (one.sidecar_sizes or ())
    }

    def check(segment: Segment) -> FileCheck:
        has_indexes = segment.topic_partition is not None and str(segment.path.parent) in with_indexes
        # The indexes are read now, and so is the segment: both may have grown since the listing.
        return check_file(segment.unlisted(), indexed=segment if has_indexes else None)

    return run(spark, segments, [one.size_in_bytes for one in segments], check, progress=progress)
