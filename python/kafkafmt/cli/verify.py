"""`kafkafmt verify`: a line a file, and each damaged stretch."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict

import click

from kafkafmt.cli.engines import engine_options, ensure_engine, spark_job
from kafkafmt.cli.output import (
    damage_in_words,
    in_words,
    print_json,
    print_table,
    progress_bar,
    range_in_words,
    tell,
)
from kafkafmt.cli.sources import find_sources
from kafkafmt.jobs.verify import FileCheck, check_file

_COLUMNS = ("file", "batches#", "records#", "offsets", "bytes#", "result")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@engine_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: an object a file.")
def verify(paths: tuple[str, ...], engine: str, master: str | None, as_json: bool) -> int:
    """Check log segments: is anything damaged?

    PATH is a segment or another file of record batches, a partition folder, a log directory, or a quoted pattern
    like 'logs/page-views-*'. Of a folder, all segments are taken. With --engine spark a file is a task, and PATH
    may be a URI as well, as s3://bucket/logs.

    \b
    kafkafmt verify /var/lib/kafka
    kafkafmt verify 's3://bucket/logs/orders-*' --engine spark --master spark://host:7077

    Checks lengths, magic, CRCs and the order of offsets, decompresses everything and reads every record. It tells
    the positions where each damaged stretch begins and where valid batches go on, and the offsets around it. With
    --json it prints an object a file, with a list "damage". A cut-off batch or zeros at the end of the last segment
    are no damage: a broker may be writing there.

    Exit status: 0; 1 where damage was found or a file could not be read; 2 for wrong arguments.
    """
    ensure_engine(engine, master)
    return run_verify(paths, engine=engine, master=master, as_json=as_json)


def run_verify(paths: Sequence[str], *, engine: str, master: str | None, as_json: bool) -> int:
    """Check files and tell; return the exit status."""
    checks = []
    with closing(_on_spark(paths, master) if engine == "spark" else _here(paths)) as found:
        for check in found:
            if as_json:
                print_json(asdict(check))
            checks.append(check)
    if not as_json:
        print_table(_COLUMNS, map(_cells, checks))
        for check in checks:
            for stretch in check.damage:
                tell(f"damage: {damage_in_words(stretch)}")
            if check.error is not None:
                tell(f"failed: {check.error}")
    return 1 if any(check.status != "ok" for check in checks) else 0


def _here(paths: Sequence[str]) -> Generator[FileCheck, None, None]:
    sources = find_sources(paths)
    with progress_bar() as bar:
        task = bar.add_task("checking", total=sum(source.path.stat().st_size for source in sources))
        for source in sources:
            yield check_file(source, lambda read_bytes: bar.advance(task, read_bytes))


def _on_spark(paths: Sequence[str], master: str | None) -> Generator[FileCheck, None, None]:
    from kafkafmt.spark.jobs.verify import check_files

    with spark_job(paths, master, "verify") as job:
        yield from check_files(job.context, job.files, job.progress)


def _cells(check: FileCheck) -> tuple[str, ...]:
    offsets = "-" if check.last_offset is None else range_in_words(check.base_offset, check.last_offset)
    counts = f"{check.batches:,}", f"{check.records:,}"
    return check.path, *counts, offsets, f"{check.size_in_bytes:,}", _result(check)


def _result(check: FileCheck) -> str:
    if check.error is not None:
        return "could not be read"
    if check.damage:
        return in_words(len(check.damage), "damaged stretch")
    return f"ok, but for {in_words(check.tail_bytes, 'byte')} at the end" if check.tail_bytes else "ok"
