"""Shared by `kafkafmt replay` and `kafkafmt table`: options, the selection of logs, and the summary."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from kafkafmt._util.sizes import GIB
from kafkafmt.cli.options import (
    Decorator,
    from_segment_start_option,
    isolation_option,
    on_corrupt_option,
    options,
    topics_option,
)
from kafkafmt.cli.output import in_words, notify, size_in_words
from kafkafmt.cli.values import Size
from kafkafmt.jobs.partition_readers import PartitionReaders, select_logs
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.topics import left_out_in_words

if TYPE_CHECKING:
    from kafkafmt.log.gaps import SourceDamage
    from kafkafmt.storage import StoragePath

_MIB = 1024 * 1024
DEFAULT_MEMORY = 256 * _MIB


def memory_options() -> Decorator:
    """Return a decorator that adds --topics, --memory, --isolation, --on-corrupt and --from-segment-start."""
    return options(
        topics_option(),
        click.option(
            "--memory",
            "memory_bytes",
            type=Size(most=64 * GIB),
            help="The memory limit, beyond that of the program itself: 512m, 1.5GiB.  [default: 256M]",
        ),
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

    source: StoragePath
    topics: str | None
    isolation: str
    on_corrupt: str
    from_segment_start: bool

    @property
    def skips_damage(self) -> bool:
        """Whether damage is left out, and not an error."""
        return self.on_corrupt == "skip"


class SelectedLogs:
    """The selected logs, their readers, and what was not read of them. Prints damage that is left out."""

    def __init__(self, selection: Selection) -> None:
        self.damaged = 0
        self.folders = select_logs(selection.source, selection.topics)
        if selection.topics is None:
            left_out = left_out_in_words(selection.source, "--topics '*' reads them, too")
            if left_out is not None:
                notify(left_out)
        self.readers = PartitionReaders(
            self.folders,
            is_committed=selection.isolation == "read_committed",
            skips_damage=selection.skips_damage,
            on_damage=self._report,
            from_segment_start=selection.from_segment_start,
        )

    @property
    def size_in_bytes(self) -> int:
        """The size of all segments now."""
        size = 0
        for folder in self.folders.values():
            with contextlib.suppress(FileNotFoundError):  # the partition was deleted since it was listed
                size += PartitionLog(folder).size_in_bytes()
        return size

    @property
    def summary(self) -> dict[str, Any]:
        """What was read and what was not, as fields of the summary."""
        return {
            "partitions": len(self.folders),
            "damaged_stretches": self.damaged,
            "unread_tails": self.unread_tails,
            "overlapping_segments": self.overlapping_segments,
            "gone": self.gone,
            "deleted_partitions": [
                {"topic": topic, "partition": partition} for topic, partition in sorted(self.readers.deleted)
            ],
        }

    @property
    def gone(self) -> list[dict[str, Any]]:
        """The offsets that were deleted before they were read, `to_offset` excluded, as fields of the summary."""
        return [
            {
                "topic": one.topic_partition.topic,
                "partition": one.topic_partition.partition,
                "from_offset": one.from_offset,
                "to_offset": one.to_offset,
            }
            for one in self.readers.gone
        ]

    @property
    def unread_tails(self) -> list[dict[str, Any]]:
        """The bytes after the last complete batch of each log, as fields of the summary."""
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
        """For each log, how many segments contain offsets of earlier segments, as fields of the summary."""
        return [
            {"topic": topic, "partition": partition, "segments": count}
            for (topic, partition), count in sorted(self.readers.overlapping_segments.items())
        ]

    def _report(self, damage: SourceDamage) -> None:
        self.damaged += 1
        end = "the end" if damage.next_offset is None else f"offset {damage.next_offset}"
        notify(f"left out: {damage.topic_partition} from offset {damage.offset} to {end}: {damage.message}")


def print_summary(
    done: str, summary: Mapping[str, Any], *, as_json: bool, beside_records: bool = False
) -> None:
    """Print what was done, as one JSON object or in words.

    done: the verb, as "replayed". beside_records: whether standard output has the records. The summary then goes to
    standard error.
    """
    if as_json:
        (notify if beside_records else click.echo)(json.dumps(summary))
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
    if "peak_bytes" in summary:
        most, given = size_in_words(summary["peak_bytes"]), size_in_words(summary["memory_bytes"])
        text += f"; memory: at most {most} of {given}"
    (notify if beside_records else click.echo)(text)
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
