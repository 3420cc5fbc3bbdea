"""What a mirror may hold, out of one number (Memory Management in Kafka Streams, "Summary").

Of what the allocator leaves, Producer is for what is under way to the target and Consumer for what was fetched; the
rest is for the batch that is opened, or decoded. Each is held several times over, by factors that were measured.
`HeldMemory` counts what is held of each, these factors included.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafkafmt.memory.budget import MemoryBudget
from kafkafmt.memory.errors import MemoryPlanError
from kafkafmt.memory.plan import MemoryPlan
from kafkafmt.sizes import at_least_text, size_text

MIB = 1024 * 1024
# Beside all that is counted: modules that are loaded late, connections, metadata, and arenas of the allocator.
_RESERVED_BYTES, _RESERVED_PART = 12 * MIB, 8
# Batches wait in the producer, and in requests while these are sent.
_UNDER_WAY_COPIES = 3
# A response is received while the last one is taken over, a partition that is held may keep one more, and what came
# last goes beyond what may be under way.
_FETCHED_COPIES = 4
# Of one batch: as it is opened and made anew; as columns; as Python objects, which small records take far more for.
_OPENED_COPIES, _COLUMN_COPIES, _RECORD_COPIES = 5, 6, 10
# Well below what a broker reads of a request (`socket.request.max.bytes`); one batch may be larger.
_MOST_REQUEST_BYTES = 32 * MIB
_LEAST_BATCH_BYTES = MIB
# Producer and Consumer, of which part of what is not reserved.
_RAW_PARTS, _DEEP_PARTS = (3, 6), (4, 8)


class MirrorMemoryError(ValueError):
    """Less memory than a mirror needs; the message says how much would do."""


@dataclass(frozen=True)
class MirrorMemory:
    """`total_bytes` beyond what the process starts with. is_deep: records are moved; as_objects: seen by a handler, or
    sent by key, so that each is a Python object for a time.

    Raises MirrorMemoryError where a batch of 1 MiB has no room.
    """

    total_bytes: int
    is_deep: bool = False
    as_objects: bool = False

    def __post_init__(self) -> None:
        try:
            self.plan()
        except MemoryPlanError:
            raise MirrorMemoryError(
                f"memory: expected {at_least_text(self._least_bytes())} or more to mirror batches of 1M, found "
                f"{size_text(self.total_bytes)}"
            ) from None

    @property
    def under_way_bytes(self) -> int:
        """What may wait in the producer, and be sent."""
        return self.plan().producer_bytes // _UNDER_WAY_COPIES

    @property
    def fetch_bytes(self) -> int:
        """What all brokers may answer at a time; one batch may be larger."""
        return self.plan().consumer_bytes // _FETCHED_COPIES

    @property
    def max_request_bytes(self) -> int:
        """The largest request to the target, but for one batch that is larger."""
        return min(self.under_way_bytes, _MOST_REQUEST_BYTES)

    @property
    def max_decompressed_bytes(self) -> int:
        """The most that a batch may decompress to, where it is opened."""
        return self.plan().usable_bytes // self._copies

    @property
    def _copies(self) -> int:
        if not self.is_deep:
            return _OPENED_COPIES
        return _RECORD_COPIES if self.as_objects else _COLUMN_COPIES

    def plan(self) -> MemoryPlan:
        """That of the one thread that moves."""
        reserved = _RESERVED_BYTES + self.total_bytes // _RESERVED_PART
        left = max(self.total_bytes - reserved, 0)
        producer_part, consumer_part = _DEEP_PARTS if self.is_deep else _RAW_PARTS
        return MemoryPlan(
            self.total_bytes,
            producer_bytes=left // producer_part,
            consumer_bytes=left // consumer_part,
            reserved_bytes=reserved,
            least_batch_bytes=self._copies * _LEAST_BATCH_BYTES,
        )

    def _least_bytes(self) -> int:
        """The least total: with it, as its parts grow, the rest has that share of it which it has of any."""
        producer_part, consumer_part = _DEEP_PARTS if self.is_deep else _RAW_PARTS
        share = 1 - 1 / producer_part - 1 / consumer_part
        left = int(self._copies * _LEAST_BATCH_BYTES / share) + MIB
        return (left + _RESERVED_BYTES) * _RESERVED_PART // (_RESERVED_PART - 1)


class HeldMemory:
    """What a mirror holds, by the names of its plan: `mirror.consumer`, `mirror.producer` and `mirror.opened`.

    Nobody waits for these bytes: what was fetched or sent is there already, and where it is much the loop holds
    partitions until it is less. To wait in front of them would be to wait for oneself. `mirror.opened` is held whole:
    nobody knows what a batch decompresses to.
    """

    def __init__(self, memory: MirrorMemory) -> None:
        plan = memory.plan()
        self.budget = MemoryBudget(plan.thread_bytes, "mirror")
        self._consumer = self.budget.child("consumer", plan.consumer_bytes).reserve(0)
        self._producer = self.budget.child("producer", plan.producer_bytes).reserve(0)
        self.budget.child("opened", plan.usable_bytes).reserve(plan.usable_bytes)

    def fetched(self, size_bytes: int) -> None:
        """So much is there of the source, and is not taken over by the target."""
        self._consumer.resize(size_bytes * _FETCHED_COPIES)

    def under_way(self, size_bytes: int) -> None:
        """So much waits in the producer, or is sent."""
        self._producer.resize(size_bytes * _UNDER_WAY_COPIES)
