"""`kafkafmt replay`: read the records of a log directory, merged by time, within a memory limit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from kafkafmt._util.callables import load_callable
from kafkafmt._util.descriptors import raise_limit
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.log_selection import DEFAULT_MEMORY, Selection, memory_options, print_summary
from kafkafmt.cli.options import (
    client_options,
    client_settings,
    cluster_errors,
    codec_option,
    json_option,
    key_ring_option,
    memory_errors,
)
from kafkafmt.cli.output import ended_by_signals, notify, progress_bar
from kafkafmt.cli.record_formats import BASE64, RecordFormats
from kafkafmt.cli.record_options import TEXT_OR_BASE64, decoding_options
from kafkafmt.cli.replay_targets import JsonTarget, ReplayClusterTarget
from kafkafmt.cli.topic_selection import (
    SCHEME,
    LiveSettings,
    SourceType,
    live_options,
    select_source,
    source_errors,
)
from kafkafmt.cli.values import Folder, PathText, Seconds, complete_folders
from kafkafmt.jobs.memory import plan_for
from kafkafmt.jobs.replay import BUFFERS_AHEAD, JoinedMerge, LogTarget, Merge, ReplayTarget, SharedReplay
from kafkafmt.jobs.replay import replay as run_replay
from kafkafmt.jobs.replay.log_target import LEAST_BATCH_BYTES, MAX_BATCH_BYTES
from kafkafmt.jobs.thread_shares import shares_of
from kafkafmt.memory import Part
from kafkafmt.memory.process import bound_process
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.storage import StoragePath
from kafkafmt.streams import TimestampError, json_timestamp
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from kafkafmt.jobs.replay.running import FlushingTarget
    from kafkafmt.streams.timestamps import TimestampExtractor
    from kafkafmt.types import TopicPartition

_STANDARD_OUTPUT = "-"
_MAX_IDLE_SECONDS = 1.0
_MIB = 1024 * 1024
# The target's share of the memory limit: for a cluster the records that are not acknowledged yet; for a log directory,
# which needs less, a batch of each topic.
_INTO_CLUSTER = Part("writing", one_in=4, most_bytes=32 * _MIB)
_INTO_LOG = Part("writing", one_in=16)
_TO_STANDARD_OUTPUT = Part("writing")


@click.command(
    cls=HelpCommand,
    common="--by-time --topics --from --to --memory --codec --follow --group --json",
    page="memory.md",
)
@click.argument("source", metavar="SRC", type=SourceType())
@click.argument(
    "target",
    metavar="[TARGET]",
    type=PathText(),
    default=_STANDARD_OUTPUT,
    shell_complete=complete_folders,
)
@click.option("--by-time", is_flag=True, help="Merge all partitions by timestamp, the lowest first.")
@click.option(
    "--timestamp",
    metavar="value:PATH|key:PATH|MODULE:CALLABLE",
    help="Where the timestamps for --by-time are: a JSONPath in the value or the key, as value:$.created_at, or a"
    " function of the record and its partition's time.",
)
@click.option(
    "--on-invalid-timestamp",
    type=click.Choice(["fail", "skip"]),
    help="A record for which --timestamp finds none ends the command (fail), or is left out and counted (skip)."
    "  [default: fail]",
)
@memory_options()
@live_options()
@click.option(
    "--max-idle",
    type=Seconds(may_be_zero=True),
    help="With --follow: how long the merge waits for a partition without new records."
    f"  [default: {_MAX_IDLE_SECONDS:g}]",
)
@codec_option("The codec of the batches written to a folder or a cluster.  [default: none]")
@click.option("--repartition", "repartitions", is_flag=True, help="Choose partitions by key, for a cluster.")
@client_options(
    "target",
    "A setting of the target's clients, as security.protocol. May be repeated.",
    "A file of settings of Kafka's clients, one KEY=VALUE a line, as for passwords.",
)
@decoding_options(BASE64, default=TEXT_OR_BASE64)
@json_option("Print the summary as one JSON object.")
@key_ring_option()
def replay(
    source: StoragePath | ClusterAddress,
    target: str,
    by_time: bool,
    timestamp: str | None,
    on_invalid_timestamp: str | None,
    memory_bytes: int | None,
    threads: int,
    follows: bool,
    group: str | None,
    source_config: tuple[tuple[str, str], ...],
    source_config_file: Path | None,
    max_idle: float | None,
    codec: Codec | None,
    repartitions: bool,
    target_config: tuple[tuple[str, str], ...],
    target_config_file: Path | None,
    key_format: str | None,
    value_format: str | None,
    schemas: str | None,
    schemas_config_file: Path | None,
    framing: str | None,
    as_json: bool,
    **selected: Any,
) -> int:
    """Write the records of SRC, in order, to TARGET.

    SRC is a log directory or a partition folder. It may be a URI, as s3://bucket/logs. Or it is a cluster with topics,
    kafka://HOST:PORT[,HOST:PORT][/TOPIC[,TOPIC|REGEX]].

    \b
    kafkafmt replay /var/lib/kafka --by-time | jq .value
    kafkafmt replay /var/lib/kafka /merged --by-time --topics orders --codec zstd
    kafkafmt replay /backup kafka://west:9092/orders --by-time --memory 64m
    kafkafmt replay kafka://east:9092/orders,clicks --by-time --follow | jq .value

    With --by-time all partitions are merged: the record with the lowest timestamp is next. Records of one partition
    stay in the order of their offsets. Equal timestamps are ordered by topic and partition. Without --by-time the
    partitions follow one after the other. With --timestamp other timestamps decide on the order; records keep their
    own. Numbers in JSON are milliseconds since 1970, and strings are dates and times of ISO 8601.

    TARGET is one of these:

    \b
    -           JSON lines on standard output
    a folder    a new log directory, which appears when it is complete
    kafka://HOST:PORT[,HOST:PORT][/TOPIC]
                a cluster; records keep their partition number

    Partitions are read up to their present ends. With --follow the command continues until SIGINT or
    SIGTERM. A partition without new records for --max-idle seconds is not waited for; its later records may then be
    out of order. Commands with the same --group share the partitions, and continue at the committed offsets. --from is
    for partitions without one.

    With --from and --to each partition begins at its first record at or after one time, and ends before its first
    record at or after another one, in the order of offsets. So it may have records with other timestamps in between.

    On standard output, a key or a value that is UTF-8 is a string, and other bytes are in key_base64 or value_base64.
    With --key-format or --value-format it is what the bytes say. If they cannot be decoded, value is null, value_error
    says why, and value_base64 has the bytes.

    In a folder each topic becomes a log of one partition, with offsets from 0. Timestamps, keys, values and headers
    are kept.

    --memory limits the memory beyond that of the program itself, for any number of partitions. If it is too small for
    a batch of 1 MiB of each partition, the command fails at the start and names a sufficient size. It does so later
    for a larger batch of more than 1/16 of it.

    Exit status: 0; 1 if damage or a full disk ended it; 2 for wrong arguments. With --on-corrupt skip, damage is no
    failure.
    """
    began = time.monotonic()
    bound_process()
    raise_limit()
    memory_bytes = memory_bytes or DEFAULT_MEMORY
    if target == _STANDARD_OUTPUT and codec is not None:
        raise click.UsageError("--codec is for a folder or a cluster")
    formats = RecordFormats.of_options(key_format, value_format, schemas, schemas_config_file, framing)
    if target != _STANDARD_OUTPUT and formats is not None:
        raise click.UsageError("--key-format and --value-format are for standard output")
    if not target.startswith(SCHEME) and (repartitions or target_config or target_config_file):
        raise click.UsageError("--repartition and --target-config are for a cluster")
    if not by_time and timestamp is not None:
        raise click.UsageError("--timestamp is for --by-time")
    if timestamp is None and on_invalid_timestamp is not None:
        raise click.UsageError("--on-invalid-timestamp is for --timestamp")
    if threads > 1 and (follows or group is not None or timestamp is not None):
        given = "--follow" if follows else "--group" if group is not None else "--timestamp"
        raise click.UsageError(f"--threads is not for a replay with {given}")
    _ensure_live(target, by_time=by_time, follows=follows, group=group, max_idle=max_idle)
    extractor = None if timestamp is None else _timestamp_extractor(timestamp)
    invalid = _InvalidTimestamps()
    writing = _writing(target)
    wanted = _Wanted(
        target,
        Codec.NONE if codec is None else codec,
        writing.of(memory_bytes),
        client_settings(target_config, target_config_file),
        repartitions,
        formats,
    )
    settings = LiveSettings.of_options(
        follows,
        group,
        source_config,
        source_config_file,
        idle_seconds=_MAX_IDLE_SECONDS if max_idle is None else max_idle,
    )
    with _errors_of(target), source_errors(source), memory_errors(), ExitStack() as stack:
        chosen = select_source(Selection.of_options(source, **selected), settings)
        shares = shares_of(chosen.partitions, threads)
        ahead = BUFFERS_AHEAD if threads > 1 else 0
        at_a_time = max(map(len, shares)) if by_time else 1
        plan = plan_for(
            memory_bytes,
            at_a_time + ahead,
            writing=writing,
            source=chosen.kind,
            threads=threads,
            largest_log_bytes=chosen.largest_log_bytes,
        )

        def opened_merge(share: Sequence[TopicPartition] | None) -> Merge:
            return stack.enter_context(
                Merge(
                    stack.enter_context(chosen.open(plan, share)),
                    plan,
                    timestamp_extractor=extractor,
                    on_invalid_timestamp=invalid.add if on_invalid_timestamp == "skip" else None,
                    buffers_ahead=ahead,
                )
            )

        if threads == 1:
            merge = opened_merge(None)
            running: Merge | JoinedMerge = merge
        else:
            running = stack.enter_context(JoinedMerge([opened_merge(share) for share in shares if share]))
        bar = stack.enter_context(progress_bar(beside_rows=target == _STANDARD_OUTPUT))
        task = bar.add_task("replaying", total=chosen.size_in_bytes)
        opened = _open_target(wanted, chosen.partitions)
        if follows or group is not None:
            _prepare_live(stack, merge, opened, follows=follows, has_group=group is not None)
        done = run_replay(
            running, opened, by_time=by_time, progress=lambda read_bytes: bar.advance(task, read_bytes)
        )
        peak_bytes = running.peak_bytes
    summary = {
        "records": done.records,
        "source_bytes": done.source_bytes,
        "invalid_timestamps": invalid.count,
        **chosen.summary,
        "memory_bytes": memory_bytes,
        "peak_bytes": peak_bytes,
        "seconds": round(time.monotonic() - began, 3),
    }
    print_summary("replayed", summary, as_json=as_json, beside_records=target == _STANDARD_OUTPUT)
    return 0


def _ensure_live(
    target: str, *, by_time: bool, follows: bool, group: str | None, max_idle: float | None
) -> None:
    """Raise click.UsageError for options of a source that grows which do not fit."""
    if (follows or group is not None) and not by_time:
        raise click.UsageError(f"{'--follow' if follows else '--group'} needs --by-time")
    if max_idle is not None and not follows:
        raise click.UsageError("--max-idle is for --follow")
    if group is not None and target != _STANDARD_OUTPUT and not target.startswith(SCHEME):
        raise click.UsageError(
            "--group is for standard output or a cluster: a folder is complete at its end only"
        )


def _prepare_live(
    stack: ExitStack, merge: Merge, target: ReplayTarget, *, follows: bool, has_group: bool
) -> None:
    """Let the group, if there is one, assign the partitions of the merge; let signals end a replay that follows."""
    if has_group:
        from kafkafmt.jobs.live_readers import LiveReaders

        readers = merge.readers
        assert isinstance(readers, LiveReaders)
        assert readers.group is not None
        assert not isinstance(target, LogTarget)
        readers.group.owner = SharedReplay(merge, cast("FlushingTarget", target), readers.group.committed)
    if follows:
        stack.enter_context(ended_by_signals(merge.stop))


@dataclass(frozen=True)
class _Wanted:
    """The target of the records, and how they are written to it."""

    target: str
    codec: Codec
    memory_bytes: int
    client_settings: Mapping[str, str]
    repartitions: bool
    formats: RecordFormats | None


class _InvalidTimestamps:
    """Counts the records without a timestamp, and reports the first of each partition."""

    def __init__(self) -> None:
        self.count = 0
        self._reported: set[TopicPartition] = set()

    def add(self, error: TimestampError) -> None:
        self.count += 1
        if error.topic_partition not in self._reported:
            self._reported.add(error.topic_partition)
            notify(f"left out: {error}")


def _timestamp_extractor(given: str) -> TimestampExtractor:
    """Return the extractor that `--timestamp` names. Raises click.UsageError."""
    part, _, path = given.partition(":")
    try:
        if path.startswith("$") and part in ("key", "value"):
            return json_timestamp("key" if part == "key" else "value", path)
        return load_callable(given)
    except ValueError as error:
        raise click.UsageError(f"--timestamp: {error}") from None
    except ImportError:
        raise click.ClickException("a JSONPath needs jsonpath-ng: pip install 'kafkafmt[json]'") from None


def _writing(target: str) -> Part:
    """Return the part of the memory plan that a target may use."""
    if target.startswith(SCHEME):
        return _INTO_CLUSTER
    return _TO_STANDARD_OUTPUT if target == _STANDARD_OUTPUT else _INTO_LOG


def _open_target(wanted: _Wanted, partitions: Sequence[TopicPartition]) -> ReplayTarget:
    if wanted.target == _STANDARD_OUTPUT:
        return JsonTarget(wanted.formats)
    counts: dict[str, int] = {}
    for topic, partition in partitions:
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    if not wanted.target.startswith(SCHEME):
        # The open batch of each topic, and two more for the batch that is being compressed.
        batch_bytes = min(wanted.memory_bytes // (len(counts) + 2), MAX_BATCH_BYTES)
        path = Folder().convert(wanted.target, None, None)
        return LogTarget(path, codec=wanted.codec, batch_bytes=max(batch_bytes, LEAST_BATCH_BYTES))
    from kafkafmt.mirror.addresses import ClusterAddress, parse_address

    address = parse_address(wanted.target)
    assert isinstance(address, ClusterAddress)
    return ReplayClusterTarget(
        address,
        counts,
        wanted.client_settings,
        codec=wanted.codec,
        memory_bytes=wanted.memory_bytes,
        repartitions=wanted.repartitions,
    )


def _errors_of(target: str) -> AbstractContextManager[None]:
    """Return the context manager that reports errors of the target in one line, if the target is a cluster."""
    return cluster_errors("a cluster", ValueError) if target.startswith(SCHEME) else nullcontext()
