"""`kafkafmt erase`: erase records of a log directory by their keys, or by a function, and prove that they are gone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from kafkafmt._util.cores import cores
from kafkafmt._util.files import naming_errors
from kafkafmt._util.staging import staged_file
from kafkafmt.cli.engines import engine_options, ensure_engine
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.options import (
    from_segment_start_option,
    json_option,
    key_ring_option,
    on_corrupt_option,
)
from kafkafmt.cli.output import (
    damage_in_words,
    echo,
    in_words,
    notify,
    print_json,
    print_table,
    progress_bar,
    range_in_words,
)
from kafkafmt.cli.record_options import topics_option
from kafkafmt.cli.values import FILE, Count, Folder
from kafkafmt.errors import CorruptRecordError, InvalidRecordError
from kafkafmt.jobs.erase import (
    EraseOptions,
    EraseTarget,
    Erasure,
    KeyFormat,
    Replacement,
    Runner,
    erase_directory,
    partition_rows,
    read_keys,
)
from kafkafmt.jobs.files import Progress
from kafkafmt.jobs.rewrite import SegmentTask, run_in_processes
from kafkafmt.log.topics import left_out_in_words
from kafkafmt.storage import RemotePath, StoragePath

_Report = TypeVar("_Report")

_COLUMNS = (
    "topic",
    "partition#",
    "records#",
    "erased#",
    "batches#",
    "changed#",
    "removed#",
    "erased offsets",
)
_SHOWN_RANGES = 8


@click.command(
    cls=HelpCommand,
    common="--keys --where --replace-values --topics --report --json",
    page="forensics.md",
)
@click.argument("source", metavar="SRC", type=Folder())
@click.argument("target", metavar="DST", type=Folder())
@click.option(
    "--keys",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the key of an erased record in each line.",
)
@click.option(
    "--keys-format",
    type=click.Choice(get_args(KeyFormat)),
    help="How a line of --keys has a key: as its text, or in base64 or hex for binary keys.  [default: text]",
)
@click.option(
    "--where",
    metavar="MODULE:CALLABLE",
    help="Erase records for which CALLABLE(record, topic_partition) is true.",
)
@click.option(
    "--replace-values",
    metavar="TEXT",
    help="Keep the records, with this value; null: no value.",
)
@topics_option()
@on_corrupt_option("A damaged batch fails its segment (fail), or is left out (skip).")
@click.option("--report", type=FILE, help="Write the JSON lines of --json to FILE.")
@click.option(
    "--jobs", type=Count(), help="Segments worked on at the same time.  [default: one for each core]"
)
@click.option(
    "--force", is_flag=True, help="Replace what an unfinished erasure with other keys or options wrote."
)
@from_segment_start_option()
@engine_options()
@json_option("Print JSON lines: one object for each partition, and a summary.")
@key_ring_option()
def erase(
    source: StoragePath,
    target: StoragePath,
    topics: tuple[str, ...] | None,
    report: Path | None,
    jobs: int | None,
    from_segment_start: bool,
    engine: str,
    master: str | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Write SRC without some records to the new folder DST.

    SRC is a log directory or a partition folder. Stop its broker first. SRC and DST may be URIs, as s3://bucket/logs.

    \b
    kafkafmt erase /var/lib/kafka /clean --keys users.txt
    kafkafmt erase /var/lib/kafka /clean --keys users.txt --topics 'page-*'
    kafkafmt erase /var/lib/kafka /clean --where rules:is_personal
    kafkafmt erase /var/lib/kafka /clean --keys users.txt --replace-values null

    Offsets, headers of batches, transactions and their indexes stay as Kafka's log cleaner keeps them. Batches without
    erased records are copied unchanged. A batch without any remaining record is removed. It stays, empty, if it
    is the last one of its producer in the segment, or the last one of the log.

    A second pass reads DST again. It proves that no erased record is left, and that all others are there, unchanged.
    DST appears only then. Until then the files are in .DST.erasing. After a kill or a failure, the same command
    continues there. For a URI as DST, the files are below $TMPDIR, which needs as much space as DST. While they
    are uploaded, and after a kill, DST has kafkafmt-incomplete.json, and readers refuse it.

    A damaged batch fails its segment: it cannot be searched. With --on-corrupt skip it is left out and reported.

    Leader epochs, topic ids, snapshots of producer states, topics.ini and log start offsets are copied.

    With --engine spark each segment is a task, and DST is a folder. SRC, DST and the module of --where must be at the
    same paths on all machines, with kafkafmt installed. This needs Java, and pip install 'kafkafmt[spark]'.

    Exit status: 0; 1 if a segment or a proof failed, and then there is no DST; 2 for wrong arguments.
    """
    ensure_engine(engine, master)
    if engine == "spark" and jobs is not None:
        raise click.UsageError(
            "--jobs is for --engine local: with Spark, --master sets the number, as in local[4]"
        )
    if engine == "spark" and isinstance(target, RemotePath):
        raise click.UsageError(f"{target}: a URI as DST is for --engine local; Spark writes to folders only")
    if report is not None and not report.absolute().parent.is_dir():
        raise click.ClickException(f"{report}: its folder does not exist")
    options = _options(settings)
    erased = EraseTarget(target.resolve())
    with erased.locked(source):
        if erased.is_published:
            erased.ensure_published_with(options, source, topics, from_segment_start=from_segment_start)
            notify(f"{target}: an earlier run has erased and proven it")
        else:
            tasks = erased.plan(source, topics, from_segment_start=from_segment_start)
            left_out = (
                left_out_in_words(source, "--topics '*' searches them, too") if topics is None else None
            )
            if left_out is not None:
                notify(left_out)
            with _runner(engine, master, jobs or cores()) as run:
                result = erase_directory(erased, tasks, options, run)
            if not result.is_published:
                return _fail(result, options, target)
        _print_report(erased, report, as_json=as_json)
        erased.remove_state()
    return 0


def _options(settings: Mapping[str, Any]) -> EraseOptions:
    """Return the options. Raises UsageError, KeysError and OSError."""
    keys, where, value = settings["keys"], settings["where"], settings["replace_values"]
    if (keys is None) == (where is None):
        raise click.UsageError("give either --keys or --where")
    if settings["keys_format"] is not None and keys is None:
        raise click.UsageError("--keys-format is for --keys")
    replacement = None
    if value is not None:
        replacement = Replacement(None if value == "null" else value.encode("utf-8", "surrogateescape"))
    try:
        return EraseOptions(
            None if keys is None else read_keys(keys, settings["keys_format"] or "text"),
            where,
            replacement,
            settings["on_corrupt"],
            settings["force"],
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@contextmanager
def _runner(engine: str, master: str | None, jobs: int) -> Iterator[Runner]:
    """Yield what runs the work: processes of this machine, or Spark."""
    if engine == "spark":
        from kafkafmt.spark import erase_runner

        with erase_runner(master, _progress) as runner:
            yield runner
        return

    def run(
        tasks: Sequence[SegmentTask],
        work: Callable[..., _Report],
        failed: Callable[[SegmentTask, Exception], _Report],
        what: str,
    ) -> list[_Report]:
        with _progress(what, tasks) as progress:
            return list(run_in_processes(tasks, work, failed, jobs, progress))

    yield run


@contextmanager
def _progress(what: str, tasks: Sequence[SegmentTask]) -> Iterator[Progress]:
    """Show a progress bar for the bytes of tasks during the block."""
    with progress_bar() as bar:
        task = bar.add_task(what, total=sum(task.source_bytes for task in tasks))
        yield lambda read_bytes: bar.advance(task, read_bytes)


def _fail(result: Erasure, options: EraseOptions, target: StoragePath) -> int:
    for error in result.errors:
        notify(error)
    kinds = {report.error_type for report in result.reports}
    if kinds & {CorruptRecordError.__name__, InvalidRecordError.__name__} and options.on_corrupt == "fail":
        notify("--on-corrupt skip leaves damaged batches out")
    notify(f"{target}: not written: {in_words(len(result.errors), 'error')}")
    return 1


def _print_report(target: EraseTarget, report: Path | None, *, as_json: bool) -> None:
    """Print the report, and write it to the file `report`. One partition is in memory at a time."""
    if report is not None:
        with naming_errors(report), staged_file(report) as file:
            for row in _with_summary(partition_rows(target)):
                file.write(json.dumps(row).encode() + b"\n")
    if as_json:
        for row in _with_summary(partition_rows(target)):
            print_json(row)
    else:
        _print_table(target)


def _with_summary(rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    total: dict[str, int] = {"partitions": 0}
    for row in rows:
        total["partitions"] += 1
        for name, value in row.items():
            if isinstance(value, int) and name != "partition":
                total[name] = total.get(name, 0) + value
        total["damaged_ranges"] = total.get("damaged_ranges", 0) + len(row["damage"])
        yield row
    yield {"summary": total}


def _print_table(target: EraseTarget) -> None:
    lines: list[tuple[str, ...]] = []
    for row in _with_summary(partition_rows(target)):
        if (total := row.get("summary")) is not None:
            print_table(_COLUMNS, lines)
            erased, kept = total["records_erased"], total["batches_identical"]
            echo(f"\n{in_words(erased, 'record')} erased, {in_words(kept, 'batch')} unchanged; proven")
            return
        for damage in row["damage"]:
            notify(f"left out: {damage_in_words(damage)}")
        if row["partial_messages"]:
            wrappers = in_words(row["partial_messages"], "wrapper")
            notify(f"left out: {row['target']}: a partial message at the end of {wrappers}")
        numbers = ("records", "records_erased", "batches", "batches_changed", "batches_removed")
        counts = [f"{row[name]:,}" for name in numbers]
        name, partition = row["topic"] or Path(row["target"]).name, row["partition"]
        place = "-" if partition is None else str(partition)
        lines.append((name, place, *counts, _ranges_in_words(row["erased_offsets"])))


def _ranges_in_words(ranges: Sequence[Sequence[int]]) -> str:
    shown = ", ".join(range_in_words(first, last) for first, last in ranges[:_SHOWN_RANGES])
    more = len(ranges) - _SHOWN_RANGES
    return f"{shown} and {more:,} more" if more > 0 else shown or "-"
