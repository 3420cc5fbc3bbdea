"""Plan the memory of the jobs that read logs: replay and table.

Reading and writing get their parts first. The MemoryPlan divides the rest among buffers of partitions, stores and
caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from kafkafmt._util.sizes import MIB
from kafkafmt.jobs.partition_readers import READER_BYTES
from kafkafmt.memory import MemoryPlan, MemoryPlanError, Part, StoreKind, Task
from kafkafmt.memory.division import least_total
from kafkafmt.memory.plan import DEFAULT_CONSUMER_BYTES, DEFAULT_LEAST_BATCH_BYTES
from kafkafmt.storage import READ_AHEAD, RemotePath, StoragePath, limit_read_ahead
from kafkafmt.streams.batch_bound import BatchBound
from kafkafmt.streams.decode_buffers import LEAST_BUFFER_BYTES

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.memory import MemoryBudget
    from kafkafmt.types import TopicPartition

# The bytes that allocator and interpreter use beside the counted ones. Measured: always less than this.
_ALLOCATOR = Part("allocator", one_in=8, most_bytes=32 * MIB)
# The bytes that RocksDB's threads and open tables use beside block cache and write buffers (17 MiB were measured), and
# what the allocator loses to fragmentation by cache entries of different sizes.
_ROCKSDB = Part("rocksdb", one_in=8, most_bytes=64 * MIB)
# How many times a large batch, or a large record of a compressed one, is in memory: as read, decompressed, copied for
# the store or the target, and in what they write. Measured: 14 times as JSON of control characters, 16 in a table.
_LARGE_COPIES = 16
_READING = Part("reading", READER_BYTES)
# As a source: a cluster, which is read through a consumer. Its memory is the plan's part Consumer.
CLUSTER: Final = "cluster"
# The least bytes of a consumer: a fetched, a handed and a kept batch of 1 MiB.
_LEAST_CONSUMER_BYTES = 4 * MIB
# The stacks and connections of a consumer's threads.
_CONNECTIONS = Part("connections", 4 * MIB)
# The buffer of a partition that is read alone, if the total is large enough.
_MAX_ONE_PARTITION = 32 * MIB
_ONE_PARTITION_FROM = 8 * _MAX_ONE_PARTITION


def plan_for(
    total_bytes: int,
    partitions: int,
    stores: int = 0,
    *,
    writing: Part | None = None,
    store_kind: StoreKind = StoreKind.CACHED,
    source: StoragePath | Literal["cluster"] | None = None,
    threads: int = 1,
    largest_log_bytes: int | None = None,
) -> MemoryPlan:
    """Return the memory plan of `threads` threads, each of which reads `partitions` at a time and has `stores` stores.

    writing: the bytes that the target uses, as a part of the total. store_kind: of the stores. source: what is read; if
    it is remote, this limits what is read ahead; CLUSTER makes room for a consumer in each thread. largest_log_bytes:
    no log has a larger batch; None if that is unknown. Raises MemoryPlanError, with the least total that is enough, if
    `total_bytes` is too small.
    """
    least_batch_bytes = DEFAULT_LEAST_BATCH_BYTES
    if largest_log_bytes is not None:
        least_batch_bytes = min(least_batch_bytes, max(largest_log_bytes, LEAST_BUFFER_BYTES))
    parts = [] if writing is None else [writing]
    if isinstance(source, RemotePath):
        parts.append(READ_AHEAD)
        limit_read_ahead(source, READ_AHEAD.of(total_bytes))
    task = Task(partitions, stores)

    def planned(total: int) -> MemoryPlan:
        plan = _plan_of(
            total, threads, task, parts, is_live=source == CLUSTER, least_batch_bytes=least_batch_bytes
        )
        plan = replace(plan, store_kind=store_kind)
        plan.thread_plan(*task)  # raises if the total is too small
        return plan

    try:
        return planned(total_bytes)
    except MemoryPlanError:
        least = least_total(lambda total: bool(planned(total)), total_bytes, step=MIB)
        each = "1 partition" if partitions == 1 else f"each of {partitions} partitions"
        in_each = "" if threads == 1 else f", in each of {threads} threads"
        what = f"a batch of up to {least_batch_bytes} bytes of {each} beside reading and writing{in_each}"
        raise MemoryPlanError(what, least, total_bytes) from None


def _plan_of(
    total_bytes: int,
    threads: int,
    task: Task,
    parts: Sequence[Part],
    *,
    is_live: bool,
    least_batch_bytes: int,
) -> MemoryPlan:
    partitions, stores = task
    reserved = [_ALLOCATOR, *([_ROCKSDB] if stores else []), *([_CONNECTIONS] if is_live else [])]
    # A single partition gains nothing from a larger buffer.
    is_alone = partitions == 1 and total_bytes >= _ONE_PARTITION_FROM * threads
    read = [] if is_live else [_READING]
    plan = MemoryPlan(
        total_bytes,
        threads,
        producer_bytes=0,
        consumer_bytes=_consumer_bytes(total_bytes // threads) if is_live else 0,
        reserved_bytes=sum(part.of(total_bytes) for part in reserved),
        buffered_bytes_per_partition=_MAX_ONE_PARTITION if is_alone else None,
        least_batch_bytes=least_batch_bytes,
        parts=(*read, *(Part(part.name, part.of(total_bytes) // threads) for part in parts)),
    )
    plan.thread_plan(partitions, stores)  # raises if the total is too small
    return plan


class LargeBatches(BatchBound):
    """Bounds the batches of a thread that are larger than those for which the plan has room in any case.

    budget: counts the bytes of all copies of each in its peak.
    """

    def __init__(self, plan: MemoryPlan, budget: MemoryBudget) -> None:
        self.usual_bytes = DEFAULT_LEAST_BATCH_BYTES
        self.most_bytes = max(plan.thread_bytes // _LARGE_COPIES, self.usual_bytes)
        self._plan = plan
        self._reservation = budget.child("large batches").reserve(0, timeout=0)

    def admit(self, topic_partition: TopicPartition, run: BatchRun, number: int, size: int) -> None:
        if size <= self.usual_bytes:
            return
        if size > self.most_bytes:
            row, plan = run.index[number], self._plan
            offset = row["base_offset"] if row["base_offset"] >= 0 else row["last_offset"]  # of a wrapper
            where = f"{topic_partition} at offset {offset}, position {row['position']}"
            in_each = " in each thread" if plan.threads > 1 else ""
            what = f"{where}: {size} bytes of one batch may take {_LARGE_COPIES} times as much{in_each}"
            raise MemoryPlanError(what, self._least_total(size), plan.total_bytes)
        # Only for the peak: others, as the writer of a table, may wait for the bytes.
        self._reservation.resize(size * _LARGE_COPIES)
        self._reservation.resize(0)

    def _least_total(self, size: int) -> int:
        needed = size * _LARGE_COPIES * self._plan.threads
        parts = (_ALLOCATOR, _ROCKSDB, _CONNECTIONS)
        return least_total(
            lambda total: total - sum(part.of(total) for part in parts) >= needed, needed, step=MIB
        )

    def close(self) -> None:
        """Release the bytes."""
        self._reservation.release()


def _consumer_bytes(share_bytes: int) -> int:
    """Return the part Consumer of a thread's share: Kafka's default, less of a small share, but one batch at least."""
    return max(min(DEFAULT_CONSUMER_BYTES, share_bytes // 8), _LEAST_CONSUMER_BYTES)
