"""What was fetched and not taken yet: filled in the I/O thread of a consumer, emptied by its caller."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _kafkafmt.streams.reservations import Reservation
    from kafkafmt.types import TopicPartition


class ResponseMemory:
    """The reserved bytes of one response. They are released when no part of it waits any more."""

    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self._parts = 1
        self._lock = threading.Lock()

    def add_part(self) -> None:
        """Keep the bytes until one more call of `release`."""
        with self._lock:
            self._parts += 1

    def release(self) -> None:
        """Release a part, and the bytes with the last one."""
        with self._lock:
            self._parts -= 1
            is_last = self._parts == 0
        if is_last:
            self.reservation.release()


@dataclass(slots=True)
class Fetched:
    """What a broker returned for one partition.

    generation: of the `Target` that it was fetched for.
    offset: at which it was fetched.
    records: a view of the response; empty with an error.
    aborted: producer id and first offset of each transaction that is aborted within the records.
    diverging_epoch: whether the broker's log differs before the fetched offset (KIP-595).
    is_by_id: whether it was fetched by the topic's id.
    """

    topic_partition: TopicPartition
    generation: int
    offset: int
    error_code: int
    records: memoryview
    high_watermark: int
    aborted: list[tuple[int, int]]
    preferred_read_replica: int
    is_diverging: bool
    is_by_id: bool
    memory: ResponseMemory
    is_released: bool = field(default=False, compare=False)


class FetchQueue:
    """A queue between two threads."""

    def __init__(self) -> None:
        self._items: deque[Fetched] = deque()
        self._condition = threading.Condition()
        self._is_woken = False

    def put(self, items: Iterable[Fetched]) -> None:
        """Append what was fetched, and wake the caller's thread."""
        with self._condition:
            self._items.extend(items)
            self._condition.notify_all()

    def pop(self) -> Fetched | None:
        """Return the first item; None if there is none."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def wait(self, timeout: float) -> None:
        """Wait until there is an item or `wake` is called, at most `timeout` seconds."""
        with self._condition:
            if not self._items and not self._is_woken:
                self._condition.wait(timeout)
            self._is_woken = False

    def wake(self) -> None:
        """End the current `wait`, or the next one."""
        with self._condition:
            self._is_woken = True
            self._condition.notify_all()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size_in_bytes(self) -> int:
        """The bytes of records that wait."""
        return sum(len(item.records) for item in self._items.copy())
