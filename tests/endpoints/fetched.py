"""What the answers to fetch requests have."""

from __future__ import annotations

from typing import Any

import kafkafmt as kf
from endpoints.endpoint_here import Here
from log.samples import offsets

OLD, NEW = 3, 12  # versions of Fetch: of format v1, and of v2
FOREVER_MS = 3_600_000


async def ask(here: Here, request: Any, version: int) -> dict[tuple[str, int], Any]:
    """The partitions of the answer to a client of its own."""
    with await here.client() as client:
        return partitions(await client.ask(request, version))


def partitions(answer: Any) -> dict[tuple[str, int], Any]:
    return {
        (topic.topic, partition.partition_index): partition
        for topic in answer.responses
        for partition in topic.partitions
    }


def read(partition: Any, start: int = 0) -> list[int]:
    """The offsets of the records in an answer, from the one on that was asked for."""
    return [
        o for o in offsets(kf.MemoryRecords(partition.records or b"").records(control=True)) if o >= start
    ]
