"""`kafkafmt inspect --summary`: show a line for each topic, and the features that its clients must support."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from kafkafmt.cli.engines import spark_job
from kafkafmt.cli.output import (
    echo,
    in_words,
    notify,
    print_json,
    print_table,
    progress_bar,
    size_in_words,
    time_in_words,
)
from kafkafmt.cli.sources import find_sources
from kafkafmt.jobs.summary import TopicReport, TopicSummary, merge_summaries, summarize_file
from kafkafmt.log.overlaps import LowestOffsets

_COLUMNS = (
    *("topic", "partitions#", "segments#", "batches#", "records#", "size#", "formats", "codecs"),
    *("producers#", "first timestamp", "last timestamp"),
)


def run_summary(
    paths: Sequence[str],
    *,
    topics: tuple[str, ...] | None,
    deep: bool,
    from_segment_start: bool,
    engine: str,
    master: str | None,
    as_json: bool,
) -> int:
    """Summarize files, print the results, and return the exit status."""
    if engine == "spark":
        reports = _on_spark(paths, topics, master, deep=deep, from_segment_start=from_segment_start)
    else:
        reports = merge_summaries(_here(paths, topics, deep=deep, from_segment_start=from_segment_start))
    if as_json:
        for report in reports:
            print_json(asdict(report))
    else:
        print_table(_COLUMNS, map(_cells, reports))
        echo()
        for report in reports:
            echo(f"{_name(report)}: clients need {_needs_in_words(report)}")
    for report in reports:
        if report.damaged_stretches:
            damage = in_words(report.damaged_stretches, "damaged range")
            notify(
                f"{_name(report)}: {damage}, {in_words(report.damaged_bytes, 'byte')}: kafkafmt verify tells where"
            )
        if report.overlapping_segments:
            overlapping = in_words(report.overlapping_segments, "segment")
            notify(
                f"{_name(report)}: {overlapping} with offsets of others, counted once: kafkafmt verify tells which"
            )
        if report.gone_segments:
            notify(f"gone: {_name(report)}: {in_words(report.gone_segments, 'segment')} deleted since listed")
        for error in report.errors:
            notify(f"failed: {error}")
    return 1 if any(report.damaged_stretches or report.failed_segments for report in reports) else 0


def _here(
    paths: Sequence[str], topics: tuple[str, ...] | None, *, deep: bool, from_segment_start: bool
) -> Iterator[TopicSummary]:
    sources = find_sources(paths, topics)
    lowest = LowestOffsets(from_segment_start=from_segment_start)
    with progress_bar() as bar:
        task = bar.add_task("reading", total=sum(source.size_in_bytes for source in sources))
        for source in sources:
            found = summarize_file(
                source,
                deep=deep,
                progress=lambda read_bytes: bar.advance(task, read_bytes),
                from_offset=lowest.of(source.path),
            )
            if source.is_overlapped(lowest):
                found.counts["overlapping_segments"] += 1
            for _, last_offset in found.offsets.values():
                lowest.add(source.path, source.segment, last_offset + 1)
            yield found


def _on_spark(
    paths: Sequence[str],
    topics: tuple[str, ...] | None,
    master: str | None,
    *,
    deep: bool,
    from_segment_start: bool,
) -> list[TopicReport]:
    from kafkafmt.spark.jobs.summary import summarize_files

    with spark_job(paths, topics, master, "summary", includes_internal=False) as job:
        return summarize_files(
            job.spark,
            job.files,
            deep=deep,
            from_segment_start=from_segment_start,
            progress=job.progress,
        )


def _name(report: TopicReport) -> str:
    return report.topic or "-"


def _cells(report: TopicReport) -> tuple[str, ...]:
    return (
        _name(report),
        f"{report.partitions:,}",
        f"{report.segments:,}",
        f"{report.batches:,}",
        f"{report.records:,}{'+' if report.uncounted_batches else ''}",
        size_in_words(report.size_in_bytes),
        ", ".join(f"v{row['magic']} {row['batches']:,}" for row in report.formats) or "-",
        ", ".join(map(_codec_in_words, report.codecs)) or "-",
        f"{report.producers:,}",
        *(
            time_in_words(-1 if time is None else time)
            for time in (report.first_timestamp, report.last_timestamp)
        ),
    )


def _codec_in_words(row: dict[str, Any]) -> str:
    """Return a codec with its size, and its ratio of compressed to uncompressed bytes if batches were decompressed."""
    words = f"{row['codec']} {size_in_words(row['size_in_bytes'])}"
    if not row["uncompressed_bytes"] or row["codec"] == "none":
        return words
    return f"{words} ({row['size_in_bytes'] / row['uncompressed_bytes']:.2f})"


def _needs_in_words(report: TopicReport) -> str:
    needs = [
        f"{need['feature']} (Kafka {need['since']}): {in_words(need['batches'], 'batch')}"
        for need in report.needs
    ]
    if report.records_with_headers:
        needs.append(f"headers (Kafka 0.11.0): {in_words(report.records_with_headers, 'record')}")
    if report.failed_segments:
        unread = f"{in_words(report.failed_segments, 'segment')} could not be read"
        return "; ".join([*needs, f"perhaps more: {unread}"]) if needs else f"unknown features: {unread}"
    return "; ".join(needs) or "nothing newer than message format v0"
