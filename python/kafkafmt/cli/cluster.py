"""`kafkafmt cluster`: show the metadata of a KRaft cluster, out of its log or a snapshot of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.output import echo, notify
from kafkafmt.cli.row_output import RowOutput, row_output_options
from kafkafmt.cli.values import NEEDS_PYARROW, OffsetOrTime, PathText, complete_files
from kafkafmt.log.internal_topics.metadata.rows import KINDS, fields_of
from kafkafmt.storage.locations import without_secrets

if TYPE_CHECKING:
    from kafkafmt.log import ClusterMetadata

# Tables leave these out unless they are selected: there may be many of them.
_LONG_KINDS = ("partition",)


@click.command(cls=HelpCommand, common="--kind --at --json --parquet --force", page="forensics.md")
@click.argument("source", metavar="PATH", type=PathText(), shell_complete=complete_files)
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(tuple(KINDS)),
    multiple=True,
    metavar="KIND",
    help="Only entities of this kind, as topic; repeatable.  [default: all; tables: all but partition]",
)
@click.option(
    "--at",
    type=OffsetOrTime(),
    metavar="OFFSET|TIME",
    help="The state before this offset, or at this time in ISO 8601.  [default: the end of the log]",
)
@row_output_options()
def cluster(
    source: str,
    kinds: tuple[str, ...],
    at: int | datetime | None,
    as_json: bool,
    parquet: Path | None,
    force: bool,
) -> None:
    """Show topics, ACLs, brokers and more of a KRaft cluster.

    They are in the log of its metadata, with configurations, quotas, users and features. PATH is the folder
    __cluster_metadata-0, a log directory that has it, or a snapshot (.checkpoint); a path or a URI. Secrets are never
    shown.

    \b
    kafkafmt cluster /var/lib/kafka
    kafkafmt cluster /var/lib/kafka --kind topic --kind config --json
    kafkafmt cluster /var/lib/kafka --at 2026-01-31T12:00:00Z

    Each JSON line is an entity. It has its kind, its name, and the fields of its kind. A Parquet file has a row for
    each entity, and the fields of all kinds; those of other kinds are null.

    Kinds: cluster, feature, broker, controller, voter, topic, partition, config, quota, acl, user (SCRAM), token
    (delegation tokens), producer-ids, unknown (records of types that this release does not know).

    The log of a quorum with several voters may end with records that are not committed.

    Exit status: 0; 1 if the log is damaged; 2 for wrong arguments.
    """
    output = RowOutput.of(as_json, parquet, force)
    found = _read(source, at)
    for warning in found.warnings:
        notify(warning)
    chosen = kinds or tuple(KINDS)
    if output.parquet is not None:
        output.write(fields_of(chosen), found.rows(*chosen), noun="row")
    elif output.as_json:
        for kind in chosen:
            output.write(fields_of([kind]), found.rows(kind), noun=kind)
    else:
        _print_tables(output, found, kinds or [kind for kind in chosen if kind not in _LONG_KINDS])


def _read(source: str, at: int | datetime | None) -> ClusterMetadata:
    from kafkafmt.log import cluster_metadata  # takes 80 ms

    try:
        if isinstance(at, int):
            return cluster_metadata(source, end_offset=at)
        return cluster_metadata(source, timestamp=at)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except ImportError:
        raise click.ClickException(f"{without_secrets(source)}: {NEEDS_PYARROW}") from None


def _print_tables(output: RowOutput, found: ClusterMetadata, kinds: Sequence[str]) -> None:
    is_first = True
    for kind in kinds:
        rows = list(found.rows(kind))
        if not rows:
            continue
        if not is_first:
            echo()
        is_first = False
        fields = [field for field in fields_of([kind]) if field.name != "kind"]
        output.write(fields, rows, noun=kind, title=KINDS[kind].title)
    if is_first:
        notify(f"no {' and no '.join(kinds)}")
