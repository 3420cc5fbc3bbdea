"""One number of bytes, divided from the top down (Memory Management in Kafka Streams, "Summary").

Total goes to the threads evenly, when the plan is made. Of a thread's share, Producer and Consumer come first and stay
as they are. What is left is divided anew at every rebalance, for the tasks that the thread has then: Buffer, then
State, and the rest to caches. So per-partition and per-store numbers shrink as tasks come, and Total does not move.

A number that the user gave is kept instead, from the bottom up. Then the rest may be negative, which is a warning. What
no number can mend, a total that does not hold one batch for each partition, is a MemoryPlanError with the least total
that would.

Of what nobody gave, buffers get 1/2, block cache and write buffers 1/8 each, caches 1/4; without stores, 2/3 and 1/3.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from kafkafmt.memory.errors import MemoryPlanError
from kafkafmt.memory.spark_settings import spark_settings
from kafkafmt.sizes import at_least_text, parse_named_size, size_text

logger = logging.getLogger("kafkafmt.memory")

MIB = 1024 * 1024
# Kafka's own, of ProducerConfig and ConsumerConfig: `buffer.memory`, `fetch.max.bytes`, `max.message.bytes` of a topic.
DEFAULT_PRODUCER_BYTES = 32 * MIB
DEFAULT_CONSUMER_BYTES = 50 * MIB
DEFAULT_LEAST_BATCH_BYTES = MIB + 12
# What RocksDB raises a smaller `write_buffer_size` to; and what Kafka Streams gives it. Caches stand above memtables,
# which have "less benefits additionally" then ("Persistent State Store Buffering").
LEAST_WRITE_BUFFER_BYTES = 64 * 1024
MOST_WRITE_BUFFER_BYTES = 16 * MIB

_BUFFER_SHARE, _BLOCK_CACHE_SHARE, _WRITE_BUFFER_SHARE, _CACHE_SHARE = 4, 1, 1, 2
_PRODUCER_PART, _CONSUMER_PART = 8, 4


class Task(NamedTuple):
    """What a task of a thread has: partitions to buffer, and stores of its own."""

    partitions: int
    stores: int = 0


_SPARK_TASK = Task(1, 1)


@dataclass(frozen=True)
class ThreadPlan:
    """What one thread may hold until the next rebalance, in bytes, with the document's symbols behind.

    thread_bytes: Total / numThreads. producer_bytes, consumer_bytes: Producer, Consumer. buffer_bytes: Buffer, that is
    buffered_bytes_per_partition * partitions. state_bytes: State, block_cache_bytes (the thread's part of the
    instance's) + write_buffer_bytes * max_write_buffer_number * stores. rest_bytes: Total / numThreads - Producer -
    Consumer - Buffer - State, which may be negative. cache_bytes: Cache, the rest where that is not.
    """

    partitions: int
    stores: int
    thread_bytes: int
    producer_bytes: int
    consumer_bytes: int
    buffered_bytes_per_partition: int
    block_cache_bytes: int
    write_buffer_bytes: int
    max_write_buffer_number: int

    @property
    def buffer_bytes(self) -> int:
        return self.buffered_bytes_per_partition * self.partitions

    @property
    def write_buffers_bytes(self) -> int:
        """Of all stores together."""
        return self.write_buffer_bytes * self.max_write_buffer_number * self.stores

    @property
    def state_bytes(self) -> int:
        return self.block_cache_bytes + self.write_buffers_bytes

    @property
    def rest_bytes(self) -> int:
        return (
            self.thread_bytes
            - self.producer_bytes
            - self.consumer_bytes
            - self.buffer_bytes
            - self.state_bytes
        )

    @property
    def cache_bytes(self) -> int:
        return max(self.rest_bytes, 0)

    def to_json(self) -> dict[str, int]:
        """All of it by name, as one JSON object."""
        derived = ("buffer_bytes", "state_bytes", "cache_bytes", "rest_bytes")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


class MemoryPlan:
    """How `total_bytes` are divided over `threads` and what these hold. Sizes are bytes, or texts as `512m`.

    producer_bytes, consumer_bytes: of each thread; None: 32 MiB and 50 MiB as Kafka's clients have them, or an eighth
    and a quarter of the thread's share where that is less. reserved_bytes: what allocator and interpreter take on top,
    off the total first; ours, not the document's. buffered_bytes_per_partition, write_buffer_bytes (of one store) and
    block_cache_bytes (one for the instance, divided over the threads that have stores): None to have them divided.
    max_write_buffer_number: of each store. least_batch_bytes: what a partition must be able to buffer, its largest
    batch; Kafka's default of `max.message.bytes` unless given.

    Raises MemoryPlanError where the total cannot hold that batch for one partition a thread, ValueError for other sizes
    and counts that are none.

    >>> plan = MemoryPlan("256m", threads=2, producer_bytes="8m", consumer_bytes="16m")
    >>> [size_text(part) for part in (plan.thread_bytes, plan.usable_bytes)]
    ['128M', '104M']
    >>> for partitions in (4, 8):
    ...     thread = plan.thread_plan(partitions)
    ...     print(thread.buffered_bytes_per_partition, thread.buffer_bytes, thread.cache_bytes)
    18175317 72701268 36350636
    9087658 72701264 36350640
    """

    def __init__(
        self,
        total_bytes: int | str,
        threads: int = 1,
        producer_bytes: int | str | None = None,
        consumer_bytes: int | str | None = None,
        *,
        reserved_bytes: int | str = 0,
        buffered_bytes_per_partition: int | str | None = None,
        block_cache_bytes: int | str | None = None,
        write_buffer_bytes: int | str | None = None,
        max_write_buffer_number: int = 2,
        least_batch_bytes: int | str = DEFAULT_LEAST_BATCH_BYTES,
    ) -> None:
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        self.total_bytes = parse_named_size("total_bytes", total_bytes)
        self.threads = _count("threads", threads, 1)
        self.reserved_bytes = parse_named_size("reserved_bytes", reserved_bytes, least=0)
        self.max_write_buffer_number = _count("max_write_buffer_number", max_write_buffer_number, 1)
        self.least_batch_bytes = parse_named_size("least_batch_bytes", least_batch_bytes)
        self._producer_bytes = _given("producer_bytes", producer_bytes)
        self._consumer_bytes = _given("consumer_bytes", consumer_bytes)
        self._buffered_bytes = _given("buffered_bytes_per_partition", buffered_bytes_per_partition, 1)
        self._block_cache_bytes = _given("block_cache_bytes", block_cache_bytes)
        self._write_buffer_bytes = _given("write_buffer_bytes", write_buffer_bytes, LEAST_WRITE_BUFFER_BYTES)
        self._ensure_floor(Task(1))

    @property
    def thread_bytes(self) -> int:
        """Total / numThreads, of what is not reserved."""
        return (self.total_bytes - self.reserved_bytes) // self.threads

    @property
    def producer_bytes(self) -> int:
        """Producer, of each thread."""
        return self._producer_of(self.thread_bytes)

    @property
    def consumer_bytes(self) -> int:
        """Consumer, of each thread."""
        return self._consumer_of(self.thread_bytes)

    @property
    def usable_bytes(self) -> int:
        """Total / numThreads - Producer - Consumer, of one thread: what rebalances divide."""
        return self._usable_of(self.thread_bytes)

    def _producer_of(self, thread_bytes: int) -> int:
        if self._producer_bytes is not None:
            return self._producer_bytes
        return min(DEFAULT_PRODUCER_BYTES, max(thread_bytes, 0) // _PRODUCER_PART)

    def _consumer_of(self, thread_bytes: int) -> int:
        if self._consumer_bytes is not None:
            return self._consumer_bytes
        return min(DEFAULT_CONSUMER_BYTES, max(thread_bytes, 0) // _CONSUMER_PART)

    def _usable_of(self, thread_bytes: int) -> int:
        return thread_bytes - self._producer_of(thread_bytes) - self._consumer_of(thread_bytes)

    def least_total_for(self, usable_bytes: int) -> int:
        """The least total that leaves each thread `usable_bytes` for its tasks."""
        given = (self._producer_bytes or 0) + (self._consumer_bytes or 0)
        most = 2 * (usable_bytes + given) + 1  # as 5 of 8 parts at the least are left
        return (
            bisect_left(range(most), usable_bytes, key=self._usable_of) * self.threads + self.reserved_bytes
        )

    def replaced(self, **changes: Any) -> MemoryPlan:
        """The same plan but for these arguments."""
        return MemoryPlan(**{**self._arguments, **changes})

    # Rebalances

    def thread_plan(self, partitions: int, stores: int = 0) -> ThreadPlan:
        """A rebalance of one thread, where all others get the same.

        Raises MemoryPlanError where its share cannot hold one batch for each partition; logs a warning where numbers
        that were given are more than there is.
        """
        plan = self.divided(partitions, stores)
        self._warn([plan])
        return plan

    def divided(self, partitions: int, stores: int = 0) -> ThreadPlan:
        """The same as `thread_plan` without the warning, to see what would be."""
        task = Task(_count("partitions", partitions, 0), _count("stores", stores, 0))
        self._ensure_floor(task)
        return self._divided(task, self.threads)

    def rebalance(self, tasks: Sequence[Sequence[Task]]) -> tuple[ThreadPlan, ...]:
        """The plans of all threads for the tasks that each has now; raises and warns as `thread_plan`, once for all."""
        if len(tasks) != self.threads:
            raise ValueError(f"tasks: expected a list for each of {self.threads} threads, found {len(tasks)}")
        sums = [Task(sum(task.partitions for task in of), sum(task.stores for task in of)) for of in tasks]
        self._ensure_floor(max(sums, key=self._floor_of))
        sharing = sum(1 for one in sums if one.stores)
        plans = tuple(self._divided(one, sharing) for one in sums)
        self._warn(plans)
        return plans

    def _divided(self, tasks: Task, sharing: int) -> ThreadPlan:
        """The plan of a thread that is one of `sharing` with stores."""
        partitions, stores = tasks
        write_buffers = self.max_write_buffer_number * stores
        block_cache, write_buffer = self._block_cache_bytes, self._write_buffer_bytes
        if block_cache is not None:
            block_cache //= max(sharing, 1)
        if not stores:
            block_cache = write_buffer = 0
        buffered = self._buffered_bytes

        # Buffers are taken out first, then stores: each a share of what is left for those that nobody gave.
        rest = self.usable_bytes - (block_cache or 0) - (write_buffer or 0) * write_buffers
        shares = (
            _CACHE_SHARE
            + (block_cache is None and _BLOCK_CACHE_SHARE)
            + (write_buffer is None and _WRITE_BUFFER_SHARE)
        )
        if buffered is None:
            floor = LEAST_WRITE_BUFFER_BYTES * write_buffers if write_buffer is None else 0
            share = min(rest * _BUFFER_SHARE // (shares + _BUFFER_SHARE), rest - floor)
            buffered = max(share // max(partitions, 1), self.least_batch_bytes)
        rest -= buffered * partitions
        if write_buffer is None:
            share = rest * _WRITE_BUFFER_SHARE // shares // write_buffers
            write_buffer = min(max(share, LEAST_WRITE_BUFFER_BYTES), MOST_WRITE_BUFFER_BYTES)
        if block_cache is None:
            left = rest - (write_buffer * write_buffers if self._write_buffer_bytes is None else 0)
            block_cache = max(min(rest * _BLOCK_CACHE_SHARE // shares, left), 0)
        return ThreadPlan(
            partitions=partitions,
            stores=stores,
            thread_bytes=self.thread_bytes,
            producer_bytes=self.producer_bytes,
            consumer_bytes=self.consumer_bytes,
            buffered_bytes_per_partition=buffered,
            block_cache_bytes=block_cache,
            write_buffer_bytes=write_buffer,
            max_write_buffer_number=self.max_write_buffer_number,
        )

    def _floor_of(self, tasks: Task) -> int:
        """What is to be divided takes at the least."""
        floor = 0
        if self._buffered_bytes is None:
            floor += self.least_batch_bytes * tasks.partitions
        if self._write_buffer_bytes is None:
            floor += LEAST_WRITE_BUFFER_BYTES * self.max_write_buffer_number * tasks.stores
        return floor

    def _ensure_floor(self, tasks: Task) -> None:
        """Raise MemoryPlanError where a thread's share does not hold the least that its tasks take."""
        floor = self._floor_of(tasks)
        if self.usable_bytes >= floor:
            return
        what = "Producer and Consumer of each thread"
        if self._buffered_bytes is None:
            batch = f"one batch of {self.least_batch_bytes} bytes for each of {tasks.partitions} partitions of a thread"
            what = f"{batch} beside {what}"
        if self._write_buffer_bytes is None and tasks.stores:
            what += f", and {self.max_write_buffer_number} write buffers for each of {tasks.stores} stores"
        raise MemoryPlanError(f"memory plan: {what}", self.least_total_for(floor), self.total_bytes)

    def _warn(self, plans: Sequence[ThreadPlan]) -> None:
        """One warning where the rest of any thread is negative ("Summary")."""
        worst = min(plans, key=lambda plan: plan.rest_bytes)
        if worst.rest_bytes >= 0:
            return
        given = {
            "buffered_bytes_per_partition": self._buffered_bytes if worst.partitions else None,
            "block_cache_bytes": self._block_cache_bytes if worst.stores else None,
            "write_buffer_bytes": self._write_buffer_bytes if worst.stores else None,
        }
        names = [name for name, value in given.items() if value is not None]
        least = self.least_total_for(self.usable_bytes - worst.rest_bytes)
        logger.warning(
            "there may not be enough memory: %s: %s, of %d usable: "
            "lower %s, or give a total of at least %s instead of %s",
            self._lack_text(plans, worst),
            _use_text(worst),
            self.usable_bytes,
            " or ".join(names),
            at_least_text(least),
            size_text(self.total_bytes),
        )

    def _lack_text(self, plans: Sequence[ThreadPlan], worst: ThreadPlan) -> str:
        lacking = [-plan.rest_bytes for plan in plans if plan.rest_bytes < 0]
        text = f"{sum(lacking)} bytes lack"
        if self.threads == 1:
            return text
        if len(plans) == 1:
            return f"{text} in each thread"
        if len(lacking) == 1:
            return f"{text} in one of {self.threads} threads"
        return f"{text} in {len(lacking)} of {self.threads} threads, {-worst.rest_bytes} in one"

    # For people and programs

    def table(self, plans: Iterable[ThreadPlan]) -> list[dict[str, int | str]]:
        """A row for each thread, numbered from 0, and a last one, `total`, with the sums of what can be added up."""
        rows: list[dict[str, int | str]] = [
            {"thread": number, **plan.to_json()} for number, plan in enumerate(plans)
        ]
        each = {"thread", "buffered_bytes_per_partition", "write_buffer_bytes", "max_write_buffer_number"}
        names = [one.name for one in fields(ThreadPlan)] + [
            "buffer_bytes",
            "state_bytes",
            "cache_bytes",
            "rest_bytes",
        ]
        sums = {name: sum(int(row[name]) for row in rows) for name in names if name not in each}
        return [*rows, {"thread": "total", **sums}]

    def to_json(self, plans: Iterable[ThreadPlan] = ()) -> dict[str, Any]:
        """The plan, and those of its threads, as one JSON object; sizes in bytes."""
        names = (
            "total_bytes",
            "reserved_bytes",
            "threads",
            "thread_bytes",
            "producer_bytes",
            "consumer_bytes",
        )
        of_plan = {name: getattr(self, name) for name in (*names, "usable_bytes", "least_batch_bytes")}
        return {**of_plan, "thread_plans": [plan.to_json() for plan in plans]}

    def spark_conf(
        self, executor_cores: int | None = None, *, heap_bytes: int | str = "1g", task: Task = _SPARK_TASK
    ) -> dict[str, str]:
        """The same plan as settings of Spark executors, each of which may use the total.

        executor_cores: the threads (None: those of the plan). heap_bytes: of the JVM, beside the total. task: what a
        core has at a time; its stores are RocksDB state stores under one bound for the executor, which is State. The
        total without State is `spark.executor.pyspark.memory`, a limit on virtual memory that Spark divides by the
        cores.

        Raises MemoryPlanError where the total cannot give each worker 512 MiB and each write buffer 1 MiB, with the
        least that could; ValueError for a heap below 450 MiB, which Spark refuses.
        """
        plan = self if executor_cores is None else self.replaced(threads=executor_cores)
        return spark_settings(plan, heap_bytes, task)


def spread(tasks: Iterable[Task], threads: int) -> list[list[Task]]:
    """Tasks over threads in turn, as many to each or one more."""
    of_threads: list[list[Task]] = [[] for _ in range(threads)]
    for number, task in enumerate(tasks):
        of_threads[number % threads].append(task)
    return of_threads


def _use_text(plan: ThreadPlan) -> str:
    """What partitions and stores of a thread take, of those that it has."""
    uses = (
        (plan.partitions, "partition buffers", "partitions buffer", plan.buffer_bytes),
        (plan.stores, "store takes", "stores take", plan.state_bytes),
    )
    texts = [
        f"{count} {one if count == 1 else many} {size} bytes" for count, one, many, size in uses if count
    ]
    return " and ".join(texts)


def _given(name: str, value: int | str | None, least: int = 0) -> int | None:
    return None if value is None else parse_named_size(name, value, least=least)


def _count(name: str, value: int, least: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{name}: expected a number, found {value!r}")
    if value < least:
        raise ValueError(f"{name}: expected {least} or more, found {value}")
    return value
