"""`kafkafmt repair`: write what is sound of a damaged log directory, with everything that a broker needs beside it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.options import json_option, key_ring_option
from kafkafmt.cli.output import (
    echo,
    in_words,
    notify,
    print_json,
    print_table,
    progress_bar,
    range_in_words,
    size_in_words,
)
from kafkafmt.cli.values import Folder
from kafkafmt.jobs.repair import LostRange, PartitionReport, RepairReport, repair_in_place, size_in_bytes
from kafkafmt.jobs.repair import repair as repair_to
from kafkafmt.storage import StoragePath

_COLUMNS = ("partition", "segments#", "batches#", "records#", "offsets", "size#", "result")


@click.command(cls=HelpCommand, common="--in-place --yes --dry-run --deep --json", page="forensics.md")
@click.argument("source", metavar="SRC", type=Folder())
@click.argument("target", metavar="[DST]", required=False, type=Folder())
@click.option("--in-place", is_flag=True, help="Replace the wrong files of SRC. No broker may run on it.")
@click.option("--yes", is_flag=True, help="Confirm --in-place.")
@click.option("--dry-run", is_flag=True, help="Report what would be kept and what is lost. Write nothing.")
@click.option(
    "--deep",
    is_flag=True,
    help="Decompress all batches, and leave out those whose records cannot be read although the CRC is valid.",
)
@json_option("Print JSON lines: one object for each partition, and one for the directory.")
@key_ring_option()
def repair(
    source: StoragePath,
    target: StoragePath | None,
    in_place: bool,
    yes: bool,
    dry_run: bool,
    deep: bool,
    as_json: bool,
) -> int:
    """Write what is sound of a damaged log directory.

    SRC is a log directory, or the folder of one partition. Writes what is sound of it to the new folder DST: batches
    are the same bytes with the same offsets. Damaged ranges are left out, which leaves gaps in the offsets. A torn end
    is cut off. Everything beside the segments is made from the batches: indexes, the states of producers, leader
    epochs, and the checkpoints of the directory. SRC is never changed without --in-place. SRC and DST may be URIs.

    \b
    kafkafmt repair /var/lib/kafka --dry-run
    kafkafmt repair /var/lib/kafka /var/lib/kafka-repaired
    kafkafmt repair s3://bucket/logs s3://bucket/logs-repaired
    kafkafmt repair /var/lib/kafka --in-place --yes

    By default a batch is sound if its header, its CRC and its offsets are: a broker serves such batches. With --deep
    its records are read, too, which takes longer.

    For each range that is left out, the report has the file, the positions, the offsets that are missing, and the
    number of records as far as headers can be read. Lost offsets are upper bounds: after compaction not every offset
    had a record.

    With --in-place only wrong files are replaced. The replaced ones stay in .kafkafmt-repaired-1 in the folder of the
    partition, which brokers ignore: remove it when it is no longer needed. The log directory is locked as by a broker.
    If a run is killed, the next one completes it, or refuses if a broker has changed the files since.

    For a URI as DST, the files are written below $TMPDIR first, which needs as much space. While they are uploaded, and
    after a kill, DST has kafkafmt-incomplete.json, and readers refuse it. The next run begins again.

    Exit status: 0 if no record is lost; 1 if records are lost, or if a broker may delete segments in tiered storage
    because their leader epochs are lost; 2 for wrong arguments. An incomplete batch or zeros at
    the end of a log are not lost records: a broker cuts them off, too.
    """
    _ensure_options(target, in_place=in_place, yes=yes, dry_run=dry_run)
    if in_place and not isinstance(source, Path):
        raise click.UsageError(f"--in-place is for a local folder, found {source}: name a new folder, DST")
    with progress_bar() as bar:
        task = bar.add_task("repairing", total=size_in_bytes(source))

        def progress(read_bytes: int) -> None:
            bar.advance(task, read_bytes)

        if isinstance(source, Path) and in_place and not dry_run:
            report = repair_in_place(source, deep=deep, progress=progress)
        else:
            report = repair_to(source, None if dry_run else target, deep=deep, progress=progress)
    if as_json:
        _print_objects(source, report)
    else:
        print_table(_COLUMNS, map(_cells, report.partitions))
        _notify_all(report)
        echo(f"\n{_totals_in_words(report)}")
    return 0 if report.is_lossless else 1


def _ensure_options(target: StoragePath | None, *, in_place: bool, yes: bool, dry_run: bool) -> None:
    if in_place and target is not None:
        raise click.UsageError("--in-place and DST: choose one")
    if yes and not in_place:
        raise click.UsageError("--yes is for --in-place")
    if yes and dry_run:
        raise click.UsageError("--yes and --dry-run: choose one")
    if in_place and not yes and not dry_run:
        raise click.UsageError("--in-place changes SRC: --yes confirms it, --dry-run shows what it would do")
    if target is None and not in_place and not dry_run:
        raise click.UsageError("expected DST, --in-place or --dry-run")


def _print_objects(source: StoragePath, report: RepairReport) -> None:
    for one in report.partitions:
        print_json({**asdict(one), "is_lossless": one.is_lossless})
    print_json(
        {
            "path": str(source),
            "is_lossless": report.is_lossless,
            "mended": report.mended,
            "notes": report.notes,
            "backups": report.backups,
        }
    )


def _notify_all(report: RepairReport) -> None:
    for one in report.partitions:
        for lost in one.lost:
            notify(f"{'lost' if lost.is_lost else 'left out'}: {_lost_in_words(lost)}")
        for name, lines in (("mended", one.mended), ("note", one.notes)):
            for line in lines:
                notify(f"{name}: {one.path}: {line}")
    for name, lines in (
        ("mended", report.mended),
        ("note", report.notes),
        ("replaced files", report.backups),
    ):
        for line in lines:
            notify(f"{name}: {line}")


def _lost_in_words(lost: LostRange) -> str:
    """Return a range as text: file, kind, positions, offsets, and the contents that are known."""
    where = f"{lost.path}: {lost.kind}"
    if lost.position < lost.end_position:
        where += f" at positions {lost.position} to {lost.end_position}"
    if lost.first_offset is not None:
        where += f", offsets {range_in_words(lost.first_offset, lost.last_offset)}"
    elif lost.is_lost:
        where += ", offsets unknown"
    if lost.records is not None:
        where += f", {in_words(lost.records, 'record')} by its headers"
    if lost.keys:
        where += f", keys {', '.join(lost.keys)}"
    return f"{where}: {lost.message}"


def _cells(one: PartitionReport) -> tuple[Any, ...]:
    name = one.path if one.topic is None else f"{one.topic}-{one.partition}"
    counts = f"{one.segments:,}", f"{one.batches:,}", f"{one.records:,}"
    offsets = "-" if one.last_offset is None else range_in_words(one.first_offset, one.last_offset)
    return name, *counts, offsets, size_in_words(one.size_in_bytes), _result(one)


def _result(one: PartitionReport) -> str:
    lost = sum(lost.is_lost for lost in one.lost)
    words = [f"{in_words(lost, 'range')} lost"] if lost else []
    if left_out := len(one.lost) - lost:
        words.append(f"{in_words(left_out, 'range')} left out")
    if one.moved_batches:
        words.append(f"{in_words(one.moved_batches, 'batch')} put back")
    if one.mended:
        words.append(f"{in_words(len({line.partition(': ')[0] for line in one.mended}), 'file')} mended")
    return ", ".join(words) or "ok"


def _totals_in_words(report: RepairReport) -> str:
    kept = report.partitions
    words = [
        in_words(len(kept), "partition"),
        in_words(sum(one.batches for one in kept), "batch"),
        in_words(sum(one.records for one in kept), "record"),
        f"{size_in_words(sum(one.size_in_bytes for one in kept))} kept",
    ]
    lost = list(report.lost())
    size = sum(one.end_position - one.position for one in lost)
    return f"{', '.join(words)}: {in_words(len(lost), 'range')} lost, {size_in_words(size)}"
