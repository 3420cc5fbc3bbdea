"""`kafkafmt convert`: convert a log directory to another message format or codec."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from kafkafmt._util.cores import cores
from kafkafmt._util.sizes import size_text
from kafkafmt.cli.engines import engine_options, ensure_engine
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.options import (
    codec_option,
    from_segment_start_option,
    json_option,
    key_ring_option,
    memory_errors,
    on_corrupt_option,
    zstd_fallback_option,
)
from kafkafmt.cli.output import (
    damage_in_words,
    echo,
    in_words,
    notify,
    print_json,
    print_table,
    progress_bar,
    size_in_words,
)
from kafkafmt.cli.record_options import topics_option
from kafkafmt.cli.values import Count, Folder, Size
from kafkafmt.convert.chunks import DEFAULT_CHUNK_SIZE
from kafkafmt.errors import CorruptRecordError, InvalidRecordError, UnsupportedCompressionTypeError
from kafkafmt.jobs.convert import (
    STATUSES,
    ConvertMemory,
    ConvertOptions,
    ConvertReport,
    convert_in_processes,
    convert_run,
    plan,
    split_unchanged,
)
from kafkafmt.jobs.rewrite import SegmentTask
from kafkafmt.log.topics import left_out_in_words
from kafkafmt.storage import RemotePath, StoragePath, limit_read_ahead
from kafkafmt.types import Codec

_MAX_CHUNK_BYTES = 1024**3
_MAX_MEMORY_BYTES = 1024**4
_COLUMNS = ("topic", "partitions#", "segments#", "records converted#", "from#", "to#", "result")


@click.command(
    cls=HelpCommand,
    common="--to-magic --codec --level --zstd-fallback --topics --on-corrupt --memory --engine --json",
    page="convert.md",
)
@click.argument("source", metavar="SRC", type=Folder())
@click.argument("target", metavar="DST", type=Folder())
@click.option(
    "--to-magic",
    type=click.Choice(["0", "1", "2"]),
    help="The message format to convert to; 0 and 1 only down.  [default: each batch keeps its own]",
)
@codec_option("The codec of all batches.  [default: each batch keeps its own]")
@click.option(
    "--level", type=int, metavar="N", help="Compression level: gzip 1 to 9, lz4 1 to 17, zstd -7 to 22."
)
@topics_option()
@on_corrupt_option("A damaged batch fails its segment (fail), or is left out (skip).")
@zstd_fallback_option("The codec of zstd batches in v0 and v1, which have no zstd; none: uncompressed.")
@click.option(
    "--chunk-size",
    type=Size(most=_MAX_CHUNK_BYTES),
    default=size_text(DEFAULT_CHUNK_SIZE),
    help="The bytes that are read and converted at a time: 524288, 512K, 1M.",
)
@click.option(
    "--jobs",
    type=Count(),
    help="Segments converted at the same time.  [default: one for each core, or fewer with --memory]",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=Size(most=_MAX_MEMORY_BYTES),
    help="The memory limit of all jobs together, beyond that of their start: 256M, 4G.  [default: none]",
)
@click.option(
    "--force", is_flag=True, help="Replace segments that were converted with another format, codec or level."
)
@from_segment_start_option()
@engine_options()
@json_option("Print JSON lines: one object for each segment, and a summary.")
@key_ring_option()
def convert(
    source: StoragePath,
    target: StoragePath,
    to_magic: str | None,
    topics: tuple[str, ...] | None,
    jobs: int | None,
    memory_bytes: int | None,
    from_segment_start: bool,
    engine: str,
    master: str | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Convert the segments under SRC into the log directory DST.

    SRC is a log directory or a partition folder. SRC and DST may be URIs, as s3://bucket/logs.

    \b
    kafkafmt convert /var/lib/kafka /backup/v1 --to-magic 1 --zstd-fallback lz4
    kafkafmt convert /backup/v1 /backup/v2 --to-magic 2 --topics 'page-*'
    kafkafmt convert /var/lib/kafka /archive --codec zstd --level 19
    kafkafmt convert /var/lib/kafka s3://bucket/archive --codec zstd
    kafkafmt convert /var/lib/kafka /backup/v1 --codec lz4 --engine spark

    Segments keep their names and get new indexes. Each appears in DST once it is complete. A second run, after a kill,
    a failure or new records in SRC, converts only missing and changed segments: a file <base offset>.converted
    beside each segment describes its source. A segment in DST that was written by another program, or from another SRC,
    is never replaced. Its conversion fails, and the error names the files to remove.

    If compaction merged or retention deleted the source of a segment in DST, that segment is removed and reported. This
    happens after the segment that now contains its offsets is converted. A SRC without segments, or without a
    partition's folder, removes nothing. Segments in DST that begin after the end of SRC are kept and reported,
    with exit status 1.

    In a store, segments are whole objects, and a .log is written after its indexes. kafkafmt-convert.json lists all
    segments. It is written last, and only if no segment failed. A store has no locks: run one command at a time.

    Records below SRC's log start offset (log-start-offset-checkpoint) are deleted. DST gets the same checkpoint, so
    that brokers and kafkafmt do not return them. --from-segment-start converts and keeps all records.

    A damaged batch fails its segment; the others are still converted. With --on-corrupt skip it is left out and
    reported. A partial batch at the end of a log is always left out. So is a partial message at the end of a
    compressed v0 or v1 message that is converted: it is reported, and does not change the exit status.

    Formats below v2 have no headers, producer ids or transactions. Headers and transaction markers are dropped, and old
    consumers see the records of aborted transactions, as with a broker's down-conversion. v0 has no timestamps.
    Producer snapshots, leader epochs and similar files are not copied.

    --codec recompresses all batches of another codec. Batches of the same codec are copied unchanged, whatever their
    level. A recompressed v2 batch keeps its header fields except size, codec and CRC. Control batches are never
    compressed. Below v2, uncompressed messages are combined into compressed ones of 16 KiB.

    With --engine spark each segment is a task. Folders must be at the same paths on all machines, with kafkafmt
    installed. This needs Java, and pip install 'kafkafmt[spark]'.

    Exit status: 0; 1 if a segment failed; 2 for wrong arguments. Batches left out by --on-corrupt skip are no failure,
    nor are segments that retention or compaction deletes during the run.
    """
    ensure_engine(engine, master)
    if engine == "spark" and jobs is not None:
        raise click.UsageError(
            "--jobs is for --engine local: with Spark, --master sets the number, as in local[4]"
        )
    if engine == "spark" and memory_bytes is not None:
        raise click.UsageError("--memory is for --engine local: executors have spark.executor.memory")
    options = _options(to_magic, settings)
    if memory_bytes is not None:
        options = _with_memory(options, source, memory_bytes, jobs)
        jobs = options.memory.jobs if options.memory is not None else None
    tasks = plan(source, target, topics, from_segment_start=from_segment_start)
    left_out = left_out_in_words(source, "--topics '*' converts them, too") if topics is None else None
    if left_out is not None:
        notify(left_out)
    with convert_run(source, target, tasks, options) as writing:
        unchanged, tasks = split_unchanged(tasks, options)
        writing.begin(tasks)
        with progress_bar() as bar:
            task = bar.add_task("converting", total=sum(task.source_bytes for task in tasks))

            def progress(read_bytes: int) -> None:
                bar.advance(task, read_bytes)

            if engine == "spark":
                running = _on_spark(tasks, options, master, progress)
            else:
                running = convert_in_processes(tasks, options, jobs or cores(), progress)
            with closing(running):
                reports = list(_reported(itertools.chain(unchanged, running), as_json=as_json))
        writing.end(reports)
    if as_json:
        print_json(_summary(reports))
    else:
        _print_reports(reports, options)
    return 1 if any(report.status == "failed" or report.kept for report in reports) else 0


def _options(to_magic: str | None, settings: Mapping[str, Any]) -> ConvertOptions:
    """Return the options. settings: those that ConvertOptions has under the same name."""
    if to_magic is None and settings["codec"] is None:
        raise click.UsageError("nothing to convert to: give --to-magic, --codec, or both")
    if to_magic == "2" and settings["zstd_fallback"] is not None:
        raise click.UsageError("--zstd-fallback is for --to-magic 0 and 1: v2 has zstd")
    try:
        return ConvertOptions(None if to_magic is None else int(to_magic), **settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _with_memory(
    options: ConvertOptions, source: StoragePath, memory_bytes: int, jobs: int | None
) -> ConvertOptions:
    """Return the options with a memory limit for all jobs. If `jobs` is None, the limit decides their number."""
    about, is_remote = (options.to_magic, options.chunk_size), isinstance(source, RemotePath)
    with memory_errors():
        if jobs is None:
            memory = ConvertMemory.divided(memory_bytes, cores(), *about, is_remote=is_remote)
        else:
            memory = ConvertMemory(memory_bytes, jobs, *about, is_remote=is_remote)
    limit_read_ahead(source, memory.read_ahead_bytes)
    return replace(options, memory=memory)


def _on_spark(
    tasks: Sequence[SegmentTask], options: ConvertOptions, master: str | None, progress: Callable[[int], None]
) -> Generator[ConvertReport, None, None]:
    from kafkafmt.spark import convert_on_spark

    yield from convert_on_spark(tasks, options, master, progress)


def _reported(reports: Iterable[ConvertReport], *, as_json: bool) -> Iterator[ConvertReport]:
    """Yield the reports, and print what each has to say."""
    for report in reports:
        if as_json:
            print_json(asdict(report))
        elif report.status in ("failed", "gone"):
            notify(f"{report.status}: {report.error}")
        else:
            for damage in report.damage:
                notify(f"left out: {damage_in_words(damage)}")
            if report.partial_messages:
                wrappers = in_words(report.partial_messages, "wrapper")
                notify(f"left out: {report.path}: a partial message at the end of {wrappers}")
            for path in report.removed:
                notify(f"removed: {path}: its source is gone")
            for path in report.kept:
                notify(f"kept: {path}: its source is gone, and the log in SRC ends before it")
        yield report


def _summary(reports: Sequence[ConvertReport]) -> dict[str, Any]:
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


def _print_reports(reports: Sequence[ConvertReport], options: ConvertOptions) -> None:
    by_topic: dict[str, list[ConvertReport]] = {}
    for report in sorted(reports, key=lambda report: report.path):
        by_topic.setdefault(report.topic or Path(report.path).parent.name, []).append(report)
    print_table(_COLUMNS, [_cells(topic, found) for topic, found in by_topic.items()])
    echo(f"\n{in_words(len(reports), 'segment')}: {_statuses_in_words(reports)}")
    errors = {report.error_type for report in reports if report.status == "failed"}
    if UnsupportedCompressionTypeError.__name__ in errors:
        if options.codec == Codec.ZSTD:
            notify("v0 and v1 have no zstd: --to-magic 2 converts their batches as well")
        elif options.codec is None and options.zstd_fallback is None:
            notify(
                f"v{options.to_magic} has no zstd: --zstd-fallback lz4 (or another) converts those batches as well"
            )
    if errors & {CorruptRecordError.__name__, InvalidRecordError.__name__} and options.on_corrupt == "fail":
        notify("--on-corrupt skip converts damaged segments without their damaged batches")


def _cells(topic: str, reports: Sequence[ConvertReport]) -> tuple[str, ...]:
    return (
        topic,
        f"{len({report.partition for report in reports}):,}",
        f"{len(reports):,}",
        f"{sum(report.records_converted for report in reports):,}",
        size_in_words(sum(report.source_bytes for report in reports)),
        size_in_words(sum(report.target_bytes for report in reports)),
        _statuses_in_words(reports),
    )


def _statuses_in_words(reports: Sequence[ConvertReport]) -> str:
    counts = Counter(report.status for report in reports)
    words = [f"{counts[status]:,} {status}" for status in STATUSES if counts[status]]
    left_out = sum(len(report.damage) for report in reports if report.status != "failed")
    return ", ".join([*words, f"{in_words(left_out, 'damaged range')} left out"] if left_out else words)
