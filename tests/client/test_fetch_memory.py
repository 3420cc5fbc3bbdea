"""The memory of a consumer's fetches: bytes that are missing are waited for, wherever they are."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest

from kafkafmt.client.fetch_memory import FetchMemory
from kafkafmt.client.io_thread import IoThread
from kafkafmt.memory import MemoryBudget

SECONDS = 60
SIZE = 20


@pytest.fixture
def io() -> Iterator[IoThread]:
    thread = IoThread("memory")
    thread.start()
    yield thread
    thread.stop(SECONDS)


class Reserving:
    """Reserves bytes as a consumer does: at once, and again whenever there may be some."""

    def __init__(self, budget: MemoryBudget, io: IoThread) -> None:
        self.memory = FetchMemory(budget, io, self.reserve, retry_s=SECONDS)
        self._found: queue.Queue[Any] = queue.Queue()
        io.call_soon(self.reserve)
        assert self._found.get(timeout=SECONDS) is None

    def reserve(self) -> None:
        self._found.put(self.memory.reserve(SIZE))

    def wait(self) -> Any:
        while True:
            found = self._found.get(timeout=SECONDS)
            if found is not None:
                return found


def test_reserve_when_its_budget_and_then_the_parent_lacks_bytes_then_it_gets_them(io: IoThread) -> None:
    parent = MemoryBudget(100, "parent")
    child = parent.child("child", 50)
    in_child, elsewhere = child.reserve(40), parent.reserve(60)
    waiting = Reserving(child, io)
    elsewhere.resize(100)  # beyond the total: the parent stays full when the child has bytes again
    in_child.release()
    elsewhere.release()
    assert waiting.wait().size_bytes == SIZE


def test_ask_holders_when_another_user_of_the_budget_can_give_bytes_back_then_they_are_reserved(
    io: IoThread,
) -> None:
    budget = MemoryBudget(100, "shared")
    held = budget.reserve(100)
    budget.on_pressure(lambda wanted: held.resize(100 - wanted))
    waiting = Reserving(budget, io)
    waiting.memory.ask_holders()
    assert waiting.wait().size_bytes == SIZE
    assert held.size_bytes <= 100 - SIZE
