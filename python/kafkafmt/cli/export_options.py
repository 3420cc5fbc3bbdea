"""Options that name the tables of `kafkafmt export` and `kafkafmt export compact`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafmt.cli.options import Decorator, client_options, client_settings, options

if TYPE_CHECKING:
    from kafkafmt.export import Destination


def destination_options(*formats: str, default: str | None = None) -> Decorator:
    """Return a decorator that adds `--format`, `--catalog` and `--destination-config`. `destination` takes the values.

    formats: of `kafkafmt.export.formats`. default: without one the option is required.
    """
    return options(
        click.option(
            "--format",
            "table_format",
            type=click.Choice(formats),
            default=default,
            required=default is None,
            help="The format of the tables.",
        ),
        click.option(
            "--catalog",
            metavar="NAME",
            help="For iceberg: the catalog in the configuration of pyiceberg.  [default: its default]",
        ),
        client_options(
            "destination",
            "A property of the Iceberg catalog, as uri=..., or a storage option of Delta. May be repeated.",
            "A file of such properties, one a line, as for passwords.",
        ),
    )


def destination(
    table_format: str,
    target: str,
    catalog: str | None,
    config: tuple[tuple[str, str], ...],
    config_file: Path | None,
    *,
    one_table: bool,
) -> Destination:
    """Return the destination of a command line. Raises click.UsageError for options that the format does not have."""
    from kafkafmt.export import Destination

    settings = client_settings(config, config_file)
    if catalog is not None and table_format != "iceberg":
        raise click.UsageError("--catalog is for --format iceberg")
    if settings and table_format == "parquet":
        raise click.UsageError("--destination-config is for --format delta and iceberg")
    return Destination(target, table_format, settings, one_table, catalog)
