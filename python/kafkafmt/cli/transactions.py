"""`kafkafmt transactions`: show open and hanging transactions, out of `__transaction_state` and the logs beside it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.internal_topics import DamageReport, notify_unknown
from kafkafmt.cli.options import key_ring_option
from kafkafmt.cli.output import notify, time_in_words
from kafkafmt.cli.record_options import topics_option
from kafkafmt.cli.row_output import RowOutput, row_output_options
from kafkafmt.cli.values import Folder, Time
from kafkafmt.log.topics import topic_matches
from kafkafmt.storage import StoragePath

# Tables leave these fields out.
_LONG_FIELDS = (
    "previous_producer_id",
    "next_producer_id",
    "next_producer_epoch",
    "client_transaction_version",
)


@click.command(cls=HelpCommand, common="--all --hanging --topics --at --json --parquet", page="forensics.md")
@click.argument("directories", nargs=-1, required=True, metavar="DIR...", type=Folder(must_exist=True))
@click.option(
    "--all", "shows_all", is_flag=True, help="Show all transactional ids, also those without a transaction."
)
@click.option("--hanging", is_flag=True, help="Show hanging transactions only.")
@topics_option(default="all")
@click.option(
    "--at",
    type=Time(),
    help="How long transactions are open at this time.  [default: the last write of a transaction]",
)
@row_output_options()
@key_ring_option()
def transactions(
    directories: tuple[StoragePath, ...],
    shows_all: bool,
    hanging: bool,
    topics: tuple[str, ...] | None,
    at: datetime | None,
    as_json: bool,
    parquet: Path | None,
    force: bool,
) -> int:
    """Show open transactions, and which of them hang.

    DIR is a log directory of a broker or a copy of one, or the folder of a partition of __transaction_state; a path or
    a URI. Give all log directories of a broker, or of several brokers, together. Each partition is read once, from its
    longest log.

    \b
    kafkafmt transactions /var/lib/kafka
    kafkafmt transactions /var/lib/kafka --hanging --at 2026-01-31T12:00:00Z
    kafkafmt transactions /disk1/kafka /disk2/kafka --all --json

    A row is an open transaction in one partition. first_offset is its first record in the log: committed readers wait
    there. It is missing if only the coordinator knows the partition.

    A transaction hangs if no coordinator will end it: no transactional id has its producer id, the coordinator has no
    transaction of this producer and partition, or it is open for longer than its timeout. If partitions of
    __transaction_state are missing in DIR, is_hanging stays empty for producers that are not found.

    open_ms relates to --at, or else to the newest timestamp of the transactions' records and producers. So a copy is
    judged as of its last write. A table leaves out some fields: --json and --parquet have all.

    Exit status: 0; 1 if damage was found, which is skipped; 2 for wrong arguments.
    """
    from kafkafmt.log.internal_topics.transactions import TRANSACTION_FIELDS
    from kafkafmt.log.internal_topics.transactions import transactions as read_transactions

    if shows_all and hanging:
        raise click.UsageError("--all and --hanging: choose one")
    output, damage = RowOutput.of(as_json, parquet, force), DamageReport()
    found = read_transactions(directories, now=at, on_damage=damage.add)
    for note in found.notes:
        notify(note)
    notify_unknown(found.unknown)
    rows = [
        row
        for row in found.rows()
        if (shows_all or (row["is_hanging"] if hanging else row["topic"] is not None))
        and (topics is None or (row["topic"] is not None and topic_matches(row["topic"], topics)))
    ]
    title = f"at {time_in_words(found.now)}" if rows and found.now >= 0 else None
    fields = [one for one in TRANSACTION_FIELDS if not output.is_table or one.name not in _LONG_FIELDS]
    output.write(fields, rows, noun="transaction", title=title)
    return damage.status
