"""The program that makes a table within what `limited` leaves it:
`python -m bench.memory.tabling WAY GB BYTES FOLDER [BROKER]`.

FOLDER is empty, and the stores are there and what becomes of them. It tells when partitions came and went.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import kafkafmt.jobs.group_member
import kafkafmt.jobs.live_readers  # noqa: F401
from bench.memory import limited
from bench.memory.coming import Coming
from bench.memory.per_partition import PerPartitionTable
from bench.memory.planned import PlannedTable, Source
from bench.memory.replaying import SECONDS_BETWEEN_CHANGES
from bench.memory.topic import Topic, topic_of


class Table(Protocol):
    """Puts the records of the assigned partitions into stores."""

    def assign(self, numbers: Sequence[int], /) -> None: ...
    def revoke(self, numbers: Sequence[int], /) -> None: ...
    def take(self) -> int | None: ...
    def finish(self) -> dict[str, Any]: ...


def fill(topic: Topic, table: Table) -> int:
    """Put all records while partitions are taken away and added each second; returns how many."""
    coming = Coming(topic.partitions)
    taken = 0

    def change(gone: Sequence[int], come: Sequence[int]) -> None:
        limited.tell({"taken": taken, "gone": gone, "come": come, "assigned": len(coming.assigned)})
        table.revoke(gone)
        table.assign(come)

    change(*coming.first())
    due = time.monotonic() + SECONDS_BETWEEN_CHANGES
    while True:
        if time.monotonic() >= due:
            change(*coming.next())
            due = time.monotonic() + SECONDS_BETWEEN_CHANGES
        records = table.take()
        if records is not None:
            taken += records
        elif coming.is_all_here:
            return taken
        else:
            change(*coming.all_back())


WAYS: dict[str, Callable[[Topic, int, Path, str | None], Table]] = {
    "plan": lambda topic, size, folder, _: PlannedTable(topic, size, folder, Source(topic)),
    "live": lambda topic, size, folder, broker: PlannedTable(topic, size, folder, Source(topic, broker)),
    "per-partition": lambda topic, size, folder, _: PerPartitionTable(topic, folder),
}


def main(way: str, gigabytes: str, memory_bytes: str, folder: str, broker: str | None = None) -> None:
    topic = topic_of(float(gigabytes))
    limited.begin(int(memory_bytes))
    table = WAYS[way](topic, int(memory_bytes), Path(folder), broker)
    records = fill(topic, table)
    limited.end({"records": records, **table.finish()})


if __name__ == "__main__":
    main(*sys.argv[1:])
