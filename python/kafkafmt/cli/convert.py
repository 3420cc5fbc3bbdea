"""`kafkafmt convert`: a log directory into one of another message format or codec."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt.cli.engines import engine_options, ensure_engine
from kafkafmt.cli.log_start import from_segment_start_option
from kafkafmt.cli.output import (
    damage_in_words,
    in_words,
    print_json,
    print_table,
    progress_bar,
    size_in_words,
    tell,
)
from kafkafmt.cli.values import Size
from kafkafmt.converted_chunks import DEFAULT_CHUNK_SIZE
from kafkafmt.errors import CorruptRecordError, InvalidRecordError, UnsupportedCompressionTypeError
from kafkafmt.jobs.convert import (
    STATUSES,
    ConvertError,
    ConvertMemory,
    ConvertMemoryError,
    ConvertOptions,
    SegmentReport,
    SegmentTask,
    convert_in_processes,
    plan,
    split_unchanged,
)
from kafkafmt.log.topics import left_out_in_words
from kafkafmt.types import Codec

_MAX_CHUNK_BYTES = 1024**3
_MAX_MEMORY_BYTES = 1024**4
_COLUMNS = ("topic", "partitions#", "segments#", "records converted#", "from#", "to#", "result")


@click.command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option(
    "--to-magic",
    type=click.Choice(["0", "1", "2"]),
    help="The message format to convert to.  [default: each batch keeps its own]",
)
@click.option(
    "--codec",
    type=click.Choice([codec.name.lower() for codec in Codec]),
    help="The codec that all batches get.  [default: each batch keeps its own]",
)
@click.option("--level", type=int, metavar="N", help="The codec's: gzip 1 to 9, lz4 1 to 17, zstd -7 to 22.")
@click.option(
    "--topics",
    metavar="PATTERN",
    help="Only topics whose name matches, as 'page-*'.  [default: all but Kafka's own]",
)
@click.option(
    "--on-corrupt",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What becomes of a segment with a damaged batch: it fails, or the batch is left out.",
)
@click.option(
    "--zstd-fallback",
    type=click.Choice(["gzip", "snappy", "lz4", "none"]),
    help="The codec that zstd batches get in v0 and v1, which have no zstd; none: uncompressed.",
)
@click.option(
    "--chunk-size",
    type=Size(_MAX_CHUNK_BYTES),
    default=DEFAULT_CHUNK_SIZE,
    metavar="SIZE",
    help="Bytes read and converted at a time: 524288, 512K, 1M.  [default: 512K]",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Segments at once.  [default: one a core, or fewer as --memory says]",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=Size(_MAX_MEMORY_BYTES),
    metavar="SIZE",
    help="What all jobs together may take beyond what they start with: 256M, 4G.  [default: no bound]",
)
@click.option(
    "--force", is_flag=True, help="Replace segments that were converted with another format, codec or level."
)
@from_segment_start_option
@engine_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: an object a segment, and a summary.")
def convert(
    source: Path,
    target: Path,
    to_magic: str | None,
    codec: str | None,
    level: int | None,
    topics: str | None,
    on_corrupt: str,
    zstd_fallback: str | None,
    chunk_size: int,
    jobs: int | None,
    memory_bytes: int | None,
    force: bool,
    from_segment_start: bool,
    engine: str,
    master: str | None,
    as_json: bool,
) -> int:
    """Convert the segments under SRC, a log directory or a partition folder, into the log directory DST.

    \b
    kafkafmt convert /var/lib/kafka /backup/v1 --to-magic 1 --zstd-fallback lz4
    kafkafmt convert /backup/v1 /backup/v2 --to-magic 2 --topics 'page-*'
    kafkafmt convert /var/lib/kafka /archive --codec zstd --level 19
    kafkafmt convert /var/lib/kafka /backup/v1 --to-magic 1 --engine spark
    kafkafmt convert /nfs/kafka /nfs/v1 --to-magic 1 --engine spark --master spark://host:7077

    Segments keep their names and get new indexes; each appears in DST once it is whole. Run it again after a kill, a
    failure, or when SRC has grown, and only what is missing or has changed is converted: a file
    <base offset>.converted beside each segment says what it was made from. Segments in DST that something else
    wrote, or that were made from another SRC, are never replaced: the segment that would do it fails, and the error
    says which files to remove.

    Segments in DST whose source compaction merged or retention deleted are removed once the segment that has their
    offsets now is converted; each is told. A source that has no segments at all removes nothing, and so do folders of
    partitions that are gone. Segments in DST that begin behind the end of SRC are kept and told, with exit status 1.

    Records below SRC's log start offset (log-start-offset-checkpoint) are deleted: the checkpoint of DST gets that
    offset, so that brokers and kafkafmt do not hand them out. --from-segment-start converts and shows all.

    A damaged batch fails its segment, and the others go on; with --on-corrupt skip it is left out and reported. A
    cut-off batch at the end of the last segment of a log is left out in any case. So is a part of a message at the
    end of a compressed one of v0 or v1 that is converted: a line tells of it, and the exit status stays.

    Below v2 there are no headers, producer ids or transactions: headers and transaction markers are dropped, and
    old consumers see the records of aborted transactions, as they do with a broker's own down-conversion. v0 has
    no timestamps. Producer snapshots, leader epochs and the like are not copied.

    With --codec all batches get that codec that have another one; those that have it already are copied as they
    are, whatever the level. Of a v2 batch all header fields but size, codec and CRC stay as they are; control
    batches are never compressed. Below v2 messages that stand alone are gathered into compressed ones of 16 KiB.

    With --engine spark each segment is a task; SRC and DST must be at the same paths on all machines, and kafkafmt
    installed there. Needs Java, and pip install 'kafkafmt[spark]'.

    Exit status: 0; 1 where a segment failed; 2 for wrong arguments. Batches left out as asked are no failure, nor are
    segments that retention or compaction deletes meanwhile.
    """
    ensure_engine(engine, master)
    if engine == "spark" and jobs is not None:
        raise click.UsageError(
            "--jobs is for --engine local: with Spark, --master says how many, as in local[4]"
        )
    if engine == "spark" and memory_bytes is not None:
        raise click.UsageError("--memory is for --engine local: executors have spark.executor.memory")
    options = replace(_options(to_magic, codec, level, on_corrupt, zstd_fallback, chunk_size), force=force)
    if memory_bytes is not None:
        options = _with_memory(options, memory_bytes, jobs)
        jobs = options.memory.jobs if options.memory is not None else None
    try:
        tasks = plan(source, target, topics, from_segment_start=from_segment_start)
    except ConvertError as error:
        raise click.ClickException(str(error)) from None
    told = left_out_in_words(source, "--topics '*' converts them, too") if topics is None else None
    if told is not None:
        tell(told)
    with lock_log_directory(target):
        try:
            unchanged, tasks = split_unchanged(tasks, options)
        except ConvertError as error:
            raise click.ClickException(str(error)) from None
        with progress_bar() as bar:
            task = bar.add_task("converting", total=sum(task.source_bytes for task in tasks))

            def progress(read_bytes: int) -> None:
                bar.advance(task, read_bytes)

            if engine == "spark":
                running = _on_spark(tasks, options, master, progress)
            else:
                running = convert_in_processes(tasks, options, jobs or _cores(), progress)
            with closing(running):
                reports = list(_told(itertools.chain(unchanged, running), as_json=as_json))
    if as_json:
        print_json(_summary(reports))
    else:
        _print_reports(reports, options)
    return 1 if any(report.status == "failed" or report.kept for report in reports) else 0


def _options(
    to_magic: str | None,
    codec: str | None,
    level: int | None,
    on_corrupt: str,
    zstd_fallback: str | None,
    chunk_size: int,
) -> ConvertOptions:
    if to_magic is None and codec is None:
        raise click.UsageError("nothing to convert to: give --to-magic, --codec, or both")
    try:
        return ConvertOptions(
            None if to_magic is None else int(to_magic),
            "skip" if on_corrupt == "skip" else "fail",
            None if zstd_fallback is None else Codec[zstd_fallback.upper()],
            chunk_size,
            None if codec is None else Codec[codec.upper()],
            level,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _with_memory(options: ConvertOptions, memory_bytes: int, jobs: int | None) -> ConvertOptions:
    """The options within what all jobs may take, of as many as are best where none are given."""
    about = options.to_magic, options.chunk_size
    try:
        if jobs is None:
            memory = ConvertMemory.divided(memory_bytes, _cores(), *about)
        else:
            memory = ConvertMemory(memory_bytes, jobs, *about)
    except ConvertMemoryError as error:
        raise click.UsageError(f"--{error}") from None
    return replace(options, memory=memory)


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _on_spark(
    tasks: Sequence[SegmentTask], options: ConvertOptions, master: str | None, progress: Callable[[int], None]
) -> Generator[SegmentReport, None, None]:
    from kafkafmt.spark import SparkUnavailableError, convert_on_spark

    try:
        yield from convert_on_spark(tasks, options, master, progress)
    except SparkUnavailableError as error:
        raise click.ClickException(str(error)) from None


def _told(reports: Iterable[SegmentReport], *, as_json: bool) -> Iterator[SegmentReport]:
    """The reports, each told as it comes."""
    for report in reports:
        if as_json:
            print_json(asdict(report))
        elif report.status in ("failed", "gone"):
            tell(f"{report.status}: {report.error}")
        else:
            for stretch in report.damage:
                tell(f"left out: {damage_in_words(stretch)}")
            if report.partial_messages:
                wrappers = in_words(report.partial_messages, "wrapper")
                tell(f"left out: {report.path}: a part of a message at the end of {wrappers}")
            for path in report.removed:
                tell(f"removed: {path}: its source is gone")
            for path in report.kept:
                tell(f"kept: {path}: its source is gone, and the log in SRC ends before it")
        yield report


def _summary(reports: Sequence[SegmentReport]) -> dict[str, Any]:
    statuses = Counter(report.status for report in reports)
    made = [report for report in reports if report.status not in ("failed", "gone")]
    return {
        "summary": {
            "segments": len(reports),
            **{status: statuses[status] for status in STATUSES},
            "removed": sum(len(report.removed) for report in reports),
            "kept": sum(len(report.kept) for report in reports),
            "source_bytes": sum(report.source_bytes for report in made),
            "target_bytes": sum(report.target_bytes for report in made),
            "records_converted": sum(report.records_converted for report in made),
            "stretches_left_out": sum(len(report.damage) for report in made),
            "partial_messages": sum(report.partial_messages for report in made),
        }
    }


def _print_reports(reports: Sequence[SegmentReport], options: ConvertOptions) -> None:
    by_topic: dict[str, list[SegmentReport]] = {}
    for report in sorted(reports, key=lambda report: report.path):
        by_topic.setdefault(report.topic or Path(report.path).parent.name, []).append(report)
    print_table(_COLUMNS, [_cells(topic, found) for topic, found in by_topic.items()])
    click.echo(f"\n{in_words(len(reports), 'segment')}: {_statuses_in_words(reports)}")
    errors = {report.error_type for report in reports if report.status == "failed"}
    if UnsupportedCompressionTypeError.__name__ in errors:
        if options.codec == Codec.ZSTD:
            tell("v0 and v1 have no zstd: --to-magic 2 converts their batches as well")
        elif options.codec is None and options.zstd_fallback is None:
            tell(
                f"v{options.to_magic} has no zstd: --zstd-fallback lz4 (or another) converts those batches as well"
            )
    if errors & {CorruptRecordError.__name__, InvalidRecordError.__name__} and options.on_corrupt == "fail":
        tell("--on-corrupt skip converts damaged segments without their damaged batches")


def _cells(topic: str, reports: Sequence[SegmentReport]) -> tuple[str, ...]:
    return (
        topic,
        f"{len({report.partition for report in reports}):,}",
        f"{len(reports):,}",
        f"{sum(report.records_converted for report in reports):,}",
        size_in_words(sum(report.source_bytes for report in reports)),
        size_in_words(sum(report.target_bytes for report in reports)),
        _statuses_in_words(reports),
    )


def _statuses_in_words(reports: Sequence[SegmentReport]) -> str:
    counts = Counter(report.status for report in reports)
    words = [f"{counts[status]:,} {status}" for status in STATUSES if counts[status]]
    left_out = sum(len(report.damage) for report in reports if report.status != "failed")
    return ", ".join([*words, f"{in_words(left_out, 'damaged stretch')} left out"] if left_out else words)
