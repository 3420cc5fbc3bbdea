"""The summary of `kafkafmt.jobs.summary` over all segments under some paths, as a Spark job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kafkafmt.jobs.files import Progress
from kafkafmt.jobs.summary import TopicReport, TopicSummary, merge_summaries, summarize_file
from kafkafmt.spark.jobs.files import ListedFile, Paths, list_files, with_first_offsets
from kafkafmt.spark.jobs.frames import report_frame
from kafkafmt.spark.jobs.running import context_of, run

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = {
    "topic": "string",
    "partitions": "bigint",
    "segments": "bigint",
    "failed_segments": "bigint",
    "size_in_bytes": "bigint",
    "batches": "bigint",
    "records": "bigint",
    "uncounted_batches": "bigint",
    "formats": "array<struct<magic: int, batches: bigint, size_in_bytes: bigint>>",
    "codecs": (
        "array<struct<codec: string, batches: bigint, size_in_bytes: bigint, uncompressed_bytes: bigint>>"
    ),
    "timestamp_types": "array<struct<timestamp_type: string, batches: bigint, size_in_bytes: bigint>>",
    "first_timestamp": "bigint",
    "last_timestamp": "bigint",
    "offsets": "array<struct<partition: int, first_offset: bigint, last_offset: bigint>>",
    "producers": "bigint",
    "idempotent_batches": "bigint",
    "transactional_batches": "bigint",
    "control_batches": "bigint",
    "records_with_headers": "bigint",
    "needs": "array<struct<feature: string, since: string, batches: bigint>>",
    "damaged_stretches": "bigint",
    "damaged_bytes": "bigint",
    "tail_bytes": "bigint",
    "overlapping_segments": "bigint",
    "gone_segments": "bigint",
    "errors": "array<string>",
}


def summarize(
    spark: SparkSession,
    paths: Paths,
    *,
    deep: bool = False,
    topics: str | None = None,
    options: Mapping[str, str] | None = None,
    from_segment_start: bool = False,
) -> DataFrame:
    """What the segments under some paths hold, topic by topic, on any file system.

    Runs now, on the executors, which merge what they find. Headers tell it, their CRCs checked; with `deep`
    everything is decompressed, too, which tells what compression saves, how many records wrappers of v0 and v1 hold,
    and how many records have headers. Paths, `topics` and `options` are those of `verify`; without `topics` Kafka's own
    are left out. Records below the log start offset are not counted, unless `from_segment_start`, and in local folders
    no offset is counted twice.

    Returns a row a topic, whose columns are the fields of `kafkafmt.jobs.summary.TopicReport`: `needs` tells what
    old clients may not know, and how many batches have it.

    Raises OSError and ValueError, in one line, for paths that hold no segments, and JobError where Spark gives up.
    """
    files = list_files(paths, topics, options)
    found = summarize_files(context_of(spark), files, deep=deep, from_segment_start=from_segment_start)
    return report_frame(spark, found, _COLUMNS)


def summarize_files(
    context: SparkContext,
    files: Sequence[ListedFile],
    *,
    deep: bool,
    from_segment_start: bool,
    progress: Progress | None = None,
) -> list[TopicReport]:
    """A report a topic, by name."""

    def summarize_one(file: ListedFile) -> tuple[str | None, TopicSummary]:
        summary = summarize_file(file, deep=deep, from_offset=file.from_offset)
        summary.counts["overlapping_segments"] += file.is_overlapped
        return summary.topic, summary

    files = with_first_offsets(files, from_segment_start=from_segment_start)
    sizes = [file.segment.size_in_bytes for file in files]
    pairs = run(context, files, sizes, summarize_one, merge=TopicSummary.merge, progress=progress)
    return merge_summaries(summary for _, summary in pairs)
