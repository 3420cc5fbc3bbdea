"""`kafkafmt verify`: check files; print a line for each file, and each damaged range."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict

import click

from kafkafmt.cli.engines import engine_options, ensure_engine, spark_job
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.options import json_option, key_ring_option
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
from kafkafmt.cli.sources import find_sources
from kafkafmt.cli.values import PathText, complete_files, paths_with_key_ring
from kafkafmt.jobs.verify import FileCheck, IndexedSegments, check_file, check_logs, totals

_COLUMNS = ("file", "batches#", "records#", "offsets", "bytes#", "result")


@click.command(cls=HelpCommand, common="--topics --engine --master --json", page="inspect.md")
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="PATH...",
    type=PathText(),
    callback=paths_with_key_ring,
    shell_complete=complete_files,
)
@topics_option(default="all")
@engine_options()
@json_option("Print JSON lines: one object for each file.")
@key_ring_option()
def verify(
    paths: tuple[str, ...],
    topics: tuple[str, ...] | None,
    engine: str,
    master: str | None,
    as_json: bool,
) -> int:
    """Check log segments for damage.

    PATH is a segment or another file of record batches, a partition folder, a log directory, or a quoted pattern
    like 'logs/page-views-*'. It may be a URI, as s3://bucket/logs. All segments of a folder are checked. With
    --engine spark each file is checked on an executor.

    \b
    kafkafmt verify /var/lib/kafka
    kafkafmt verify 's3://bucket/logs/orders-*' --engine spark

    Checks lengths, magic, CRCs and the order of offsets, decompresses all batches and reads all records. For each
    damaged range it prints the positions of its start and of the next valid batch, and the offsets around it. A
    partial batch or zeros at the end of the last segment are no damage: a broker may be writing there.

    A finding is another defect: two segments of a log contain the same offset, a segment has an offset below its name,
    or an .index or .timeindex is wrong or missing. It counts as missing only if another segment of the log has an
    index.

    A note is no defect: retention and compaction may leave a gap in the offsets between two segments, and a segment of
    0 bytes before the last. A segment that was deleted since it was listed is reported as gone.

    The last line contains the totals. --json prints lists "damage", "findings" and "notes" for each file, and the
    totals on standard error.

    Exit status: 0; 1 if there is damage or a finding, or a file could not be read; 2 for wrong arguments.
    """
    ensure_engine(engine, master)
    return run_verify(paths, topics=topics, engine=engine, master=master, as_json=as_json)


def run_verify(
    paths: Sequence[str],
    *,
    topics: tuple[str, ...] | None,
    engine: str,
    master: str | None,
    as_json: bool,
) -> int:
    """Check files, print the results, and return the exit status."""
    checks = []
    with closing(_on_spark(paths, topics, master) if engine == "spark" else _here(paths, topics)) as found:
        for check in check_logs(found):
            if as_json:
                print_json(asdict(check))
            checks.append(check)
    if not as_json:
        print_table(_COLUMNS, map(_cells, checks))
        for check in checks:
            _report(check)
        echo(f"\n{_totals_in_words(totals(checks))}")
    else:
        notify(_totals_in_words(totals(checks)))
    return 1 if any(check.status in ("damaged", "failed") for check in checks) else 0


def _report(check: FileCheck) -> None:
    for damage in check.damage:
        notify(f"damage: {damage_in_words(damage)}")
    for name, rows in (("finding", check.findings), ("note", check.notes)):
        for row in rows:
            notify(f"{name}: {check.path}: {row['kind']}: {row['message']}")
    if check.status == "gone":
        notify(f"gone: {check.path}: deleted since it was listed")
    elif check.error is not None:
        notify(f"failed: {check.error}")


def _totals_in_words(total: Mapping[str, int]) -> str:
    names = {"files": "file", "batches": "batch", "records": "record", "size_in_bytes": "byte"}
    problems = {"damaged_stretches": "damaged range", "findings": "finding", "notes": "note"}
    words = [in_words(total[key], name) for key, name in names.items()]
    found = [in_words(total[key], name) for key, name in problems.items()]
    unread = {"gone": "gone", "failed": "could not be read"}
    found += [f"{in_words(total[key], 'file')} {what}" for key, what in unread.items() if total[key]]
    return f"{', '.join(words)}: {', '.join(found)}"


def _here(paths: Sequence[str], topics: tuple[str, ...] | None) -> Generator[FileCheck, None, None]:
    sources = find_sources(paths, topics, includes_internal=True)
    indexed = IndexedSegments()
    with progress_bar() as bar:
        task = bar.add_task("checking", total=sum(source.size_in_bytes for source in sources))
        for source in sources:
            yield check_file(
                source,
                lambda read_bytes: bar.advance(task, read_bytes),
                indexed=indexed.of(source.segment),
            )


def _on_spark(
    paths: Sequence[str], topics: tuple[str, ...] | None, master: str | None
) -> Generator[FileCheck, None, None]:
    from kafkafmt.spark.jobs.verify import check_files

    with spark_job(paths, topics, master, "verify", includes_internal=True) as job:
        yield from sorted(check_files(job.spark, job.files, job.progress), key=lambda check: check.path)


def _cells(check: FileCheck) -> tuple[str, ...]:
    offsets = "-" if check.last_offset is None else range_in_words(check.base_offset, check.last_offset)
    counts = f"{check.batches:,}", f"{check.records:,}"
    return check.path, *counts, offsets, f"{check.size_in_bytes:,}", _result(check)


def _result(check: FileCheck) -> str:
    if check.error is not None:
        return "gone" if check.status == "gone" else "could not be read"
    if check.damage or check.findings:
        damage = [in_words(len(check.damage), "damaged range")] if check.damage else []
        findings = [in_words(len(check.findings), "finding")] if check.findings else []
        return ", ".join([*damage, *findings])
    return f"ok, but for {in_words(check.tail_bytes, 'byte')} at the end" if check.tail_bytes else "ok"
