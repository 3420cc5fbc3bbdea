"""The program that replays within what `limited` leaves it:
`python -m bench.memory.replaying WAY GB BYTES FOLDER [BROKER]`.

FOLDER is empty, and what becomes of the records is there afterwards. It tells when partitions came and went, and at the
end the checksums of what it was handed.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from isal.isal_zlib import crc32

import kafkafmt.jobs.group_member
import kafkafmt.jobs.live_readers  # noqa: F401
from bench.memory import limited
from bench.memory.checksums import with_record
from bench.memory.coming import Coming
from bench.memory.per_partition import PerPartitionReplay
from bench.memory.planned import THREADS, PlannedReplay, Source
from bench.memory.topic import Topic, topic_of

SECONDS_BETWEEN_CHANGES = 1.0
_ORDER_AT_ONCE = 8192


class Replay(Protocol):
    """Hands out records of the assigned partitions, the smallest timestamp first."""

    def assign(self, numbers: Sequence[int], /) -> None: ...
    def revoke(self, numbers: Sequence[int], /) -> None: ...
    def take(self) -> Iterable[tuple[int, Iterable]] | None: ...
    def finish(self) -> dict[str, Any]: ...


class Replaying:
    """Takes until all partitions have ended, has some taken away and added each second, and keeps the checksums."""

    def __init__(self, topic: Topic, replay: Replay) -> None:
        self.taken = 0
        self._replay = replay
        self._coming = Coming(topic.partitions)
        self._contents = [0] * topic.partitions
        self._order = array("q")
        self._sequence = 0

    def run(self) -> None:
        self._change(*self._coming.first())
        due = time.monotonic() + SECONDS_BETWEEN_CHANGES
        while True:
            if time.monotonic() >= due:
                self._change(*self._coming.next())
                due = time.monotonic() + SECONDS_BETWEEN_CHANGES
            taken = self._replay.take()
            if taken is not None:
                for partition, records in taken:
                    self._check(partition, records)
            elif self._coming.is_all_here:
                break
            else:
                self._change(*self._coming.all_back())
        self._close_order()

    def result(self) -> dict[str, object]:
        return {"records": self.taken, "contents": self._contents, "sequence": self._sequence}

    def _change(self, gone: Sequence[int], come: Sequence[int]) -> None:
        """Told before it is done, so that a process that dies of it has told."""
        limited.tell(
            {"taken": self.taken, "gone": gone, "come": come, "assigned": len(self._coming.assigned)}
        )
        self._replay.revoke(gone)
        self._replay.assign(come)

    def _check(self, partition: int, records: Iterable) -> None:
        checksum, count, order = self._contents[partition], 0, self._order
        for record in records:
            checksum = with_record(checksum, record.offset, record.timestamp, record.key, record.value)
            order.append(partition << 48 | record.offset)
            count += 1
        self._contents[partition] = checksum
        self.taken += count
        if len(order) >= _ORDER_AT_ONCE:
            self._close_order()

    def _close_order(self) -> None:
        self._sequence = crc32(self._order, self._sequence)
        del self._order[:]


WAYS: dict[str, Callable[[Topic, int, Path, str | None], Replay]] = {
    "plan": lambda topic, size, folder, _: PlannedReplay(topic, size, folder, Source(topic), 1),
    "threads": lambda topic, size, folder, _: PlannedReplay(topic, size, folder, Source(topic), THREADS),
    "live": lambda topic, size, folder, broker: PlannedReplay(
        topic, size, folder, Source(topic, broker), THREADS
    ),
    "per-partition": lambda topic, size, folder, _: PerPartitionReplay(topic),
}


def main(way: str, gigabytes: str, memory_bytes: str, folder: str, broker: str | None = None) -> None:
    topic = topic_of(float(gigabytes))
    limited.begin(int(memory_bytes))
    replay = WAYS[way](topic, int(memory_bytes), Path(folder), broker)
    replaying = Replaying(topic, replay)
    replaying.run()
    limited.end({**replaying.result(), **replay.finish()})


if __name__ == "__main__":
    main(*sys.argv[1:])
