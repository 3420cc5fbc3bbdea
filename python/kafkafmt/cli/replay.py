"""`kafkafmt replay`: read the records of a log directory, merged by time, within a memory limit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kafkafmt._util.callables import load_callable
from kafkafmt.cli.help import HelpCommand
from kafkafmt.cli.log_selection import (
    DEFAULT_MEMORY,
    SelectedLogs,
    Selection,
    memory_options,
    print_summary,
)
from kafkafmt.cli.options import (
    client_options,
    client_settings,
    cluster_errors,
    codec_option,
    json_option,
    memory_errors,
)
from kafkafmt.cli.output import notify, progress_bar
from kafkafmt.cli.replay_targets import JsonTarget, ReplayClusterTarget
from kafkafmt.cli.values import Folder, complete_folders
from kafkafmt.jobs.memory import plan_for
from kafkafmt.jobs.replay import LogTarget, Merge, ReplayTarget
from kafkafmt.jobs.replay import replay as run_replay
from kafkafmt.jobs.replay.log_target import LEAST_BATCH_BYTES, MAX_BATCH_BYTES
from kafkafmt.memory import Part
from kafkafmt.memory.process import bound_process
from kafkafmt.storage import StoragePath
from kafkafmt.streams import TimestampError, json_timestamp
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from kafkafmt.streams.timestamps import TimestampExtractor
    from kafkafmt.types import TopicPartition

_STANDARD_OUTPUT = "-"
_CLUSTER = "kafka://"
_MIB = 1024 * 1024
# The target's share of the memory limit: for a cluster the records that are not acknowledged yet; for a log directory,
# which needs less, a batch of each topic.
_INTO_CLUSTER = Part("writing", one_in=4, most_bytes=32 * _MIB)
_INTO_LOG = Part("writing", one_in=16)
_TO_STANDARD_OUTPUT = Part("writing")


@click.command(
    cls=HelpCommand,
    common="--by-time --topics --memory --codec --on-corrupt --target-config-file --json",
    page="memory.md",
)
@click.argument("source", metavar="SRC", type=Folder())
@click.argument("target", metavar="[TARGET]", default=_STANDARD_OUTPUT, shell_complete=complete_folders)
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
@codec_option("The codec of the batches written to a folder or a cluster.  [default: none]")
@click.option("--repartition", "repartitions", is_flag=True, help="Choose partitions by key, for a cluster.")
@client_options(
    "target",
    "A setting of the target's clients, as security.protocol. May be repeated.",
    "A file of such settings, one a line, as for passwords.",
)
@json_option("Print the summary as one JSON object.")
def replay(
    source: StoragePath,
    target: str,
    by_time: bool,
    timestamp: str | None,
    on_invalid_timestamp: str | None,
    memory_bytes: int | None,
    codec: Codec | None,
    repartitions: bool,
    target_config: tuple[tuple[str, str], ...],
    target_config_file: Path | None,
    as_json: bool,
    **selected: Any,
) -> int:
    """Write the records under SRC, in order, to TARGET.

    SRC is a log directory or a partition folder. It may be a URI, as s3://bucket/logs.

    \b
    kafkafmt replay /var/lib/kafka --by-time | jq .value
    kafkafmt replay /var/lib/kafka /merged --by-time --topics orders --codec zstd
    kafkafmt replay /backup kafka://west:9092/orders --by-time --memory 64m

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

    In a folder each topic becomes a log of one partition, with offsets from 0. Timestamps, keys, values and headers
    are kept.

    --memory limits the memory beyond that of the program itself, for any number of partitions. If it is too small for
    one batch of each partition, the command fails at the start and names a sufficient size.

    Exit status: 0; 1 if damage ended it; 2 for wrong arguments. With --on-corrupt skip, damage is no failure.
    """
    began = time.monotonic()
    bound_process()
    memory_bytes = memory_bytes or DEFAULT_MEMORY
    if target == _STANDARD_OUTPUT and codec is not None:
        raise click.UsageError("--codec is for a folder or a cluster")
    if not target.startswith(_CLUSTER) and (repartitions or target_config or target_config_file):
        raise click.UsageError("--repartition and --target-config are for a cluster")
    if not by_time and timestamp is not None:
        raise click.UsageError("--timestamp is for --by-time")
    if timestamp is None and on_invalid_timestamp is not None:
        raise click.UsageError("--on-invalid-timestamp is for --timestamp")
    extractor = None if timestamp is None else _timestamp_extractor(timestamp)
    invalid = _InvalidTimestamps()
    writing = _writing(target)
    wanted = _Wanted(
        target,
        Codec.NONE if codec is None else codec,
        writing.of(memory_bytes),
        client_settings(target_config, target_config_file),
        repartitions,
    )
    with _errors_of(target), memory_errors():
        logs = SelectedLogs(Selection(source, **selected))
        at_a_time = len(logs.folders) if by_time else 1
        plan = plan_for(memory_bytes, at_a_time, writing=writing, source=source)
        with (
            Merge(
                logs.readers,
                plan,
                timestamp_extractor=extractor,
                on_invalid_timestamp=invalid.add if on_invalid_timestamp == "skip" else None,
            ) as merge,
            progress_bar(beside_rows=target == _STANDARD_OUTPUT) as bar,
        ):
            task = bar.add_task("replaying", total=logs.size_in_bytes)
            opened = _open_target(wanted, logs.readers.partitions)
            done = run_replay(
                merge, opened, by_time=by_time, progress=lambda read_bytes: bar.advance(task, read_bytes)
            )
            peak_bytes = merge.budget.peak_bytes
    summary = {
        "records": done.records,
        "source_bytes": done.source_bytes,
        "invalid_timestamps": invalid.count,
        **logs.summary,
        "memory_bytes": memory_bytes,
        "peak_bytes": peak_bytes,
        "seconds": round(time.monotonic() - began, 3),
    }
    print_summary("replayed", summary, as_json=as_json, beside_records=target == _STANDARD_OUTPUT)
    return 0


@dataclass(frozen=True)
class _Wanted:
    """The target of the records, and how they are written to it."""

    target: str
    codec: Codec
    memory_bytes: int
    client_settings: Mapping[str, str]
    repartitions: bool


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
    if target.startswith(_CLUSTER):
        return _INTO_CLUSTER
    return _TO_STANDARD_OUTPUT if target == _STANDARD_OUTPUT else _INTO_LOG


def _open_target(wanted: _Wanted, partitions: Sequence[TopicPartition]) -> ReplayTarget:
    if wanted.target == _STANDARD_OUTPUT:
        return JsonTarget()
    counts: dict[str, int] = {}
    for topic, partition in partitions:
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    if not wanted.target.startswith(_CLUSTER):
        # The open batch of each topic, and two more for the batch that is being compressed.
        batch_bytes = min(wanted.memory_bytes // (len(counts) + 2), MAX_BATCH_BYTES)
        path = Path(wanted.target)
        return LogTarget(path, codec=wanted.codec, batch_bytes=max(batch_bytes, LEAST_BATCH_BYTES))
    from kafkafmt.mirror.addresses import parse_address

    address = parse_address(wanted.target)
    assert not isinstance(address, Path)
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
    return cluster_errors("a cluster", ValueError) if target.startswith(_CLUSTER) else nullcontext()
