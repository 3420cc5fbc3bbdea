"""`kafkafmt verify`: a line a file, and each damaged stretch."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

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
from kafkafmt.jobs.verify import FileCheck, check_file, check_logs, totals

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
    the positions where each damaged stretch begins and where valid batches go on, and the offsets around it. A
    cut-off batch or zeros at the end of the last segment are no damage: a broker may be writing there.

    Beside damage there are findings: offsets that two segments of a log have, and an .index or .timeindex that is
    missing or does not fit to its segment (with --engine local; not missing where no segment of the log has one).
    Notes are no damage: offsets between two segments that are in none, and a segment of 0 bytes that is not the
    last, are what retention and compaction may leave. A segment that is deleted meanwhile is told as gone.

    The last line has the totals. With --json it prints an object a file, with lists "damage", "findings" and "notes",
    and the totals on standard error.

    Exit status: 0; 1 where there is damage or a finding, or a file could not be read; 2 for wrong arguments.
    """
    ensure_engine(engine, master)
    return run_verify(paths, engine=engine, master=master, as_json=as_json)


def run_verify(paths: Sequence[str], *, engine: str, master: str | None, as_json: bool) -> int:
    """Check files and tell; return the exit status."""
    checks = []
    with closing(_on_spark(paths, master) if engine == "spark" else _here(paths)) as found:
        for check in check_logs(found):
            if as_json:
                print_json(asdict(check))
            checks.append(check)
    if not as_json:
        print_table(_COLUMNS, map(_cells, checks))
        for check in checks:
            _tell(check)
        click.echo(f"\n{_totals_in_words(totals(checks))}")
    else:
        tell(_totals_in_words(totals(checks)))
    return 1 if any(check.status in ("damaged", "failed") for check in checks) else 0


def _tell(check: FileCheck) -> None:
    for stretch in check.damage:
        tell(f"damage: {damage_in_words(stretch)}")
    for name, rows in (("finding", check.findings), ("note", check.notes)):
        for row in rows:
            tell(f"{name}: {check.path}: {row['kind']}: {row['message']}")
    if check.status == "gone":
        tell(f"gone: {check.path}: deleted since it was listed")
    elif check.error is not None:
        tell(f"failed: {check.error}")


def _totals_in_words(total: Mapping[str, int]) -> str:
    names = {"files": "file", "batches": "batch", "records": "record", "size_in_bytes": "byte"}
    problems = {"damaged_stretches": "damaged stretch", "findings": "finding", "notes": "note"}
    words = [in_words(total[key], name) for key, name in names.items()]
    found = [in_words(total[key], name) for key, name in problems.items()]
    unread = {"gone": "gone", "failed": "could not be read"}
    found += [f"{in_words(total[key], 'file')} {what}" for key, what in unread.items() if total[key]]
    return f"{', '.join(words)}: {', '.join(found)}"


def _here(paths: Sequence[str]) -> Generator[FileCheck, None, None]:
    sources = find_sources(paths, includes_internal=True)
    has_indexes: dict[Path, bool] = {}
    with progress_bar() as bar:
        task = bar.add_task("checking", total=sum(source.size_in_bytes for source in sources))
        for source in sources:
            folder = source.path.parent
            if source.topic_partition is not None and folder not in has_indexes:
                has_indexes[folder] = any(folder.glob("*.index"))
            indexes = source.index_check() if has_indexes.get(folder) else None
            yield check_file(source, lambda read_bytes: bar.advance(task, read_bytes), indexes=indexes)


def _on_spark(paths: Sequence[str], master: str | None) -> Generator[FileCheck, None, None]:
    from kafkafmt.spark.jobs.verify import check_files

    with spark_job(paths, master, "verify", includes_internal=True) as job:
        yield from sorted(check_files(job.context, job.files, job.progress), key=lambda check: check.path)


def _cells(check: FileCheck) -> tuple[str, ...]:
    offsets = "-" if check.last_offset is None else range_in_words(check.base_offset, check.last_offset)
    counts = f"{check.batches:,}", f"{check.records:,}"
    return check.path, *counts, offsets, f"{check.size_in_bytes:,}", _result(check)


def _result(check: FileCheck) -> str:
    if check.error is not None:
        return "gone" if check.status == "gone" else "could not be read"
    if check.damage or check.findings:
        damage = [in_words(len(check.damage), "damaged stretch")] if check.damage else []
        findings = [in_words(len(check.findings), "finding")] if check.findings else []
        return ", ".join([*damage, *findings])
    return f"ok, but for {in_words(check.tail_bytes, 'byte')} at the end" if check.tail_bytes else "ok"
