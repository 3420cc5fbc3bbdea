"""`kafkafmt restore`: restore topics and the offsets of groups from a backup into a cluster."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafmt._util.names import some_names
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.mirror_options import MirrorAddressType, running_options
from kafkafmt.cli.options import (
    client_options,
    client_settings,
    cluster_errors,
    json_option,
    log_options,
    on_corrupt_option,
)
from kafkafmt.cli.output import echo, ended_by_signals, in_words, notify, print_json, size_in_words
from kafkafmt.cli.record_options import time_range, time_range_options, topics_option
from kafkafmt.cli.values import PathText
from kafkafmt.mirror.addresses import Address, ClusterAddress
from kafkafmt.mirror.group_selection import GroupSelection
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.topic_settings import TopicSettings

if TYPE_CHECKING:
    from kafkafmt.restore import Restore

_MOST_REPLICAS = 2**15 - 1
# How brokers delete records by each property of retention.
_DELETED_BY = {"retention.ms": "age", "retention.bytes": "size"}


@click.command(
    cls=HelpCommand,
    common="--topics --rename --from --to --dry-run --target-config-file --json",
    page="restore.md",
)
@click.argument("source", metavar="URI", type=PathText())
@click.argument("cluster", metavar="CLUSTER", type=MirrorAddressType())
@topics_option()
@click.option(
    "--rename",
    "renames",
    multiple=True,
    metavar="OLD=NEW",
    help="Another name for a topic. OLD may be a regular expression, and NEW refer to its groups, as in"
    r" '(.*)=east.\1'. May be repeated.",
)
@time_range_options()
@click.option(
    "--generation",
    metavar="NAME|NUMBER|TIME",
    help="The generation of the backup, or the last one at a time.  [default: the last one]",
)
@click.option(
    "--key-ring",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The keys of an encrypted backup.",
)
@click.option(
    "--groups",
    metavar="GROUP[,GROUP|REGEX]",
    help="The consumer groups whose offsets are restored.  [default: all but those of mirrors]",
)
@click.option("--no-groups", "has_no_groups", is_flag=True, help="Restore no offsets of consumer groups.")
@click.option(
    "--replication-factor",
    type=click.IntRange(1, _MOST_REPLICAS),
    help="The replicas of new topics.  [default: that of CLUSTER]",
)
@click.option(
    "--topic-config",
    multiple=True,
    metavar="[TOPIC:]NAME=VALUE",
    help="A property of all topics, or of one of them by its new name, in place of the backup's. May be repeated.",
)
@click.option(
    "--set-retention",
    "sets_retention",
    is_flag=True,
    help="Set the backup's retention at the end, too. Brokers may then delete old records at once.",
)
@click.option(
    "--no-transactions",
    "has_no_transactions",
    is_flag=True,
    help="Send no transactions, for a cluster without them. After a kill records may be there twice.",
)
@click.option(
    "--offset-map",
    default=MirrorOptions.offset_map,
    metavar="PATH|topic:NAME",
    help="The topic at CLUSTER, or with --no-transactions a file, for the map of old offsets to new ones.",
)
@click.option(
    "--dry-run", "is_dry", is_flag=True, help="Check all, print what would be restored, and change nothing."
)
@on_corrupt_option(
    "Damage in the backup stops its partition, with exit status 1 (fail), or is left out and reported (skip)."
)
@client_options(
    "target",
    "A setting of the cluster's clients, under Kafka's name or kafka-python's, as security.protocol=SASL_SSL."
    " May be repeated.",
    "A file of settings of Kafka's clients, one KEY=VALUE a line, as for passwords.",
)
@running_options("How often a transaction with records and the offset map is committed.")
@log_options()
@json_option("Print the summary as one JSON object.")
def restore(
    source: str,
    cluster: Address,
    from_time: datetime | None,
    to_time: datetime | None,
    groups: str | None,
    has_no_groups: bool,
    replication_factor: int | None,
    topic_config: tuple[str, ...],
    has_no_transactions: bool,
    is_dry: bool,
    target_config: tuple[tuple[str, str], ...],
    target_config_file: Path | None,
    log_format: Any,
    log_level: Any,
    as_json: bool,
    **settings: Any,
) -> int:
    """Restore topics and groups of a backup into a cluster.

    \b
    kafkafmt restore s3://bucket/backups/east kafka://new:9092
    kafkafmt restore /backups/east kafka://new:9092 --to 2026-01-31T12:00:00Z
    kafkafmt restore /backups/east kafka://new:9092 --rename '(.*)=old.\\1'

    Topics are created with the partitions and the configuration of the backup. Batches are sent as they are, with
    timestamps, keys and headers. Records get new offsets without gaps between those of a transaction, and the committed
    offsets of groups are translated to them: a group continues at the same record. Records of transactions that were
    aborted, or still open at the end, are left out.

    A restore refuses topics that have records, unless it has written them itself: a restore that was killed continues
    where it was, and each record is restored once.

    Restored topics delete no records by age or size, whatever the backup's retention: the summary names the properties
    to set afterwards, or --set-retention sets them.

    URI may also be a log directory, or tiered storage (tiered+URI). The groups are then those of its
    __consumer_offsets. Requires pip install 'kafkafmt[backup]'.

    Exit status: 0; 1 if a partition was stopped or did not reach its end, if a group has members, or if --dry-run finds
    that objects are missing; 2 if the restore could not start or continue.
    """
    if has_no_groups and groups is not None:
        raise click.UsageError("--groups contradicts --no-groups")
    if not isinstance(cluster, ClusterAddress):
        raise click.UsageError(
            f"{cluster}: expected kafka://HOST:PORT[,HOST:PORT]: a restore is into a cluster"
        )
    with cluster_errors("restore", extra="backup"):
        from kafkafmt.mirror.progress import Progress
        from kafkafmt.restore import RestoreOptions, open_restore
        from kafkafmt.server.structured_logging import configure_logs
        from kafkafmt.server.yielding import frozen_start

        selection = GroupSelection() if groups is None else GroupSelection.parsed(groups)
        options = RestoreOptions(
            source,
            cluster,
            times=time_range(from_time, to_time),
            groups=None if has_no_groups else selection,
            replication_factor=replication_factor or -1,
            topic_settings=TopicSettings.parsed(topic_config),
            is_exactly_once=not has_no_transactions,
            target_config=client_settings(target_config, target_config_file),
            **settings,
        )
        with ExitStack() as stack:
            configure_logs(log_format, log_level)
            if log_level == "info":
                logging.getLogger("kafka").setLevel(logging.WARNING)
                logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)
            running = stack.enter_context(open_restore(options))
            if is_dry:
                running.check()
                findings = _quick_findings(running)
                _print_plan(running, findings, as_json=as_json)
                return 1 if findings else 0
            stack.enter_context(ended_by_signals(running.end))
            stack.enter_context(frozen_start())
            try:
                running.run(Progress())
            finally:
                _print_summary(running, as_json=as_json)
    ended = running.statistics
    assert ended is not None
    is_incomplete = bool(running.incomplete_topics or ended.gone)
    return 1 if is_incomplete or running.restored_groups.refused else 0


def _quick_findings(running: Restore) -> list[str]:
    """Return the objects of the restored topics that are missing or have another size, by a listing of the backup."""
    from kafkafmt.backup import Verification

    origin = running.origin
    if origin.backup is None:
        return []
    topics = {plan.topic for plan in running.topics}
    checks = Verification(origin.backup, origin.generation, is_quick=True).run()
    return [f"{check.path}: {line}" for check in checks if check.topic in topics for line in check.findings]


def _print_plan(running: Restore, findings: list[str], *, as_json: bool) -> None:
    plan = running.plan_as_dict()
    for line in findings:
        notify(f"finding: {line}")
    if as_json:
        print_json({**plan, "findings": findings})
        return
    for topic in running.topics:
        bounds = [one for partition, one in running.bounds().items() if partition.topic == topic.topic]
        offsets = sum(end - start for start, end in bounds)
        state = "exists" if topic.is_there else "is created"
        echo(
            f"{topic.topic} -> {topic.target} ({state}): {in_words(topic.partitions, 'partition')}, "
            f"{in_words(offsets, 'offset')}"
        )
    _notify_refused(running)
    echo(
        f"{in_words(len(running.topics), 'topic')}, {in_words(len(running.groups), 'group')}: nothing changed"
    )


def _notify_refused(running: Restore) -> None:
    for topic in running.topics:
        for name, reason in topic.refused.items():
            if name in _DELETED_BY and topic.has_retention:
                notify(
                    f"topic {topic.target} gets {name}=-1 and deletes no records by {_DELETED_BY[name]}: brokers "
                    f"refuse the backup's value: {reason}; --topic-config {topic.target}:{name}=VALUE sets another, "
                    f"and so does kafka-configs.sh --alter --topic {topic.target} --add-config {name}=VALUE afterwards"
                )
            else:
                notify(f"topic {topic.target} is without {name}: {reason}")


def _alteration(kept: Mapping[str, str | None]) -> str:
    """Return the options of kafka-configs.sh that set properties, or reset those that are None.

    >>> _alteration({"retention.ms": "3600000", "retention.bytes": None})
    '--add-config retention.ms=3600000 --delete-config retention.bytes'
    """
    added = ",".join(f"{name}={value}" for name, value in kept.items() if value is not None)
    deleted = ",".join(name for name, value in kept.items() if value is None)
    parts = (f"--add-config {added}" if added else "", f"--delete-config {deleted}" if deleted else "")
    return " ".join(filter(None, parts))


def _print_summary(running: Restore, *, as_json: bool) -> None:
    statistics, groups = running.statistics, running.restored_groups
    if statistics is None:
        return
    summary = statistics.as_dict()
    if as_json:
        names = (
            "batches",
            "records",
            "bytes",
            "possibly_doubled",
            "skipped",
            "stopped",
            "unreached",
            "lag",
            "seconds",
        )
        print_json(
            {
                **{name: summary[name] for name in names},
                "topics": [topic.as_dict() for topic in running.topics],
                "incomplete_topics": running.incomplete_topics,
                "kept_retention": running.kept_retention,
                "groups": groups.as_dict(),
            }
        )
        return
    total = statistics.total
    parts = [
        f"{in_words(total.batches, 'batch')}, {in_words(total.records, 'record')}, {size_in_words(total.bytes)}"
        f" in {summary['seconds']:.1f} s",
        f"{in_words(len(groups.committed), 'group')}",
    ]
    if running.incomplete_topics:  # the log names partition, offset and reason
        parts.append(f"incomplete: {in_words(len(running.incomplete_topics), 'topic')}")
    if statistics.skipped:
        parts.append(f"skipped: {in_words(len(statistics.skipped), 'damaged range')}")
    if statistics.possibly_doubled:
        parts.append(f"possibly doubled: {in_words(statistics.possibly_doubled, 'record')}")
    echo("restored " + "; ".join(parts))
    _notify_refused(running)
    topics: dict[str, list[str]] = {}  # by what deletes their records as before
    for target, kept in running.kept_retention.items():
        topics.setdefault(_alteration(kept), []).append(target)
    for alteration, targets in topics.items():
        notify(
            f"no records are deleted of {in_words(len(targets), 'topic')}: {some_names(targets)}; kafka-configs.sh "
            f"--alter --topic NAME {alteration} sets the retention of the backup, and so does --set-retention"
        )
    for group, count in groups.without_partition.items():
        notify(
            f"group {group}: left out {in_words(count, 'offset')} in partitions that its restored topics lack"
        )
    for group in groups.refused:
        notify(f"group {group} has members at the target: its offsets were not restored")
