"""One bound for the buffers of all partitions beside equal parts: `python -m bench.memory.sharing WAY SHAPE GB BYTES`.

64 partitions are merged by time with the buffers that `kafkafmt replay --memory` gives them. With equal parts, each
partition may hold a 64th. With one bound, each may hold one batch, and busy partitions share the rest. What is read
twice was refused by a full buffer. The checksum is of partition and offset of each record in the order of the merge.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from isal.isal_zlib import crc32

from bench.memory import limited
from bench.memory.planned import readers_of
from bench.memory.topic import PARTITIONS, ROOT, Shape, Topic, topic_of
from bench.results import Figure, Table
from kafkafmt.jobs.memory import plan_for
from kafkafmt.memory import MemoryBudget
from kafkafmt.streams import PartitionGroup
from kafkafmt.streams.buffer_bound import BufferBound, Holder

MIB = 1024 * 1024
GIGABYTES = 2.0
MEMORY_BYTES = 256 * MIB
EQUAL, ONE = "equal", "one"
WAYS = {EQUAL: "equal parts", ONE: "one bound"}
SHAPES = {
    "uniform": (Shape(), "64 partitions alike"),
    "busy": (Shape("-busy", busy=1, busy_share=0.9), "1 of 64 has 90 % of the bytes"),
    "eight": (Shape("-eight", busy=8, busy_share=0.9), "8 of 64 have 90 % of the bytes"),
    "spans": (Shape("-spans", spans=5), "each has a fifth of the hour"),
}


@dataclass(frozen=True)
class Shared:
    """A merge. read_bytes: of all runs that were read. refills: how often buffers were filled, as one was empty."""

    label: str
    shape: str
    way: str
    stored_bytes: int
    read_bytes: int
    refills: int
    processor_seconds: float
    peak_bytes: int
    buffer_bytes: int
    records: int
    sequence: int


def measured(text: str, memory_bytes: int, progress: Callable[[str], None]) -> Iterator[Shared]:
    """The rows whose name has `text`. Raises AssertionError if the order depends on the way."""
    for shape, (made, shape_label) in SHAPES.items():
        sequences = set()
        for way, way_label in WAYS.items():
            label = f"sharing: {shape_label}, {way_label}"
            if text not in label:
                continue
            progress(label)
            topic_of(GIGABYTES, shape=made)
            arguments = [way, shape, str(GIGABYTES), str(memory_bytes)]
            run = limited.run("bench.memory.sharing", arguments, ROOT / "sharing.log")
            if run.result is None:
                raise RuntimeError(f"{label}: {run.error}; see {ROOT / 'sharing.log'}")
            found = Shared(label, shape, way, **run.result)
            sequences.add((found.records, found.sequence))
            if len(sequences) > 1:
                raise AssertionError(f"{label}: expected the order of the other way")
            yield found


def as_table(found: Sequence[Shared], memory_bytes: int) -> Table:
    rows: list[tuple[str, ...]] = [
        ("buffers", "read", "read again", "refills", "CPU", "CPU, of equal parts", "peak")
    ]
    equal = {row.shape: row.processor_seconds for row in found if row.way == EQUAL}
    for row in found:
        again = row.read_bytes / row.stored_bytes - 1
        ratio = row.processor_seconds / equal[row.shape] if row.shape in equal else None
        rows.append(
            (
                row.label,
                Figure(row.read_bytes / MIB, f"{row.read_bytes / MIB:.0f} MiB", "MiB"),
                Figure(again * 100, f"{again:.0%}", "%"),
                f"{row.refills:,}",
                Figure(row.processor_seconds, f"{row.processor_seconds:.1f} s", "s"),
                "" if ratio is None else Figure(ratio, f"{ratio:.2f}", "of equal parts"),
                Figure(row.peak_bytes / MIB, f"{row.peak_bytes / MIB:.0f} MiB", "MiB"),
            )
        )
    title = (
        f"One bound for all buffers, or equal parts: {GIGABYTES:g} GB merged within {memory_bytes // MIB} MiB"
    )
    return Table("sharing", title, rows)


class _EqualParts(BufferBound):
    """No partition gets what another one does not use."""

    def batch_room(self, holder: Holder, *, is_shared: bool = True) -> int:
        return super().batch_room(holder, is_shared=False)

    def buffer_room(self, holder: Holder) -> int:
        return holder.weight - holder.batch_bytes


class _Reading:
    """Feeds a group of all partitions, and counts."""

    def __init__(self, topic: Topic, group: PartitionGroup) -> None:
        self.read_bytes = self.refills = 0
        self._readers, self._group = readers_of(topic), group
        for topic_partition in self._readers.partitions:
            group.add(topic_partition, self._readers.seek(topic_partition, None))

    def fill(self) -> bool:
        had_room = False
        for topic_partition in self._group.filling():
            self.refills += not had_room
            had_room = True
            run = self._readers.read(topic_partition)
            if run is None:
                self._group.finish(topic_partition)
                continue
            self.read_bytes += int(run.index["size"].sum())
            self._group.pass_over(topic_partition, int(run.index["last_offset"].min()))
            if self._group.feed(topic_partition, run) < len(run):
                self._readers.seek(topic_partition, self._group.fetch_offset(topic_partition))
        return had_room


def merge(topic: Topic, way: str, memory_bytes: int) -> dict[str, Any]:
    plan = plan_for(memory_bytes, PARTITIONS)
    buffer_bytes = plan.thread_plan(PARTITIONS).buffer_bytes
    budget = MemoryBudget(plan.usable_bytes)
    group = PartitionGroup(buffer_bytes, budget=budget, verify=False)
    if way == EQUAL:
        group._bound = _EqualParts(buffer_bytes, buffer_bytes)
    reading = _Reading(topic, group)
    began = time.process_time()
    records, sequence = 0, 0
    while True:
        merged = group.take_merged()
        if merged is None:
            if reading.fill():
                continue
            break
        records += len(merged)
        order = array("q")
        for taken in merged.runs():
            offsets = (taken.topic_partition.partition << 48 | record.offset for record in taken.records())
            order.extend(offsets)
        sequence = crc32(order, sequence)
    return {
        "stored_bytes": topic.stored_bytes,
        "read_bytes": reading.read_bytes,
        "refills": reading.refills,
        "processor_seconds": time.process_time() - began,
        "peak_bytes": budget.peak_bytes,
        "buffer_bytes": buffer_bytes,
        "records": records,
        "sequence": sequence,
    }


def main(way: str, shape: str, gigabytes: str, memory_bytes: str) -> None:
    topic = topic_of(float(gigabytes), shape=SHAPES[shape][0])
    limited.begin(int(memory_bytes))
    result = merge(topic, way, int(memory_bytes))
    limited.tell({"result": result, "end": limited.status_bytes()})


if __name__ == "__main__":
    main(*sys.argv[1:])
