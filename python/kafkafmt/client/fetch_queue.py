"""What was fetched and not taken yet: filled in the I/O thread of a consumer, emptied by its caller."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kafkafmt.client.fetch_memory import ResponseMemory
    from kafkafmt.types import TopicPartition


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted, as a response has it."""

    producer_id: int
    first_offset: int


@dataclass(slots=True)
class Fetched:
    """What a broker returned for one partition.

    generation: of the `Target` that it was fetched for.
    offset: at which it was fetched.
    records: a view of the response; empty with an error.
    aborted: the transactions that were aborted within the records.
    is_diverging: whether the broker's log differs before the fetched offset (KIP-595).
    is_by_id: whether it was fetched by the topic's id.
    memory: of the response; None if nothing is held.
    """

    topic_partition: TopicPartition
    generation: int
    offset: int
    error_code: int
    records: memoryview
    high_watermark: int
    aborted: list[AbortedTransaction]
    is_diverging: bool
    is_by_id: bool
    memory: ResponseMemory | None

    def release(self) -> None:
        """Release the memory of the response, if no other part of it waits. A second call does nothing."""
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.release()


class FetchQueue:
    """A queue between two threads."""

    def __init__(self) -> None:
        self._items: deque[Fetched] = deque()
        self._condition = threading.Condition()
        self._is_woken = False
        self._is_closed = False
        self._error: Exception | None = None

    def put(self, items: Collection[Fetched]) -> None:
        """Append what was fetched, and wake the caller's thread. After `close`, release it."""
        with self._condition:
            if not self._is_closed:
                self._items.extend(items)
                self._condition.notify_all()
                return
        for item in items:
            item.release()

    def close(self) -> None:
        """Release what waits, and what is put from now on."""
        with self._condition:
            self._is_closed = True
        while (fetched := self.pop()) is not None:
            fetched.release()

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

    def fail(self, error: Exception) -> None:
        """Raise an error in the next `raise_error`, and wake the caller's thread."""
        self._error = error
        self.wake()

    def raise_error(self) -> None:
        """Raise the error of `fail`, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __len__(self) -> int:
        return len(self._items)

    @property
    def size_in_bytes(self) -> int:
        """The bytes of records that wait."""
        return sum(len(item.records) for item in self._items.copy())
