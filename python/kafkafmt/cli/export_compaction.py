"""`kafkafmt export compact`: join the small files of a table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from kafkafmt._util.sizes import GIB, KIB
from kafkafmt.cli.export_options import destination, destination_options
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.options import json_option, needs
from kafkafmt.cli.output import echo, in_words, print_json
from kafkafmt.cli.values import PathText, Size, complete_folders


@click.command(
    "compact", cls=HelpCommand, common="--format --catalog --target-file-size --json", page="tables.md"
)
@click.argument("table", metavar="TABLE", type=PathText(), shell_complete=complete_folders)
@destination_options("delta", "iceberg")
@click.option(
    "--target-file-size",
    "target_file_bytes",
    type=Size(least=64 * KIB, most=64 * GIB),
    default="128M",
    help="Join small files, up to this size. Of iceberg: those that are smaller than three quarters of it.",
)
@json_option("Print the summary as one JSON object.")
def compact_table(
    table: str,
    table_format: str,
    catalog: str | None,
    destination_config: tuple[tuple[str, str], ...],
    destination_config_file: Path | None,
    target_file_bytes: int,
    as_json: bool,
) -> int:
    """Join the small files of a table to larger ones.

    TABLE is the folder or URI of a Delta table, or the name of an Iceberg table: namespace.topic,
    with a topic that has dots in backquotes.

    \b
    kafkafmt export compact lake/orders --format delta
    kafkafmt export compact raw.orders --format iceberg --catalog prod

    Rows and offsets stay as they are. Exports and queries may run meanwhile. The old files stay for earlier versions of
    the table, until Delta's vacuum or the expiry of Iceberg's snapshots removes them.

    Exit status: 0; 2 if there is no table, or another compaction is running.
    """
    with needs("a compaction", "lake"):
        from kafkafmt.export import compact

        to = destination(
            table_format, table, catalog, destination_config, destination_config_file, one_table=True
        )
        report = compact(to, target_file_bytes=target_file_bytes)
    if as_json:
        print_json(asdict(report))
    else:
        echo(f"{report.location}: {in_words(report.files_removed, 'file')} joined to {report.files_added:,}")
    return 0
