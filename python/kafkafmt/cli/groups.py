"""`kafkafmt groups`: show groups, their members and their committed offsets, out of `__consumer_offsets`."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.internal_topics import DamageReport, notify_unknown
from kafkafmt.cli.options import key_ring_option
from kafkafmt.cli.output import notify
from kafkafmt.cli.record_options import topics_option
from kafkafmt.cli.row_output import RowOutput, row_output_options
from kafkafmt.cli.values import Folder, Time
from kafkafmt.columns.fields import Field
from kafkafmt.log.topics import topic_matches
from kafkafmt.storage import StoragePath

# Tables leave these fields out.
_LONG_FIELDS = (
    "leader_epoch",
    "metadata",
    "topic_id",
    "instance_id",
    "protocol_type",
    "rack_id",
    "state_timestamp_ms",
)


@click.command(
    cls=HelpCommand, common="--group --topics --members --at --json --parquet", page="forensics.md"
)
@click.argument("directories", nargs=-1, required=True, metavar="DIR...", type=Folder(must_exist=True))
@click.option(
    "--group", "patterns", multiple=True, metavar="PATTERN", help="Only groups that match, as 'billing-*'."
)
@topics_option(default="all")
@click.option("--members", is_flag=True, help="Show members instead of offsets.")
@click.option("--at", type=Time(), help="Show the state at this time.  [default: the end of the log]")
@row_output_options()
@key_ring_option()
def groups(
    directories: tuple[StoragePath, ...],
    patterns: tuple[str, ...],
    topics: tuple[str, ...] | None,
    members: bool,
    at: datetime | None,
    as_json: bool,
    parquet: Path | None,
    force: bool,
) -> int:
    """Show groups: committed offsets and lag, or members.

    DIR is a log directory of a broker or a copy of one, or the folder of a partition of __consumer_offsets; a path or a
    URI. Give all log directories of a broker, or of several brokers, together. Each partition is read once, from its
    longest log.

    \b
    kafkafmt groups /var/lib/kafka
    kafkafmt groups /var/lib/kafka --group billing --members
    kafkafmt groups /disk1/kafka /disk2/kafka --json
    kafkafmt groups /backup --at 2026-01-31T12:00:00Z

    The lag is the distance from the committed offset to the end of the partition's log. It is only known for logs in
    DIR. A pending offset is in a transaction that is open: pending_producer_id is its producer. A partition that a
    member owns is shown, too, if no offset was committed for it.

    With --at, records up to this time count, and the lag is left out. Compaction has removed older records of each
    key. So an earlier state lacks what was written again since.

    The groups of a backup, backup+URI, are those of its generation: committed offsets only, without members.

    States are those that a broker would have after it has loaded the topic. A table leaves out long fields: --json and
    --parquet have all.

    Exit status: 0; 1 if damage was found, which is skipped; 2 for wrong arguments.
    """
    from kafkafmt.log.internal_topics.backed_up import backed_up_offsets
    from kafkafmt.log.internal_topics.offsets import MEMBER_FIELDS, OFFSET_FIELDS, consumer_offsets
    from kafkafmt.log.internal_topics.sources import LogSources

    if members and topics is not None:
        raise click.UsageError("--topics is for offsets: --members shows members")
    output, damage = RowOutput.of(as_json, parquet, force), DamageReport()
    sources = LogSources(directories, on_damage=damage.add)
    found = backed_up_offsets(sources.paths)
    if found is None:
        found = consumer_offsets(sources, timestamp=at, on_damage=damage.add)
    elif at is not None:
        raise click.UsageError(
            "--at: a backup has the groups of a generation: choose one by ?generation=TIME"
        )
    for note in found.notes:
        notify(note)
    notify_unknown(found.unknown)
    if members:
        rows: Iterable[Mapping[str, Any]] = found.member_rows()
        output.write(_shown(MEMBER_FIELDS, output), _of_groups(rows, patterns), noun="member")
    else:
        ends = {} if at is not None else sources.end_offsets(found.topic_partitions())
        rows = _of_topics(found.offset_rows(ends), topics)
        output.write(_shown(OFFSET_FIELDS, output), _of_groups(rows, patterns), noun="offset")
    return damage.status


def _shown(fields: Sequence[Field], output: RowOutput) -> list[Field]:
    return [field for field in fields if not output.is_table or field.name not in _LONG_FIELDS]


def _of_groups(rows: Iterable[Mapping[str, Any]], patterns: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    return (
        row
        for row in rows
        if not patterns or any(fnmatch.fnmatchcase(row["group_id"], pattern) for pattern in patterns)
    )


def _of_topics(
    rows: Iterable[Mapping[str, Any]], topics: tuple[str, ...] | None
) -> Iterator[Mapping[str, Any]]:
    return (
        row
        for row in rows
        if topics is None or (row["topic"] is not None and topic_matches(row["topic"], topics))
    )
