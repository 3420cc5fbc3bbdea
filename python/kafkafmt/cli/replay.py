"""`kafkafmt replay`: the records of a log directory merged by time, within so much memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kafkafmt.cli.client_settings import ConfigType, client_settings
from kafkafmt.cli.output import progress_bar
from kafkafmt.cli.replay_targets import ClusterTarget, JsonTarget
from kafkafmt.cli.within_memory import (
    DEFAULT_MEMORY,
    Reading,
    memory_options,
    plan_for,
    print_summary,
    told_in_one_line,
)
from kafkafmt.jobs.replay import LogTarget, Merge, ReplayTarget
from kafkafmt.jobs.replay import replay as run_replay
from kafkafmt.jobs.replay.log_target import LEAST_BATCH_BYTES, MOST_BATCH_BYTES
from kafkafmt.memory.process import bound_process
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from kafkafmt.types import TopicPartition

_STANDARD_OUTPUT = "-"
_CLUSTER = "kafka://"
_MIB = 1024 * 1024
# What is under way to a cluster, of the memory; a log directory's batches take less, a batch for each topic.
_CLUSTER_PART = 4
_MOST_CLUSTER_BYTES = 32 * _MIB
_LOG_PART = 16


@click.command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("target", metavar="[TARGET]", default=_STANDARD_OUTPUT)
@click.option("--by-time", is_flag=True, help="Merge all partitions by timestamp, the lowest first.")
@memory_options
@click.option(
    "--codec",
    type=click.Choice([codec.name.lower() for codec in Codec]),
    help="What batches are compressed with, in a folder or a cluster.  [default: none]",
)
@click.option("--repartition", "repartitions", is_flag=True, help="Partition by key, into a cluster.")
@click.option(
    "--target-config",
    type=ConfigType(),
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the target's clients, as security.protocol; more than once.",
)
@click.option(
    "--target-config-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The same, a setting a line, for passwords.",
)
@click.option("--json", "as_json", is_flag=True, help="The summary as one JSON object.")
def replay(
    source: Path,
    target: str,
    by_time: bool,
    topics: str | None,
    memory_bytes: int | None,
    isolation: str,
    on_corrupt: str,
    from_segment_start: bool,
    codec: str | None,
    repartitions: bool,
    target_config: tuple[tuple[str, str], ...],
    target_config_file: Path | None,
    as_json: bool,
) -> int:
    """Read the records under SRC, a log directory or a partition folder, and hand them on in order.

    \b
    kafkafmt replay /var/lib/kafka --by-time | jq .value
    kafkafmt replay /var/lib/kafka /merged --by-time --topics orders --codec zstd
    kafkafmt replay /backup kafka://west:9092/orders --by-time --memory 64m

    With --by-time the partitions of all topics are merged: the record with the lowest timestamp comes next; those of
    one partition stay in the order of their offsets, and where timestamps are equal the order is that of topics and
    partitions. Else one partition comes after the other.

    TARGET is - for JSON lines on standard output; a folder that is not there yet, where each topic becomes a log of
    one partition with offsets from 0 on; or kafka://HOST:PORT[,HOST:PORT][/TOPIC], where records keep the number of
    their partition. Timestamps, keys, values and headers are kept. The folder is there once all of it is.

    --memory says what it takes at the most above what the program takes by itself, whatever the number of
    partitions; a total that cannot hold a batch of each says at the start what would.

    Exit status: 0; 1 where damage ended it; 2 for wrong arguments. Damage left out as asked is no failure.
    """
    began = time.monotonic()
    bound_process()
    memory_bytes = memory_bytes or DEFAULT_MEMORY
    if target == _STANDARD_OUTPUT and codec is not None:
        raise click.UsageError("--codec is for a folder or a cluster")
    if not target.startswith(_CLUSTER) and (repartitions or target_config or target_config_file):
        raise click.UsageError("--repartition and --target-config are for a cluster")
    wanted = _Wanted(
        target,
        Codec[(codec or "none").upper()],
        _producer_bytes(target, memory_bytes),
        client_settings(target_config, target_config_file),
        repartitions,
    )
    with told_in_one_line(), _told_of_clusters(target):
        reading = Reading(
            source,
            topics,
            isolation=isolation,
            on_corrupt=on_corrupt,
            from_segment_start=from_segment_start,
        )
        at_a_time = len(reading.folders) if by_time else 1
        plan = plan_for(memory_bytes, at_a_time, producer_bytes=partial(_producer_bytes, target))
        with Merge(reading.readers, plan) as merge, progress_bar() as bar:
            task = bar.add_task("replaying", total=reading.size_in_bytes)
            opened = _open_target(wanted, reading.readers.partitions)
            done = run_replay(
                merge, opened, by_time=by_time, progress=lambda read_bytes: bar.advance(task, read_bytes)
            )
            peak_bytes = merge.budget.peak_bytes
    summary = {
        "records": done.records,
        "source_bytes": done.source_bytes,
        "partitions": len(reading.folders),
        "damaged_stretches": reading.damaged,
        "unread_tails": reading.unread_tails,
        "overlapping_segments": reading.overlapping_segments,
        "memory_bytes": memory_bytes,
        "peak_bytes": peak_bytes,
        "seconds": round(time.monotonic() - began, 3),
    }
    print_summary("replayed", summary, as_json=as_json, beside_records=target == _STANDARD_OUTPUT)
    return 0


@dataclass(frozen=True)
class _Wanted:
    """Where records are to go, and how."""

    target: str
    codec: Codec
    producer_bytes: int
    client_settings: Mapping[str, str]
    repartitions: bool


def _producer_bytes(target: str, memory_bytes: int) -> int:
    """What the target may hold."""
    if target.startswith(_CLUSTER):
        return min(memory_bytes // _CLUSTER_PART, _MOST_CLUSTER_BYTES)
    return 0 if target == _STANDARD_OUTPUT else memory_bytes // _LOG_PART


def _open_target(wanted: _Wanted, partitions: Sequence[TopicPartition]) -> ReplayTarget:
    if wanted.target == _STANDARD_OUTPUT:
        return JsonTarget()
    counts: dict[str, int] = {}
    for topic, partition in partitions:
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    if not wanted.target.startswith(_CLUSTER):
        # A batch of each topic, and what becomes of one of them when it is compressed.
        batch_bytes = min(wanted.producer_bytes // (len(counts) + 2), MOST_BATCH_BYTES)
        path = Path(wanted.target)
        return LogTarget(path, codec=wanted.codec, batch_bytes=max(batch_bytes, LEAST_BATCH_BYTES))
    from kafkafmt.mirror.addresses import parse_address

    address = parse_address(wanted.target)
    assert not isinstance(address, Path)
    return ClusterTarget(
        address,
        counts,
        wanted.client_settings,
        codec=wanted.codec,
        memory_bytes=wanted.producer_bytes,
        repartitions=wanted.repartitions,
    )


@contextmanager
def _told_of_clusters(target: str) -> Iterator[None]:
    if not target.startswith(_CLUSTER):
        yield
        return
    try:
        from kafka.errors import KafkaError

        from kafkafmt.mirror.errors import MirrorError
    except ModuleNotFoundError as error:
        raise click.ClickException(f"a cluster needs {error.name}: pip install 'kafkafmt[mirror]'") from None
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(f"a cluster needs {error.name}: pip install 'kafkafmt[mirror]'") from None
    except (MirrorError, KafkaError, ValueError) as error:
        raise click.ClickException(str(error)) from None
