"""A program of the tests: replays or tables a topic of a cluster with two threads, in bounded address space.

    python -m jobs.limited_live replay BOOTSTRAP TOPIC FOLDER
    python -m jobs.limited_live table BOOTSTRAP TOPIC FOLDER THREAD

The replay has two threads in a process, with 256 MiB beyond its start. Each thread of a table is a process, with half
of that. Each second partitions come and go. The program prints what it has seen, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401 - what is imported counts as the program's own
import rocksdict  # noqa: F401

import kafkafmt.jobs.group_member
import kafkafmt.jobs.live_readers  # noqa: F401
from jobs.limited import MEMORY_BYTES, told
from kafkafmt.cli.log_selection import Selection
from kafkafmt.cli.topic_selection import LiveSettings, SelectedTopics
from kafkafmt.jobs.memory import CLUSTER, plan_for
from kafkafmt.jobs.replay import BUFFERS_AHEAD, JoinedMerge, LogTarget, Merge
from kafkafmt.jobs.table import Table, TableState, bound_threads
from kafkafmt.jobs.thread_shares import shares_of
from kafkafmt.memory import Part
from kafkafmt.memory.process import bound_process
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.types import Codec, TopicPartition
from process_memory import limit_virtual_bytes, peak_mib

THREADS = 2
_SECONDS = 1.0
# On a fast machine partitions also come and go after so many records.
_RECORDS = 50_000


class Coming:
    """Which partitions are assigned: others each second, and in the end all of them."""

    def __init__(self, partitions: Sequence[TopicPartition], seed: int) -> None:
        self._partitions, self._rng = partitions, random.Random(seed)
        self._due = 0.0
        self._due_records = 0
        self.wanted: set[TopicPartition] = set()

    @property
    def is_all(self) -> bool:
        return len(self.wanted) == len(self._partitions)

    def is_changed(self, records: int) -> bool:
        """Choose again after a second, or many records. Every second choice is all partitions."""
        if time.monotonic() < self._due and records < self._due_records:
            return False
        self._due, self._due_records = time.monotonic() + _SECONDS, records + _RECORDS
        count = self._rng.randrange(1, len(self._partitions)) if self.is_all or not self.wanted else None
        self.wanted = set(self._partitions if count is None else self._rng.sample(self._partitions, count))
        return True

    def choose_all(self) -> None:
        self.wanted = set(self._partitions)


def replayed(topics: SelectedTopics, folder: Path) -> dict[str, Any]:
    shares = shares_of(topics.partitions, THREADS)
    most = max(map(len, shares)) + BUFFERS_AHEAD
    plan = plan_for(MEMORY_BYTES, most, writing=Part("writing", one_in=16), source=CLUSTER, threads=THREADS)
    coming = Coming(topics.partitions, 1)
    changes: list[tuple[int, list[int]]] = []
    digest = records = 0
    target = LogTarget(folder / "merged", codec=Codec.LZ4)
    with ExitStack() as stack:
        stack.callback(target.close)
        merges = [
            stack.enter_context(
                Merge(stack.enter_context(topics.open(plan, share)), plan, buffers_ahead=BUFFERS_AHEAD)
            )
            for share in shares
        ]
        merge = stack.enter_context(JoinedMerge(merges))

        def change() -> None:
            merge.revoke({*merge.partitions} - coming.wanted)
            merge.assign(coming.wanted)
            changes.append((records, sorted(one.partition for one in coming.wanted)))

        while True:
            if coming.is_changed(records):
                change()
            merged = merge.take()
            if merged is None:
                if coming.is_all:
                    break
                coming.choose_all()
                change()
                continue
            target.write(merged)
            for taken in merged.runs():
                for record in taken.records():
                    digest = told(digest, taken.topic_partition, record.offset, record.value)
            records += len(merged)
        target.finish()
        assert merge.peak_bytes <= MEMORY_BYTES
    return {"records": records, "digest": digest, "changes": changes}


def tabled(topics: SelectedTopics, folder: Path, thread: int) -> dict[str, Any]:
    share = shares_of(topics.partitions, THREADS)[thread]
    plan = plan_for(MEMORY_BYTES, 1, 1, source=CLUSTER, threads=THREADS)
    coming, changes = Coming(share, thread), 0
    state = TableState(folder / f"state-{thread}", topics.name, topics=None, isolation="read_committed")
    with topics.open(plan, share) as readers, Table(readers, state, plan) as table:
        while True:
            if coming.is_changed(table.records):
                table.commit()
                table.revoke({*share} - coming.wanted)
                table.assign(coming.wanted)
                changes += 1
            if table.step() is None:
                if coming.is_all:
                    break
                coming.choose_all()
                table.assign(coming.wanted)
        rows = table.write(folder / f"table-{thread}.parquet")
        assert table.budget.peak_bytes <= MEMORY_BYTES // THREADS
    return {"rows": rows, "changes": changes}


def main() -> None:
    work, bootstrap, topic, folder, *thread = sys.argv[1:]
    bound_process()
    address = ClusterAddress((bootstrap,), (topic,))
    topics = SelectedTopics(
        Selection(address, None, "read_committed", "fail", False), LiveSettings(False, None, {})
    )
    bound_threads()
    before = peak_mib()
    if work == "replay":
        limit_virtual_bytes(MEMORY_BYTES)
        found = replayed(topics, Path(folder))
    else:
        limit_virtual_bytes(MEMORY_BYTES // THREADS)
        found = tabled(topics, Path(folder), int(thread[0]))
    print(json.dumps({**found, "mib": peak_mib() - before}))


if __name__ == "__main__":
    main()
