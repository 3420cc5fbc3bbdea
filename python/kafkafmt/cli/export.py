"""`kafkafmt export`: export topics into tables of Parquet files, Delta or Iceberg; compact these tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafmt._util.cores import cores
from kafkafmt._util.sizes import GIB, KIB, MIB
from kafkafmt.cli.export_compaction import compact_table
from kafkafmt.cli.export_options import destination, destination_options
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.options import (
    client_options,
    client_settings,
    isolation_option,
    json_option,
    key_ring_option,
    needs,
    on_corrupt_option,
)
from kafkafmt.cli.output import echo, in_words, notify, print_json, print_table, progress_bar, size_in_words
from kafkafmt.cli.record_options import (
    decoding_options,
    schemas_of_options,
    time_range,
    time_range_options,
    topics_option,
)
from kafkafmt.cli.values import Count, PathText, Size, complete_folders, with_key_ring

if TYPE_CHECKING:
    from datetime import datetime

    from kafkafmt.decode import Decoding
    from kafkafmt.export import Destination, ExportOptions, TableReport
    from kafkafmt.export.plan import TablePreview
    from kafkafmt.scanning.scan import Scan
    from kafkafmt.scanning.tasks import OffsetRange
    from kafkafmt.types import TopicPartition

# As `kafkafmt.export.layout` has it. Its import takes as long as PyArrow, and the help does not need that.
_COMPRESSIONS = ("zstd", "snappy", "lz4", "gzip", "none")
_LEAST_FILE_BYTES = 64 * KIB
_LEAST_MEMORY_BYTES = 64 * MIB
# How many batches of a scan a row group of a file has.
_ROW_GROUP_BATCHES = 4


class _ExportCommand(HelpCommand):
    """The command `export`, with the subcommand `compact`: a first argument of that name is not taken for a source."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] == compact_table.name:
            return compact_table.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    cls=_ExportCommand,
    common="--format --topics --value-format --schemas --partition-by --mode --dry-run --json",
    page="tables.md",
)
@click.argument("source", metavar="SRC", type=PathText(), shell_complete=complete_folders)
@click.argument("target", metavar="DST", type=PathText(), shell_complete=complete_folders)
@destination_options("parquet", "delta", "iceberg", default="parquet")
@topics_option()
@time_range_options()
@decoding_options(default="bytes")
@click.option(
    "--reader-schema",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file of a schema, whose fields become those of the values, or of the keys if only these have a schema."
    "  [default: the newest schema]",
)
@click.option(
    "--on-error",
    type=click.Choice(["column", "fail"]),
    help="A key or value that cannot be decoded is null, and key_error or value_error says why (column); or it ends"
    " the export of its table (fail).  [default: column]",
)
@click.option("--columns", metavar="NAME[,NAME]", help="Columns of records.  [default: all but headers]")
@click.option(
    "--nested", is_flag=True, help="Keep a value that is a record in one column, not a column for each field."
)
@click.option(
    "--partition-by",
    metavar="FIELD[,FIELD]",
    help="Of a new table: columns, or year, month, day or hour of a timestamp, as topic,day(timestamp).",
)
@click.option(
    "--mode",
    type=click.Choice(["append", "upsert"]),
    default="append",
    help="upsert: the table has the latest row of each key. For delta and iceberg.",
)
@click.option("--one-table", is_flag=True, help="All topics are in one table, which is DST itself.")
@click.option(
    "--target-file-size",
    "target_file_bytes",
    type=Size(least=_LEAST_FILE_BYTES, most=64 * GIB),
    default="128M",
    help="A file ends when it has this size.",
)
@click.option("--compression", type=click.Choice(_COMPRESSIONS), default="zstd", help="Of Parquet files.")
@click.option(
    "--on-offsets-gone",
    type=click.Choice(["fail", "continue"]),
    default="fail",
    help="What to do if SRC no longer has the offset at which the table ends, or ends before it.",
)
@click.option(
    "--check-overlaps",
    is_flag=True,
    help="Look up the end of each segment of SRC, so that offsets that two segments have are read once. It costs"
    " requests to a store. Always for local segments.",
)
@isolation_option("read_committed leaves out open and aborted transactions.", default="read_committed")
@on_corrupt_option("Damage fails its table (fail), or is left out with a warning (skip).")
@click.option(
    "--processes", type=Count(most=256), help="Processes that export.  [default: one for each core]"
)
@click.option(
    "--memory",
    "memory_bytes",
    type=Size(least=_LEAST_MEMORY_BYTES, most=1024 * GIB),
    help="Bounds the rows that all processes keep, beyond the memory of their start.  [default: 512M for each]",
)
@client_options(
    "source",
    "A setting of a cluster's clients, or of the file system of SRC. May be repeated.",
    "A file of such settings, one a line, as for passwords.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Print what would be exported, and change nothing.")
@json_option("Print JSON lines: one object for each table, and a summary.")
@key_ring_option()
def export(
    source: str,
    target: str,
    table_format: str,
    catalog: str | None,
    destination_config: tuple[tuple[str, str], ...],
    destination_config_file: Path | None,
    one_table: bool,
    is_dry: bool,
    as_json: bool,
    processes: int | None,
    memory_bytes: int | None,
    **settings: Any,
) -> int:
    """Export topics into tables of Parquet, Delta or Iceberg.

    SRC is a log directory, a partition folder, a URI as s3://bucket/logs, or a cluster: kafka://HOST:PORT/TOPIC.
    DST is a folder or a URI, which gets a table for each topic; for Iceberg it is a namespace of the catalog.

    \b
    kafkafmt export /var/lib/kafka lake --topics orders
    kafkafmt export /var/lib/kafka lake --format delta --value-format json
    kafkafmt export kafka://east:9092/orders raw --format iceberg --catalog prod
    kafkafmt export compact lake/orders --format delta

    A run adds the records after those that the table has, up to the ends that the partitions have at its start. The
    offsets are committed with the rows, so each record is in the table once, also after a kill: the next run removes
    what is left, and continues. Two exports of one table exclude each other.

    A value that is a record of JSON, Avro or Protobuf gets a column for each field; the other columns then begin with
    kafka_. New fields become new columns. Without --schemas, the fields of JSON are those of the table and of 10,000
    records that a run adds: the first and last ones of each partition, of which about 32 MiB of JSON are read, in the
    order of partitions. Another record with another field cannot be decoded. The run counts such records.

    --from and --to select the records of a new table. A table continues where it ends, so a later --from has no effect
    on partitions that the table has, if it is not after their end.

    Needs pip install 'kafkafmt[lake]'.

    Exit status: 0; 1 if a table failed, the others are exported; 2 for wrong arguments.
    """
    began = time.monotonic()
    with needs("an export", "lake"), _bad_values():
        options = _options(processes or cores(), memory_bytes, settings)
        to = destination(
            table_format, target, catalog, destination_config, destination_config_file, one_table=one_table
        )
        scan = _scan(source, options, settings)
        scan.ranges()  # a source without such topics is an error before any table is created
        if is_dry:
            return _print_previews(scan, to, options, as_json=as_json)
        reports = _run(scan, to, options, as_json=as_json)
    failed = sum(report.error is not None for report in reports)
    summary = {
        "tables": len(reports),
        "failed": failed,
        "records": sum(report.rows for report in reports),
        "undecoded": sum(report.undecoded for report in reports),
        "files": sum(report.files for report in reports),
        "size_in_bytes": sum(report.size_in_bytes for report in reports),
        "source_bytes": sum(report.source_bytes for report in reports),
        "seconds": round(time.monotonic() - began, 3),
    }
    if as_json:
        print_json({"summary": summary})
    else:
        _print_reports(reports, summary)
    return 1 if failed else 0


@contextmanager
def _bad_values() -> Iterator[None]:
    """Raise click.ClickException for ValueErrors, with which sources and stores refuse paths and options."""
    try:
        yield
    except (click.ClickException, OSError):
        raise
    except ValueError as error:
        from kafkafmt._util.user_errors import UserError
        from kafkafmt.errors import KafkaFormatError

        if isinstance(error, UserError | KafkaFormatError):
            raise
        raise click.ClickException(" ".join(str(error).split())) from None


def _options(processes: int, memory_bytes: int | None, settings: Mapping[str, Any]) -> ExportOptions:
    from kafkafmt.export import ExportOptions, WriteOptions
    from kafkafmt.export.plan import with_memory

    options = ExportOptions(
        settings["partition_by"] or "",
        flatten=not settings["nested"],
        on_offsets_gone=settings["on_offsets_gone"],
        processes=processes,
        mode=settings["mode"],
        write=WriteOptions(settings["target_file_bytes"], compression=settings["compression"]),
    )
    return options if memory_bytes is None else with_memory(options, memory_bytes)


def _scan(source: str, options: ExportOptions, settings: Mapping[str, Any]) -> Scan:
    """Return the scan of SRC. Raises click.UsageError and UserError for options without a meaning."""
    import kafkafmt

    bounds: tuple[datetime | None, datetime | None] = settings["from_time"], settings["to_time"]
    time_range(*bounds)  # raises UsageError for an empty one
    columns = settings["columns"]
    return kafkafmt.scan(
        with_key_ring(source, click.get_current_context()),
        topics=settings["topics"],
        timestamps=None if bounds == (None, None) else bounds,
        columns=None if columns is None else [one.strip() for one in columns.split(",")],
        decode=_decoding(settings),
        isolation=settings["isolation"],
        on_corrupt=settings["on_corrupt"],
        check_overlaps=settings["check_overlaps"] or None,
        batch_bytes=options.write.group_bytes // _ROW_GROUP_BATCHES,
        options=client_settings(settings["source_config"], settings["source_config_file"]),
    )


def _decoding(settings: Mapping[str, Any]) -> Decoding | None:
    key, value = settings["key_format"], settings["value_format"]
    if value is None and settings["nested"]:
        raise click.UsageError("--nested is for --value-format: without it a value is in one column")
    if key is None and value is None:
        for name in ("schemas", "schemas_config_file", "framing", "reader_schema", "on_error"):
            if settings[name] is not None:
                raise click.UsageError(
                    f"--{name.replace('_', '-')} is for --key-format and --value-format: without them keys and values"
                    " are bytes"
                )
        return None
    from kafkafmt.decode import Decoding
    from kafkafmt.decode.schemas.files import read_valid_schema

    return Decoding(
        key,
        value,
        schemas=schemas_of_options(settings["schemas"], settings["schemas_config_file"]),
        framing=settings["framing"],
        reader_schema=None
        if settings["reader_schema"] is None
        else read_valid_schema(settings["reader_schema"]),
        on_error="raise" if settings["on_error"] == "fail" else "column",
    )


def _run(scan: Scan, to: Destination, options: ExportOptions, *, as_json: bool) -> list[TableReport]:
    from kafkafmt.export.running import run_export

    reports = []
    with progress_bar() as bar:
        task = bar.add_task("exporting", total=None)
        with closing(run_export(scan, to, options, lambda done: bar.advance(task, done))) as running:
            for report in running:
                reports.append(report)
                if as_json:
                    print_json(_as_json(report))
                elif report.error is not None:
                    notify(f"failed: {_said(report)}")
                if report.undecoded:
                    notify(
                        f"undecoded: {report.location}: {in_words(report.undecoded, 'payload')}: null, and the column "
                        "of errors says why"
                    )
                for one, (start, end) in report.gone.items():
                    notify(
                        f"gone: {report.location}: {one}: offsets {start} to {end - 1} are not in the source, or are "
                        "before --from"
                    )
    return reports


def _said(report: TableReport) -> str:
    """Return the error of a table, with its place if the error does not have it."""
    from kafkafmt.export.errors import error_text

    assert report.error is not None
    text = error_text(report.error)
    return text if report.location in text else f"{report.location}: {text}"


def _as_json(report: TableReport) -> dict[str, Any]:
    return {
        "topic": report.topic,
        "table": report.location,
        "status": "exported" if report.error is None else "failed",
        "records": report.rows,
        "undecoded": report.undecoded,
        "files": report.files,
        "size_in_bytes": report.size_in_bytes,
        "source_bytes": report.source_bytes,
        "partitions": _ranges_as_json(report.ranges),
        "gone": _ranges_as_json(report.gone),
        "error": None if report.error is None else _said(report),
    }


def _ranges_as_json(ranges: Mapping[TopicPartition, OffsetRange]) -> list[dict[str, Any]]:
    return [
        {"topic": one.topic, "partition": one.partition, "from_offset": start, "to_offset": end}
        for one, (start, end) in sorted(ranges.items())
    ]


def _print_reports(reports: Sequence[TableReport], summary: Mapping[str, Any]) -> None:
    rows = [
        (
            report.topic or "all",
            f"{report.rows:,}",
            f"{report.files:,}",
            size_in_words(report.size_in_bytes),
            report.location,
        )
        for report in reports
        if report.error is None
    ]
    if rows:
        print_table(("topic", "records#", "files#", "size#", "table"), rows)
        echo("")
    failed = f", {summary['failed']} failed" if summary["failed"] else ""
    undecoded = f", {in_words(summary['undecoded'], 'payload')} not decoded" if summary["undecoded"] else ""
    echo(
        f"exported {in_words(summary['records'], 'record')} into {in_words(len(rows), 'table')}{undecoded}{failed}: "
        f"{in_words(summary['files'], 'file')} of {size_in_words(summary['size_in_bytes'])} in "
        f"{summary['seconds']:.1f} s"
    )


def _print_previews(scan: Scan, to: Destination, options: ExportOptions, *, as_json: bool) -> int:
    """Print what an export would do to each table. Returns the exit status."""
    from kafkafmt.export.errors import error_text
    from kafkafmt.export.plan import preview_table, sources_of
    from kafkafmt.export.running import FAILURES
    from kafkafmt.storage.locations import without_secrets

    rows, failed, offsets, source_bytes = [], 0, 0, 0
    for topic, part in sources_of(scan, to, options):
        try:
            found = preview_table(topic, part, to, options)
        except FAILURES as error:
            failed += 1
            text = error_text(error)
            if as_json:
                name = topic or without_secrets(to.target)
                print_json({"topic": topic, "table": name, "status": "would fail", "error": text})
            else:
                notify(f"would fail: {text}")
            continue
        count = sum(end - start for start, end in found.ranges.values())
        offsets, source_bytes = offsets + count, source_bytes + found.size_in_bytes
        if as_json:
            print_json(_preview_as_json(found))
        rows.append(
            (
                topic or "all",
                f"{count:,}",
                size_in_words(found.size_in_bytes),
                ", ".join(found.new) or "-",
                found.location,
            )
        )
    if as_json:
        tables = {"tables": len(rows) + failed, "failed": failed}
        print_json({"summary": {**tables, "offsets": offsets, "source_bytes": source_bytes}})
    elif rows:
        print_table(("topic", "offsets#", "source#", "new columns", "table"), rows)
    return 1 if failed else 0


def _preview_as_json(found: TablePreview) -> dict[str, Any]:
    return {
        "topic": found.topic,
        "table": found.location,
        "status": "would export",
        "source_bytes": found.size_in_bytes,
        "partitions": _ranges_as_json(found.ranges),
        "columns": {field.name: str(field.type) for field in found.columns},
        "new_columns": list(found.new),
        "error": None,
    }
