"""Summarize all segments under some paths with `kafkafmt.jobs.summary`, as a Spark job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kafkafmt.jobs.files import Progress
from kafkafmt.jobs.summary import TopicReport, TopicSummary, merge_summaries, summarize_file
from kafkafmt.log.segment import Segment
from kafkafmt.log.topics import Topics
from kafkafmt.spark.jobs.files import BoundedSegment, Paths, list_files, with_first_offsets
from kafkafmt.spark.jobs.frames import report_frame
from kafkafmt.spark.jobs.running import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES = {
    "formats": "array<struct<magic: int, batches: bigint, size_in_bytes: bigint>>",
    "codecs": (
        "array<struct<codec: string, batches: bigint, size_in_bytes: bigint, uncompressed_bytes: bigint>>"
    ),
    "timestamp_types": "array<struct<timestamp_type: string, batches: bigint, size_in_bytes: bigint>>",
    "offsets": "array<struct<partition: int, first_offset: bigint, last_offset: bigint>>",
    "needs": "array<struct<feature: string, since: string, batches: bigint>>",
}


def summarize(
    spark: SparkSession,
    paths: Paths,
    *,
    deep: bool = False,
    topics: Topics = None,
    options: Mapping[str, str] | None = None,
    from_segment_start: bool = False,
) -> DataFrame:
    """Summarize each topic under some paths, on any file system.

    Runs when it is called, on the executors. Reads the headers of batches and checks CRCs. In local folders no offset
    is counted twice.

    Args:
        paths, options: as for `verify`.
        deep: also decompress all batches, which adds compression ratios, the number of records in wrappers of v0 and
            v1, and the number of records with headers.
        topics: a name, a glob as `'page-*'`, or several of them, also as `'a,b'`. By default all topics but
            Kafka's own.
        from_segment_start: also count records below the log start offset.

    Returns a row for each topic. The reference of `kafkafmt.spark` lists the columns.

    Raises OSError and ValueError, in one line, if paths contain no segments; JobError if Spark fails the job.
    """
    segments = list_files(paths, topics, options)
    found = summarize_files(spark, segments, deep=deep, from_segment_start=from_segment_start)
    return report_frame(spark, found, TopicReport, _TYPES)


def summarize_files(
    spark: SparkSession,
    segments: Sequence[Segment],
    *,
    deep: bool,
    from_segment_start: bool,
    progress: Progress | None = None,
) -> list[TopicReport]:
    """Return a report for each topic, ordered by name. Other arguments are those of `summarize`. Raises JobError."""

    def summarize_one(placed: BoundedSegment) -> tuple[str | None, TopicSummary]:
        summary = summarize_file(placed.segment, deep=deep, from_offset=placed.from_offset)
        summary.counts["overlapping_segments"] += placed.is_overlapped
        return summary.topic, summary

    placed = with_first_offsets(segments, from_segment_start=from_segment_start)
    sizes = [segment.size_in_bytes for segment in segments]
    pairs = run(spark, placed, sizes, summarize_one, merge=TopicSummary.merge, progress=progress)
    return merge_summaries(summary for _, summary in pairs)
