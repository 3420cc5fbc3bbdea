"""Shared by `kafkafmt replay` and `kafkafmt table`: options, the selection of logs, and the summary."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol

import click

from kafkafmt._util.descriptors import max_open_segments
from kafkafmt._util.sizes import GIB
from kafkafmt.cli.options import (
    Decorator,
    from_segment_start_option,
    isolation_option,
    on_corrupt_option,
    options,
)
from kafkafmt.cli.output import echo, in_words, notify, size_in_words
from kafkafmt.cli.record_options import time_range, time_range_options, topics_option
from kafkafmt.cli.values import Count, Size
from kafkafmt.jobs.followed_readers import FollowedReaders
from kafkafmt.jobs.partition_readers import PartitionReaders, select_logs
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.time_range import EVERYTHING, TimeRange
from kafkafmt.log.topics import left_out_in_words
from kafkafmt.mirror.addresses import ClusterAddress

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kafkafmt.jobs.readers import Readers
    from kafkafmt.log.gaps import OffsetsGone, SourceDamage
    from kafkafmt.memory import MemoryPlan
    from kafkafmt.storage import StoragePath
    from kafkafmt.types import TopicPartition

_MIB = 1024 * 1024
DEFAULT_MEMORY = 256 * _MIB


def memory_options() -> Decorator:
    """Return a decorator that adds the options of `Selection`, --memory and --threads."""
    return options(
        topics_option(),
        time_range_options(),
        click.option(
            "--memory",
            "memory_bytes",
            type=Size(most=64 * GIB),
            help="The memory limit, beyond that of the program itself: 512m, 1.5GiB.  [default: 256M]",
        ),
        click.option("--threads", type=Count(most=64), default=1, help="They share the memory limit evenly."),
        isolation_option(
            "read_committed leaves out open and aborted transactions.", default="read_committed"
        ),
        on_corrupt_option(
            "Damage ends the command (fail), or is left out and reported (skip).", earlier="stop"
        ),
        from_segment_start_option(),
    )


@dataclass(frozen=True)
class Selection:
    """Which records are read, and how damage is handled: the values of `memory_options`."""

    source: StoragePath | ClusterAddress
    topics: tuple[str, ...] | None
    isolation: str
    on_corrupt: str
    from_segment_start: bool
    times: TimeRange = EVERYTHING

    @classmethod
    def of_options(
        cls,
        source: StoragePath | ClusterAddress,
        *,
        from_time: datetime | None,
        to_time: datetime | None,
        **more: Any,
    ) -> Selection:
        """Return the selection of the values of `memory_options`. Raises UsageError for an empty range of time."""
        return cls(source, times=time_range(from_time, to_time), **more)

    @property
    def skips_damage(self) -> bool:
        """Whether damage is left out, and not an error."""
        return self.on_corrupt == "skip"

    @property
    def is_committed(self) -> bool:
        """Whether records of open and of aborted transactions are left out."""
        return self.isolation == "read_committed"


class SelectedSource(Protocol):
    """The selected partitions of a log directory or a cluster, and what was not read of them. Can be pickled."""

    @property
    def name(self) -> StoragePath | str:
        """What identifies the source in the state of a table."""

    @property
    def kind(self) -> StoragePath | Literal["cluster"]:
        """The source as `plan_for` takes it."""

    @property
    def partitions(self) -> list[TopicPartition]:
        """All selected partitions, sorted."""

    @property
    def size_in_bytes(self) -> int | None:
        """The size of the source; None if it is not known."""

    @property
    def largest_log_bytes(self) -> int | None:
        """The size of the largest selected partition; None if it is not known, or may grow."""

    @property
    def summary(self) -> dict[str, Any]:
        """What was read and what was not by the readers that `open` returned, as fields of the summary."""

    def open(
        self, plan: MemoryPlan, partitions: Sequence[TopicPartition] | None = None
    ) -> AbstractContextManager[Readers]:
        """Return readers of these partitions, or of all, for one thread of the plan. They are closed at the end."""


class DamageReports:
    """Prints damage that is left out, and counts it."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, damage: SourceDamage) -> None:
        self.count += 1
        end = "the end" if damage.next_offset is None else f"offset {damage.next_offset}"
        notify(f"left out: {damage.topic_partition} from offset {damage.offset} to {end}: {damage.message}")


class SelectedLogs(SelectedSource):
    """The selected logs. Prints damage that is left out."""

    def __init__(
        self, selection: Selection, *, follows: bool = False, idle_seconds: float | None = None
    ) -> None:
        """follows: read on at the end of each log. idle_seconds: as in FollowedReaders."""
        assert not isinstance(selection.source, ClusterAddress)
        self._follows, self._idle_seconds = follows, idle_seconds
        self.damaged = DamageReports()
        self._selection, self._source = selection, selection.source
        self._opened: list[PartitionReaders] = []
        self.folders = select_logs(self._source, selection.topics)
        if selection.topics is None:
            left_out = left_out_in_words(self._source, "--topics '*' reads them, too")
            if left_out is not None:
                notify(left_out)

    @property
    def name(self) -> StoragePath:
        return self._source

    @property
    def kind(self) -> StoragePath:
        return self._source

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(self.folders)

    @contextlib.contextmanager
    def open(
        self, plan: MemoryPlan, partitions: Sequence[TopicPartition] | None = None
    ) -> Iterator[PartitionReaders]:
        chosen = self.folders if partitions is None else {one: self.folders[one] for one in partitions}
        options: dict[str, Any] = {
            "is_committed": self._selection.is_committed,
            "skips_damage": self._selection.skips_damage,
            "on_damage": self.damaged.add,
            "from_segment_start": self._selection.from_segment_start,
            "times": self._selection.times,
            "most_open": max_open_segments() // plan.threads,
        }
        if self._follows:
            readers: PartitionReaders = FollowedReaders(chosen, idle_seconds=self._idle_seconds, **options)
        else:
            readers = PartitionReaders(chosen, **options)
        self._opened.append(readers)
        yield readers

    @property
    def size_in_bytes(self) -> int:
        """The size of all segments when it was first requested."""
        return sum(self._sizes)

    @property
    def largest_log_bytes(self) -> int | None:
        return None if self._follows else max(self._sizes, default=0)

    @cached_property
    def _sizes(self) -> list[int]:
        sizes = []
        for folder in self.folders.values():
            with contextlib.suppress(FileNotFoundError):  # the partition was deleted since it was listed
                sizes.append(PartitionLog(folder).size_in_bytes())
        return sizes

    @property
    def summary(self) -> dict[str, Any]:
        """What was read and what was not, as fields of the summary."""
        opened = self._opened
        tails = {one: tail for readers in opened for one, tail in readers.unread_tails.items()}
        overlaps = {one: count for readers in opened for one, count in readers.overlapping_segments.items()}
        return {
            "partitions": len(self.folders),
            "damaged_stretches": self.damaged.count,
            "unread_tails": [
                {
                    **partition_fields(one),
                    "path": str(tail.path),
                    "position": tail.position,
                    "size_in_bytes": tail.size_in_bytes,
                }
                for one, tail in sorted(tails.items())
            ],
            "overlapping_segments": [
                {**partition_fields(one), "segments": count} for one, count in sorted(overlaps.items())
            ],
            "gone": gone_fields(gone for readers in opened for gone in readers.gone),
            "deleted_partitions": [
                partition_fields(one) for one in sorted(one for readers in opened for one in readers.deleted)
            ],
        }


def partition_fields(topic_partition: TopicPartition) -> dict[str, Any]:
    """Return a partition as fields of the summary."""
    return {"topic": topic_partition.topic, "partition": topic_partition.partition}


def gone_fields(gone: Iterable[OffsetsGone]) -> list[dict[str, Any]]:
    """Return offsets that were deleted before they were read, `to_offset` excluded, as fields of the summary."""
    return [
        {
            **partition_fields(one.topic_partition),
            "from_offset": one.from_offset,
            "to_offset": one.to_offset,
        }
        for one in gone
    ]


def print_summary(
    done: str, summary: Mapping[str, Any], *, as_json: bool, beside_records: bool = False
) -> None:
    """Print what was done, as one JSON object or in words.

    done: the verb, as "replayed". beside_records: whether standard output has the records. The summary then goes to
    standard error.
    """
    if as_json:
        (notify if beside_records else echo)(json.dumps(summary))
        return
    rows = f" into {in_words(summary['rows'], 'row')}" if "rows" in summary else ""
    text = (
        f"{done} {in_words(summary['records'], 'record')} of {in_words(summary['partitions'], 'partition')}{rows}, "
        f"{size_in_words(summary['source_bytes'])} in {summary['seconds']:.1f} s"
    )
    if summary["damaged_stretches"]:
        text += f"; left out: {in_words(summary['damaged_stretches'], 'damaged range')}"
    if summary.get("invalid_timestamps"):
        text += f"; left out: {in_words(summary['invalid_timestamps'], 'record')} without a timestamp"
    if summary.get("pauses"):
        text += f"; paused {summary['pauses']:,} times"
    if "peak_bytes" in summary:
        most, given = size_in_words(summary["peak_bytes"]), size_in_words(summary["memory_bytes"])
        text += f"; memory: at most {most} of {given}"
    (notify if beside_records else echo)(text)
    for one in summary["overlapping_segments"]:
        notify(
            f"{one['topic']}-{one['partition']}: {in_words(one['segments'], 'segment')} with offsets of others, "
            "read once: kafkafmt verify tells which"
        )
    for one in summary["gone"]:
        notify(
            f"gone: {one['topic']}-{one['partition']}: offsets {one['from_offset']} to {one['to_offset'] - 1}, "
            "deleted before they were read"
        )
    for one in summary["deleted_partitions"]:
        notify(f"gone: {one['topic']}-{one['partition']}: deleted before it was read")
    for tail in summary["unread_tails"]:
        notify(
            f"not read: {tail['topic']}-{tail['partition']}: {in_words(tail['size_in_bytes'], 'byte')} from position "
            f"{tail['position']} of {tail['path']} on: a partial batch, which was cut off or is being written"
        )
