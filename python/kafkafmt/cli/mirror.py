"""`kafkafmt mirror`: copy batches from a cluster or a log directory to another, as they are (KIP-712)."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import click
from click.core import ParameterSource

from kafkafmt._util.addresses import host_and_port
from kafkafmt._util.sizes import KIB, MIB, size_text
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.mirror_offsets import offsets
from kafkafmt.cli.mirror_options import (
    OFFSETS,
    MetricsAddressType,
    MirrorAddressType,
    running_options,
    sealing_options,
    shared_options,
    sync_options,
    sync_settings,
)
from kafkafmt.cli.options import (
    client_settings,
    cluster_errors,
    codec_option,
    from_segment_start_option,
    isolation_option,
    json_option,
    key_ring_option,
    log_options,
    on_corrupt_option,
)
from kafkafmt.cli.output import (
    echo,
    ended_by_signals,
    in_words,
    notify,
    print_json,
    progress_bar,
    size_in_words,
)
from kafkafmt.cli.record_options import time_range, time_range_options, topics_option, with_topics
from kafkafmt.cli.values import Seconds, Size
from kafkafmt.mirror.addresses import Address as MirrorAddress
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.options import DEFAULT_BATCH_BYTES, Beginning, MirrorOptions
from kafkafmt.mirror.sealing import Sealing
from kafkafmt.mirror.topic_names import TopicNames
from kafkafmt.mirror.topic_settings import TopicSettings
from kafkafmt.storage import RemotePath

if TYPE_CHECKING:
    from rich.progress import Progress as ProgressBar

    from kafkafmt.mirror.loop import Report
    from kafkafmt.mirror.statistics import Statistics

# A client that reads metrics must send its request within this time.
_METRICS_SECONDS = 60.0
_BAR_SECONDS = 0.2


class _MirrorCommand(HelpCommand):
    """The command `mirror`, with the subcommand `offsets`: a first argument `offsets` is not taken for a folder."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == [OFFSETS]:
            return offsets.make_context(f"{info_name} {OFFSETS}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    cls=_MirrorCommand,
    common="--once --topics --from --to --source-config-file --target-config-file --memory --json",
    page="mirror.md",
)
@click.argument("source", metavar="SRC", type=MirrorAddressType(completes_offsets=True))
@click.argument("target", metavar="DST", type=MirrorAddressType())
@click.option(
    "--adaptive",
    "way",
    flag_value="adaptive",
    help="Combine small batches, and copy the others as they are.  [default between clusters, without --handler]",
)
@click.option(
    "--use-raw-bytes",
    "way",
    flag_value="raw",
    help="Copy all batches as they are.  [default otherwise]",
)
@click.option(
    "--deep", "way", flag_value="deep", help="Decode all batches, and make new ones of their records."
)
@click.option(
    "--batch-size",
    type=Size(least=KIB, most=32 * MIB),
    help="The most bytes of a batch that is combined, or with --deep sent to a cluster. A batch is small below 1/4 of"
    " it; with snappy or lz4 below 1/32, with zstd below 1/64, with gzip below 1/128."
    f"  [default: {size_text(DEFAULT_BATCH_BYTES)}]",
)
@click.option("--group", help="The consumer group at the source.  [default: derived from SRC and DST]")
@click.option(
    "--once/--follow",
    "is_once",
    default=None,
    help="Stop at the current end of the source, or wait for more.  [default: follow a cluster, not a folder]",
)
@topics_option()
@time_range_options(
    *get_args(Beginning),
    default=" This is for partitions that were never mirrored to DST. committed: at the group's committed offset, or"
    " else earliest.  [default: earliest]",
)
@isolation_option(
    "Leave out records of open and aborted transactions (read_committed), or keep them."
    "  [default: leave out into a cluster; keep, with their markers, into a folder]",
)
@on_corrupt_option(
    "Damage at the source stops its partition, with exit status 1 (fail), or is left out and reported (skip).",
    earlier="stop",
)
@from_segment_start_option()
@click.option(
    "--restart-recreated",
    "restarts_recreated",
    is_flag=True,
    help="Mirror a topic that was deleted and created again from its start. Its old log in a folder is renamed; in"
    " a cluster the new records are appended to the old.",
)
@click.option(
    "--append",
    "appends",
    is_flag=True,
    help="Append to records at DST that the offset map does not know. Records may then be there twice.",
)
@click.option(
    "--exactly-once",
    "is_exactly_once",
    is_flag=True,
    help="Send batches to a cluster in transactions, with the offset map: read_committed consumers see each record"
    " exactly once.",
)
@click.option(
    "--handler",
    metavar="MODULE:CALLABLE",
    help="Called with each batch, or with --deep each record, to change or drop it.",
)
@codec_option("The codec of the batches that --deep makes.")
@click.option(
    "--repartition",
    "repartitions",
    is_flag=True,
    help="Choose partitions by key, with --deep, for a cluster.",
)
@click.option(
    "--topic-config",
    multiple=True,
    metavar="[TOPIC:]NAME=VALUE",
    help="A property of all topics created at DST, or of one of them by its name there, in place of SRC's. May be"
    " repeated.",
)
@shared_options()
@sync_options()
@running_options(
    "How often files are flushed, the offset map is saved, and offsets are committed.",
    progress="How often progress is logged. 0: never. Without it, --once on a terminal shows a progress bar instead.",
)
@click.option(
    "--metrics-port",
    "metrics",
    type=MetricsAddressType(),
    metavar="[HOST:]PORT",
    help="Serve Prometheus metrics at this address.",
)
@click.option(
    "--shutdown-timeout",
    type=Seconds(),
    default=MirrorOptions.shutdown_timeout,
    help="How long to wait at the end for batches in flight.",
)
@sealing_options()
@log_options()
@json_option("Print the summary as one JSON object.")
@key_ring_option()
def mirror(
    source: MirrorAddress,
    target: MirrorAddress,
    way: str | None,
    is_once: bool | None,
    topics: tuple[str, ...] | None,
    from_time: datetime | str | None,
    to_time: datetime | None,
    handler: str | None,
    topic_config: tuple[str, ...],
    renames: tuple[str, ...],
    topic_prefix: str,
    syncs_groups: bool,
    groups: str | None,
    heartbeats: str | None,
    source_config: tuple[tuple[str, str], ...],
    source_config_file: Path | None,
    target_config: tuple[tuple[str, str], ...],
    target_config_file: Path | None,
    metrics: tuple[str, int] | None,
    segment_bytes: int,
    segment_age: float,
    spool: Path | None,
    spool_bytes: int,
    log_format: Any,
    log_level: Any,
    as_json: bool,
    **settings: Any,
) -> int:
    """Copy batches from SRC to DST as they are (KIP-712).

    Only batches that DST would refuse are decompressed, and small batches between clusters, which are combined.

    \b
    kafkafmt mirror kafka://east:9092/orders,clicks-.* kafka://west:9092
    kafkafmt mirror kafka://east:9092/orders /backup --once
    kafkafmt mirror /backup kafka://west:9092
    kafkafmt mirror offsets kafka://east:9092 kafka://west:9092 --group billing

    SRC and DST are folders, URIs of folders, as s3://BUCKET/LOGS, or kafka://HOST:PORT[,HOST:PORT]. SRC may also be the
    URI of tiered storage (tiered+URI) or of a backup (backup+URI). After the slash of a cluster SRC may name topics and
    regular expressions, separated by commas. By default all topics are mirrored except those that begin with two
    underscores. Missing topics are created at DST with SRC's partitions and configuration. Topics keep their names,
    unless --rename or --topic-prefix say others. A topic that came from DST's cluster is not mirrored back.

    In a folder each batch arrives exactly once, with its offsets; a restart continues at the end of each log. In a
    cluster each batch arrives at least once; a restart continues where the offset map ends. Records that may be there
    twice are counted. With --exactly-once `read_committed` consumers of a cluster see each record once. `mirror
    offsets` looks up in that map where a consumer group continues at DST. Mirrors that follow share the partitions if
    they have the same SRC and DST, or the same --group.

    With --to, the mirror ends each partition before its first record at or after TIME. A batch that contains the first
    or the last record is encoded again, without the records outside.

    A handler is called with a RecordBatch, or with --deep a Record, and its TopicPartition. It returns the one
    to write instead, or None to drop it.

    SIGTERM or SIGINT ends the mirror after batches in flight have arrived; a second one ends it at once.
    Requires pip install 'kafkafmt[mirror]'.

    Exit status: 0; 1 if a partition was stopped, if a disk is full, or if --once did not reach an end, missed deleted
    offsets or could not sync a group or the configuration of a topic; 2 if the mirror could not start or continue.
    With --on-corrupt skip, damage is no failure.
    """
    with cluster_errors("mirror"):
        from kafkafmt.mirror.handlers import load_handler
        from kafkafmt.mirror.opening import open_mirror
        from kafkafmt.mirror.progress import Progress
        from kafkafmt.server.structured_logging import configure_logs
        from kafkafmt.server.yielding import frozen_start

        if not isinstance(target, RemotePath):
            _refuse_sealing(target)
        beginning = from_time if isinstance(from_time, str) else MirrorOptions.beginning
        start = None if isinstance(from_time, str) else from_time
        is_cluster = isinstance(source, ClusterAddress)
        asked = MirrorOptions(
            with_topics(source, topics) if isinstance(source, ClusterAddress) else source,
            target,
            beginning=cast("Beginning", beginning),
            topics=None if is_cluster else topics,
            times=time_range(start, to_time),
            follows=None if is_once is None else not is_once,
            adapts=None if way is None else way == "adaptive",
            is_deep=way == "deep",
            handler=None if handler is None else load_handler(handler),
            source_config=client_settings(source_config, source_config_file),
            target_config=client_settings(target_config, target_config_file),
            topic_names=TopicNames.parsed(topic_prefix, renames),
            topic_settings=TopicSettings.parsed(topic_config),
            sealing=Sealing(segment_bytes, segment_age, spool, spool_bytes),
            **sync_settings(syncs_groups=syncs_groups, groups=groups, heartbeats=heartbeats),
            **settings,
        )
        with ExitStack() as stack:
            # The summary is printed last: the last sync of groups follows the end of the mirror.
            printing = stack.enter_context(ExitStack())
            report: Report = Progress()
            if _shows_bar(asked):
                report = _bar_report(stack.enter_context(progress_bar(of_records=True)))
                asked = replace(asked, progress_interval=_BAR_SECONDS)
            # The bar comes first: log lines that are written later appear above it.
            configure_logs(log_format, log_level)
            if log_level == "info":
                logging.getLogger("kafka").setLevel(logging.WARNING)
                logging.getLogger("kafka.net.selector").setLevel(
                    logging.ERROR
                )  # it warns if the machine is busy
            running = stack.enter_context(open_mirror(asked, report))
            printing.callback(_print_summary, running.statistics, as_json=as_json)
            if metrics is not None:
                _serve_metrics(stack, running.statistics, *metrics)
            stack.enter_context(ended_by_signals(running.end))
            stack.enter_context(frozen_start())
            running.run()
    ended = running.statistics
    is_incomplete = bool(ended.gone or ended.unsynced_topics) and not asked.is_following
    return 1 if ended.failures or ended.unreached or is_incomplete or ended.failed_tasks else 0


def _refuse_sealing(target: Path | ClusterAddress) -> None:
    """Raise click.UsageError for an option of sealed segments, which this target does not have."""
    ctx = click.get_current_context()
    for name in ("segment_bytes", "segment_age", "spool", "spool_bytes"):
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            instead = ""
            if name == "segment_bytes" and not isinstance(target, ClusterAddress):
                instead = ": for a folder, --topic-config segment.bytes=BYTES sets the size of segments"
            raise click.UsageError(f"--{name.replace('_', '-')} needs a URI as DST{instead}")


def _shows_bar(asked: MirrorOptions) -> bool:
    """Return whether a progress bar replaces the log lines of `--progress`: on a terminal, if the end is known."""
    source = click.get_current_context().get_parameter_source("progress_interval")
    return not asked.is_following and sys.stderr.isatty() and source is not ParameterSource.COMMANDLINE


def _bar_report(bar: ProgressBar) -> Report:
    """Return a report that shows the statistics of a mirror in a progress bar."""
    task = bar.add_task("mirroring", total=None)

    def report(statistics: Statistics) -> None:
        records = statistics.total.records
        bar.update(task, completed=records, total=records + sum(statistics.lag.values()))

    return report


def _serve_metrics(stack: ExitStack, statistics: Statistics, host: str, port: int) -> None:
    from kafkafmt.mirror.metrics import registry_of
    from kafkafmt.server.prometheus import metrics_server

    port = stack.enter_context(metrics_server(registry_of(statistics), host, port, _METRICS_SECONDS))
    notify(f"metrics are served on {host_and_port(host, port)}")


def _print_summary(statistics: Statistics, *, as_json: bool) -> None:
    if as_json:
        print_json(statistics.as_dict())
        return
    total, summary = statistics.total, statistics.as_dict()
    parts = [
        f"{in_words(total.batches, 'batch')}, {in_words(total.records, 'record')}, {size_in_words(total.bytes)}"
        f" in {summary['seconds']:.1f} s"
    ]
    if statistics.combined_into:
        combined = in_words(statistics.ways["combined"].batches, "batch")
        parts.append(f"combined: {combined} into {statistics.combined_into:,}")
    if statistics.splits.batches:
        split, refused = in_words(statistics.splits.batches, "batch"), statistics.splits.refused
        after = f" ({refused:,} after a refusal)" if refused else ""
        parts.append(f"split: {split}{after}, {summary['batch_split_rate']:.2f} a second")
    for word, counts in (("opened", statistics.opened), ("left out", statistics.left_out)):
        if counts:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in counts.items())
            parts.append(f"{word}: {reasons}")
    if statistics.skipped:
        parts.append(f"skipped: {in_words(len(statistics.skipped), 'damaged range')}")
    if statistics.possibly_doubled:
        parts.append(f"possibly doubled: {in_words(statistics.possibly_doubled, 'record')}")
    if statistics.left_out_topics:
        parts.append(f"left out: {in_words(len(statistics.left_out_topics), 'topic')} that came from DST")
    if statistics.unsynced_topics:
        parts.append(f"not synced: the configuration of {in_words(len(statistics.unsynced_topics), 'topic')}")
    if statistics.failed_tasks:
        parts.append(f"failed: {', '.join(statistics.failed_tasks)}")
    if statistics.failures:  # the log names partition, offset and reason
        parts.append(f"stopped: {in_words(len(statistics.failures), 'partition')}")
    if statistics.unreached:
        parts.append(f"not reached: {in_words(len(statistics.unreached), 'partition')}")
    if statistics.gone:
        parts.append(f"deleted before they were mirrored: {in_words(statistics.gone_offsets, 'offset')}")
    parts.append(f"lag {sum(statistics.lag.values()):,}")
    echo("mirrored " + "; ".join(parts))
