"""What `kafkafmt replay` and `kafkafmt table` share: their options, how they read, and errors in one line."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafkafmt.cli.log_start import from_segment_start_option
from kafkafmt.cli.output import in_words, size_in_words, tell
from kafkafmt.cli.values import Size
from kafkafmt.jobs.partition_readers import READER_BYTES, NoLogsError, PartitionReaders, select_logs
from kafkafmt.jobs.replay import ReplayError
from kafkafmt.jobs.table import TableError
from kafkafmt.memory import MemoryBudgetError, MemoryPlan, MemoryPlanError
from kafkafmt.memory.plan import DEFAULT_LEAST_BATCH_BYTES
from kafkafmt.serve.options import GIB
from kafkafmt.sizes import size_text

if TYPE_CHECKING:
    from kafkafmt.log.reading import SourceDamage

_Command = TypeVar("_Command", bound=Callable[..., Any])
_MIB = 1024 * 1024
DEFAULT_MEMORY = 256 * _MIB
# What allocator and interpreter take beside what is counted: as measured, an eighth, and never so much.
_RESERVED_PART = 8
_MOST_RESERVED = 32 * _MIB
# What RocksDB's threads and open tables take beside its block cache and its write buffers, of which 17 MiB were
# measured, and what the allocator loses between entries of a cache that are of all sizes.
_STORES_PART = 8
_MOST_STORES = 64 * _MIB
# What a partition is buffered in that is read alone, where there is so much.
_MOST_ONE_PARTITION = 32 * _MIB
_ONE_PARTITION_FROM = 8 * _MOST_ONE_PARTITION
_MOST_MIB = 2**20


def memory_options(command: _Command) -> _Command:
    """Adds `--topics`, `--memory`, `--isolation`, `--on-corrupt` and `--from-segment-start`."""
    options = [
        click.option(
            "--topics",
            metavar="PATTERN",
            help="Only topics whose name matches, as 'page-*'.  [default: all but Kafka's own]",
        ),
        click.option(
            "--memory",
            "memory_bytes",
            type=Size(64 * GIB),
            metavar="SIZE",
            help="What it may take above what the program takes: 512m, 1.5GiB.  [default: 256M]",
        ),
        click.option(
            "--isolation",
            type=click.Choice(["read_committed", "read_uncommitted"]),
            default="read_committed",
            show_default=True,
            help="Whether transactions that are open or were aborted are left out.",
        ),
        click.option(
            "--on-corrupt",
            type=click.Choice(["stop", "skip"]),
            default="stop",
            show_default=True,
            help="Whether damage ends it, or is left out and reported.",
        ),
        from_segment_start_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


class Reading:
    """The logs that are meant, and the damage that was left out of them."""

    def __init__(
        self,
        source: Path,
        topics: str | None,
        *,
        isolation: str,
        on_corrupt: str,
        from_segment_start: bool = False,
    ) -> None:
        self.damaged = 0
        self.folders = select_logs(source, topics)
        self.readers = PartitionReaders(
            self.folders,
            is_committed=isolation == "read_committed",
            skips_damage=on_corrupt == "skip",
            on_damage=self._tell,
            from_segment_start=from_segment_start,
        )

    @property
    def size_in_bytes(self) -> int:
        """Of all segments, as they are now."""
        return sum(path.stat().st_size for folder in self.folders.values() for path in folder.glob("*.log"))

    @property
    def unread_tails(self) -> list[dict[str, Any]]:
        """What stood behind the last whole batches of logs, as fields of a summary."""
        return [
            {
                "topic": topic,
                "partition": partition,
                "path": str(tail.path),
                "position": tail.position,
                "size_in_bytes": tail.size_in_bytes,
            }
            for (topic, partition), tail in sorted(self.readers.unread_tails.items())
        ]

    @property
    def overlapping_segments(self) -> list[dict[str, Any]]:
        """How many segments of a log have offsets of segments before them, as fields of a summary."""
        return [
            {"topic": topic, "partition": partition, "segments": count}
            for (topic, partition), count in sorted(self.readers.overlapping_segments.items())
        ]

    def _tell(self, damage: SourceDamage) -> None:
        self.damaged += 1
        end = "the end" if damage.next_offset is None else f"offset {damage.next_offset}"
        tell(f"left out: {damage.topic_partition} from offset {damage.offset} to {end}: {damage.message}")


def plan_for(
    memory_bytes: int, partitions: int, stores: int = 0, *, producer_bytes: Callable[[int], int]
) -> MemoryPlan:
    """The plan of one thread that reads so many partitions at a time and has so many stores.

    producer_bytes: what is for the target, of so many. Raises click.ClickException with the least that would do.
    """

    def made(size: int) -> MemoryPlan:
        # A partition alone need not be given all there is.
        buffered = _MOST_ONE_PARTITION if partitions == 1 and size >= _ONE_PARTITION_FROM else None
        plan = MemoryPlan(
            size,
            producer_bytes=producer_bytes(size),
            consumer_bytes=READER_BYTES,
            buffered_bytes_per_partition=buffered,
            reserved_bytes=_reserved_bytes(size, stores),
        )
        plan.thread_plan(partitions, stores)  # or there is no need to begin
        return plan

    def holds(mib: int) -> bool:
        try:
            made(mib * _MIB)
        except MemoryPlanError:
            return False
        return True

    try:
        return made(memory_bytes)
    except MemoryPlanError:
        least = bisect_left(range(_MOST_MIB), True, lo=1, key=holds)
        each = in_words(partitions, "partition")
        raise click.ClickException(
            f"--memory: expected at least {least}M, for a batch of up to {DEFAULT_LEAST_BATCH_BYTES} bytes of each of "
            f"{each} beside what reading and writing take, found {size_text(memory_bytes)}"
        ) from None


def _reserved_bytes(size: int, stores: int) -> int:
    own = min(size // _RESERVED_PART, _MOST_RESERVED)
    return own + min(size // _STORES_PART, _MOST_STORES) if stores else own


def print_summary(
    done: str, summary: Mapping[str, Any], *, as_json: bool, beside_records: bool = False
) -> None:
    """What was done, as one JSON object or in words; on standard error where records are on standard output."""
    if as_json:
        (tell if beside_records else click.echo)(json.dumps(summary))
        return
    rows = f" into {in_words(summary['rows'], 'row')}" if "rows" in summary else ""
    text = (
        f"{done} {in_words(summary['records'], 'record')} of {in_words(summary['partitions'], 'partition')}{rows}, "
        f"{size_in_words(summary['source_bytes'])} in {summary['seconds']:.1f} s"
    )
    if summary["damaged_stretches"]:
        text += f"; left out: {in_words(summary['damaged_stretches'], 'damaged stretch')}"
    if "peak_bytes" in summary:
        most, given = size_in_words(summary["peak_bytes"]), size_in_words(summary["memory_bytes"])
        text += f"; memory: at most {most} of {given}"
    (tell if beside_records else click.echo)(text)
    for one in summary["overlapping_segments"]:
        tell(
            f"{one['topic']}-{one['partition']}: {in_words(one['segments'], 'segment')} with offsets of others, "
            "read once: kafkafmt verify tells which"
        )
    for tail in summary["unread_tails"]:
        tell(
            f"not read: {tail['topic']}-{tail['partition']}: {in_words(tail['size_in_bytes'], 'byte')} from position "
            f"{tail['position']} of {tail['path']} on: no whole batch, which was cut off or is being written"
        )


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Turns what a user can mend into click.ClickException."""
    try:
        yield
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    except (NoLogsError, ReplayError, TableError, MemoryBudgetError) as error:
        raise click.ClickException(str(error)) from None
