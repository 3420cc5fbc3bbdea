"""What was fetched, between the thread that receives it and the one that polls, without sockets."""

from __future__ import annotations

from kafkafmt import MemoryBudget, TopicPartition
from kafkafmt.client.fetch_memory import ResponseMemory
from kafkafmt.client.fetch_queue import Fetched, FetchQueue


def fetched(budget: MemoryBudget) -> Fetched:
    """Ten bytes, which are reserved."""
    memory = ResponseMemory(budget.reserve(10))
    return Fetched(TopicPartition("t", 0), 1, 0, 0, memoryview(bytes(10)), 1, [], False, True, memory)


def test_close_when_a_response_comes_afterwards_then_its_memory_is_released_as_that_of_those_before() -> None:
    """`Consumer.close` does not wait for the receiving thread longer than its timeout."""
    budget = MemoryBudget(100)
    queue = FetchQueue()
    queue.put([fetched(budget)])
    queue.close()
    assert budget.held_bytes == 0
    queue.put([fetched(budget)])
    assert (len(queue), budget.held_bytes) == (0, 0)
