"""`kafkafmt backup`: back up a cluster to a folder of any storage; list, verify and prune backups."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafmt.cli.backup_generations import list_backup, prune_backup, verify_backup
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.mirror_options import MirrorAddressType, running_options, sealing_options
from kafkafmt.cli.options import (
    client_options,
    client_settings,
    cluster_errors,
    json_option,
    log_options,
    on_corrupt_option,
)
from kafkafmt.cli.output import echo, ended_by_signals, in_words, print_json, size_in_words
from kafkafmt.cli.record_options import time_range, time_range_options, topics_option, with_topics
from kafkafmt.cli.values import Folder, Seconds
from kafkafmt.mirror.addresses import Address, ClusterAddress
from kafkafmt.mirror.group_selection import GroupSelection
from kafkafmt.mirror.sealing import Sealing
from kafkafmt.storage import StoragePath
from kafkafmt.storage.keys import KeyRing

if TYPE_CHECKING:
    from kafkafmt.backup import Backup

# Subcommands by name: a first argument of that name is not taken for a cluster.
_SUBCOMMANDS: Mapping[str, click.Command] = {
    "list": list_backup,
    "prune": prune_backup,
    "verify": verify_backup,
}


class _BackupCommand(HelpCommand):
    """The command `backup`, with subcommands."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        found = _SUBCOMMANDS.get(args[0]) if args else None
        if found is not None:
            return found.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    cls=_BackupCommand,
    common="--topics --from --to --follow --groups --key-ring --key-id --compress --source-config-file --spool --json",
    page="backup.md",
)
@click.argument("cluster", metavar="CLUSTER", type=MirrorAddressType())
@click.argument("target", metavar="URI", type=Folder())
@topics_option()
@time_range_options()
@click.option(
    "--groups",
    metavar="GROUP[,GROUP|REGEX]",
    help="The consumer groups whose committed offsets are backed up.  [default: all but those of mirrors]",
)
@click.option(
    "--follow/--once",
    "follows",
    default=False,
    help="Continue after the ends that the logs have at the start, or stop there.  [default: once]",
)
@click.option(
    "--generation-age",
    type=Seconds(),
    default=300.0,
    help="How often a generation is written before the end.",
)
@sealing_options()
@click.option(
    "--key-ring",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of keys. With --key-id: encrypt all segments by AES-256-GCM.",
)
@click.option("--key-id", metavar="ID", help="The key of --key-ring that wraps the data keys of segments.")
@click.option(
    "--compress",
    "compresses",
    is_flag=True,
    help="Compress segments whose batches are not compressed, by zstd in chunks.",
)
@on_corrupt_option(
    "Damage at the source stops its partition, with exit status 1 (fail), or is left out and reported (skip)."
)
@client_options(
    "source",
    "A setting of the cluster's clients, under Kafka's name or kafka-python's, as security.protocol=SASL_SSL."
    " May be repeated.",
    "A file of settings of Kafka's clients, one KEY=VALUE a line, as for passwords.",
)
@running_options("How often it is checked whether a generation is due.")
@log_options()
@json_option("Print the summary as one JSON object.")
def backup(
    cluster: Address,
    target: StoragePath,
    topics: tuple[str, ...] | None,
    from_time: datetime | None,
    to_time: datetime | None,
    groups: str | None,
    segment_bytes: int,
    segment_age: float,
    spool: Path | None,
    spool_bytes: int,
    key_ring: Path | None,
    source_config: tuple[tuple[str, str], ...],
    source_config_file: Path | None,
    log_format: Any,
    log_level: Any,
    as_json: bool,
    **settings: Any,
) -> int:
    """Back up a cluster to a folder or an object store.

    Batches are stored as they are. A run stores what is new since the last generation, up to the ends that the logs
    have at its start.

    \b
    kafkafmt backup kafka://east:9092 s3://bucket/backups/east
    kafkafmt backup kafka://east:9092 /backups/east --topics orders --follow
    kafkafmt backup list|verify|prune URI

    A generation has the topics with configurations, partition counts and ids, their segments with checksums, leader
    epochs, open transactions, and the committed offsets of consumer groups. It is written last: after a kill the last
    generation is whole, and the next run continues there. Topics that are not selected stay as they are.

    Read a backup in place by its URI with backup+ before it, as backup+s3://bucket/backups/east.

    SIGTERM or SIGINT ends the backup with a generation of what was read; a second one ends it at once.
    Requires pip install 'kafkafmt[backup]'.

    Exit status: 0; 1 if a partition was stopped, did not reach its end, or if offsets were deleted before they were
    backed up; 2 if the backup could not start or continue.
    """
    with cluster_errors("backup", extra="backup"):
        from kafkafmt.backup import BackupOptions, open_backup
        from kafkafmt.mirror.progress import Progress
        from kafkafmt.server.structured_logging import configure_logs
        from kafkafmt.server.yielding import frozen_start

        options = BackupOptions(
            _selected(cluster, topics),
            target,
            times=time_range(from_time, to_time),
            groups=GroupSelection() if groups is None else GroupSelection.parsed(groups),
            sealing=Sealing(segment_bytes, segment_age, spool, spool_bytes),
            key_ring=None if key_ring is None else KeyRing.read(key_ring),
            source_config=client_settings(source_config, source_config_file),
            **settings,
        )
        with ExitStack() as stack:
            configure_logs(log_format, log_level)
            if log_level == "info":
                logging.getLogger("kafka").setLevel(logging.WARNING)
                logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)
            running = stack.enter_context(open_backup(options, Progress()))
            stack.enter_context(ended_by_signals(running.end))
            stack.enter_context(frozen_start())
            try:
                running.run()
            finally:
                _print_summary(running, as_json=as_json)
    ended = running.statistics
    return 1 if ended.failures or ended.unreached or ended.gone else 0


def _selected(cluster: Address, topics: tuple[str, ...] | None) -> ClusterAddress:
    """Return the address with the topics of `--topics`."""
    if not isinstance(cluster, ClusterAddress):
        raise click.UsageError(f"{cluster}: expected kafka://HOST:PORT[,HOST:PORT]: a backup is of a cluster")
    return with_topics(cluster, topics)


def _print_summary(running: Backup, *, as_json: bool) -> None:
    statistics = running.statistics
    summary = statistics.as_dict()
    if as_json:
        names = ("batches", "records", "bytes", "skipped", "stopped", "unreached", "gone", "lag", "seconds")
        print_json({"generations": running.generations, **{name: summary[name] for name in names}})
        return
    total = statistics.total
    parts = [
        f"{in_words(total.batches, 'batch')}, {in_words(total.records, 'record')}, {size_in_words(total.bytes)}"
        f" in {summary['seconds']:.1f} s"
    ]
    if statistics.failures:  # the log names partition, offset and reason
        parts.append(f"stopped: {in_words(len(statistics.failures), 'partition')}")
    if statistics.unreached:
        parts.append(f"not reached: {in_words(len(statistics.unreached), 'partition')}")
    if statistics.gone:
        parts.append(f"deleted before they were backed up: {in_words(statistics.gone_offsets, 'offset')}")
    if statistics.skipped:
        parts.append(f"skipped: {in_words(len(statistics.skipped), 'damaged range')}")
    parts.append(f"generation {running.generations[-1]}" if running.generations else "no generation")
    echo("; ".join(parts))
