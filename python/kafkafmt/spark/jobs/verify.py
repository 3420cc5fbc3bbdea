"""The check of `kafkafmt.jobs.verify` over all segments under some paths, as a Spark job."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kafkafmt.jobs.files import Progress
from kafkafmt.jobs.verify import FileCheck, check_file, check_logs
from kafkafmt.log.segment import OFFSET_INDEX_SUFFIX
from kafkafmt.spark.jobs.files import ListedFile, Paths, list_files
from kafkafmt.spark.jobs.frames import DAMAGE, report_frame
from kafkafmt.spark.jobs.running import context_of, run

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = {
    "path": "string",
    "topic": "string",
    "partition": "int",
    "status": "string",
    "size_in_bytes": "bigint",
    "batches": "bigint",
    "records": "bigint",
    "base_offset": "bigint",
    "last_offset": "bigint",
    "tail_bytes": "bigint",
    "damage": DAMAGE,
    "findings": "array<struct<kind: string, message: string>>",
    "notes": "array<struct<kind: string, message: string>>",
    "error": "string",
}


def verify(
    spark: SparkSession,
    paths: Paths,
    *,
    topics: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Check all segments under some paths, on any file system: lengths, CRCs, offsets, every record.

    Runs now, on the executors. Paths are those of the data source: log directories, partition folders, segments and
    patterns, local ones or URIs. `topics` is a pattern, as 'page-*'; without it Kafka's own topics are checked, too.
    `options` are those of the file system, as `{"region": "eu-west-1"}`.

    Returns a row a file: path, topic, partition, status (ok, damaged, gone if it was deleted meanwhile, or failed if it
    could not be read), size_in_bytes, batches, records, base_offset, last_offset, tail_bytes, damage, findings
    (overlaps and wrong indexes), notes (gaps and empty segments) and error. `damage` is an array of stretches in order,
    so `explode` makes a row a stretch; a cut-off batch at the end of a log is none, but `tail_bytes`.

    Raises OSError and ValueError, in one line, for paths that hold no segments, and JobError where Spark gives up.
    """
    checks = check_files(context_of(spark), list_files(paths, topics, options, includes_internal=True))
    return report_frame(spark, check_logs(checks), _COLUMNS)


def check_files(
    context: SparkContext, files: Sequence[ListedFile], progress: Progress | None = None
) -> list[FileCheck]:
    """The checks of files, in their order, and of the indexes of logs that have some; `check_logs` adds the rest."""
    with_indexes = {
        posixpath.dirname(file.name) for file in files if OFFSET_INDEX_SUFFIX in file.segment.sidecar_sizes
    }

    def check(file: ListedFile) -> FileCheck:
        has_indexes = file.topic_partition is not None and posixpath.dirname(file.name) in with_indexes
        return check_file(file, indexes=file.index_check() if has_indexes else None)

    return run(context, files, [file.segment.size_in_bytes for file in files], check, progress=progress)
