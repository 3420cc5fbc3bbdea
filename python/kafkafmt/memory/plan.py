"""Divide one total of bytes from the top down (Memory Management in Kafka Streams, "Summary").

The plan divides Total evenly over the threads. Producer and Consumer are taken from a thread's share first, and do not
change. Every rebalance divides the remainder again for the tasks of the thread: first Buffer, then State; the rest goes
to caches. So the bytes of each partition and store shrink as tasks are added, and Total stays the same.

A size that the user gives is kept as it is. The rest may then be negative, which is logged as a warning. A total that
cannot hold one batch for each partition is a MemoryPlanError, which names the least total that can.

Of the bytes that the user has not fixed, buffers get 1/2, block cache and write buffers 1/8 each, and caches 1/4.
Without stores, buffers get 2/3 and caches 1/3. Stores without a cache have its bytes as block cache. Stores in memory
have the bytes of write buffers, block cache and cache.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkafmt._util.sizes import MIB, at_least_text, parse_named_size, size_text
from kafkafmt.memory.division import Division, Part
from kafkafmt.memory.store_kind import StoreKind

logger = logging.getLogger("kafkafmt.memory")

# Kafka's defaults: `buffer.memory` (ProducerConfig), `fetch.max.bytes` (ConsumerConfig), `max.message.bytes` (topic).
DEFAULT_PRODUCER_BYTES = 32 * MIB
DEFAULT_CONSUMER_BYTES = 50 * MIB
DEFAULT_LEAST_BATCH_BYTES = MIB + 12
# RocksDB raises a smaller `write_buffer_size` to the first. Kafka Streams sets the second; more helps little, as
# memtables have "less benefits additionally" under a cache ("Persistent State Store Buffering").
LEAST_WRITE_BUFFER_BYTES = 64 * 1024
MAX_WRITE_BUFFER_BYTES = 16 * MIB

_BUFFER_SHARE, _BLOCK_CACHE_SHARE, _WRITE_BUFFER_SHARE, _CACHE_SHARE = 4, 1, 1, 2
# Of a store in memory: the write buffers through which it moves into RocksDB.
_MAX_MOVE_BUFFER_BYTES = MIB
# One in so many bytes of the cache, if only a map of dirty keys is kept.
_DIRTY_MAP_SHARE = 4
_PRODUCER_PART, _CONSUMER_PART = 8, 4
# The fields that are sizes in bytes, and the least value of each.
_LEAST_SIZES = {
    "total_bytes": 1,
    "producer_bytes": 0,
    "consumer_bytes": 0,
    "reserved_bytes": 0,
    "buffered_bytes_per_partition": 1,
    "block_cache_bytes": 0,
    "write_buffer_bytes": LEAST_WRITE_BUFFER_BYTES,
    "least_batch_bytes": 1,
}
_REQUIRED_SIZES = ("total_bytes", "reserved_bytes", "least_batch_bytes")
_CALCULATED: Final[Any] = None


class Task(NamedTuple):
    """A task of a thread: the number of partitions that it buffers, and of its stores."""

    partitions: int
    stores: int = 0


@dataclass(frozen=True)
class ThreadPlan:
    """The bytes that one thread may use until the next rebalance, with the symbols of the document.

    thread_bytes: Total / numThreads
    producer_bytes, consumer_bytes: Producer, Consumer
    buffer_bytes: Buffer = buffered_bytes_per_partition * partitions
    state_bytes: State = block_cache_bytes + write_buffer_bytes * max_write_buffer_number * stores
    block_cache_bytes: the thread's part of the block cache of the instance
    rest_bytes: Total / numThreads - Producer - Consumer - Buffer - State - parts_bytes; may be negative
    cache_bytes: Cache = rest_bytes, or 0 if that is negative
    parts_bytes: what the thread uses beside these; the document has no such term
    store_kind: of all stores. For stores in memory, Cache is their memory, and State the write buffers through which
        they move into RocksDB if they outgrow it.
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
    parts_bytes: int = 0
    store_kind: StoreKind = StoreKind.CACHED

    @property
    def buffer_bytes(self) -> int:
        """The buffers of all partitions together."""
        return self.buffered_bytes_per_partition * self.partitions

    @property
    def write_buffers_bytes(self) -> int:
        """The write buffers of all stores together."""
        return self.write_buffer_bytes * self.max_write_buffer_number * self.stores

    @property
    def state_bytes(self) -> int:
        """The thread's part of the block cache, and the write buffers of all stores."""
        return self.block_cache_bytes + self.write_buffers_bytes

    @property
    def rest_bytes(self) -> int:
        """The bytes that no other part has. Negative if fixed numbers exceed the total."""
        return (
            self.thread_bytes
            - self.producer_bytes
            - self.consumer_bytes
            - self.buffer_bytes
            - self.state_bytes
            - self.parts_bytes
        )

    @property
    def cache_bytes(self) -> int:
        """The bytes of the caches: the rest, or 0 if that is negative or the stores have no cache."""
        is_uncached = self.stores > 0 and self.store_kind is StoreKind.UNCACHED
        return 0 if is_uncached else max(self.rest_bytes, 0)

    def to_json(self) -> dict[str, int]:
        """Return all values by name, as one JSON object; sizes in bytes. `parts_bytes` is left out if it is 0."""
        derived = ("buffer_bytes", "state_bytes", "cache_bytes", "rest_bytes")
        named = {**asdict(self), **{name: getattr(self, name) for name in derived}}
        del named["store_kind"]
        return named if self.parts_bytes else {name: named[name] for name in named if name != "parts_bytes"}


@dataclass(frozen=True)
class MemoryPlan:
    """Divide `total_bytes` over `threads` and their purposes. Sizes are bytes, or texts such as `512m`.

    producer_bytes, consumer_bytes: for each thread. If None, 32 MiB and 50 MiB, the defaults of Kafka's clients, but
        at most an eighth and a quarter of the thread's share.
    reserved_bytes: what allocator and interpreter use on top. It is taken from the total first; the document has no
        such term.
    buffered_bytes_per_partition, write_buffer_bytes, block_cache_bytes: calculated if None. A write buffer belongs to
        one store. The instance has one block cache, divided over the threads that have stores.
    max_write_buffer_number: of each store, 2 or more: RocksDB raises 1 to 2.
    least_batch_bytes: the largest batch, which each partition must be able to buffer. The default is that of
        `max.message.bytes`.
    parts: what each thread uses beside these, by name.
    store_kind: of all stores. For stores in memory, `write_buffer_bytes` and `block_cache_bytes` must be None.

    Fields are bytes. `dataclasses.replace` calculates Producer and Consumer again, unless they were given.

    Raises MemoryPlanError if the share of a thread cannot hold one batch for one partition. Raises ValueError for a
    text that is not a size and for a number that is too small; TypeError for another type.

    >>> plan = MemoryPlan("256m", threads=2, producer_bytes="8m", consumer_bytes="16m")
    >>> plan.thread_bytes, plan.usable_bytes
    (134217728, 109051904)
    >>> for partitions in (4, 8):
    ...     thread = plan.thread_plan(partitions)
    ...     print(thread.buffered_bytes_per_partition, thread.buffer_bytes, thread.cache_bytes)
    18175317 72701268 36350636
    9087658 72701264 36350640
    """

    total_bytes: int
    threads: int = 1
    producer_bytes: int = _CALCULATED
    consumer_bytes: int = _CALCULATED
    _: KW_ONLY
    reserved_bytes: int = 0
    buffered_bytes_per_partition: int | None = None
    block_cache_bytes: int | None = None
    write_buffer_bytes: int | None = None
    max_write_buffer_number: int = 2
    least_batch_bytes: int = DEFAULT_LEAST_BATCH_BYTES
    parts: tuple[Part, ...] = ()
    store_kind: StoreKind = StoreKind.CACHED
    # The sizes that were calculated, by name: `dataclasses.replace` hands them on, and they are calculated again.
    _calculated: frozenset[tuple[str, int]] = field(default=frozenset(), repr=False, compare=False)

    if TYPE_CHECKING:  # `__post_init__` converts texts and None to the types of the fields

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
            parts: tuple[Part, ...] = (),
            store_kind: StoreKind = StoreKind.CACHED,
        ) -> None: ...

    def __post_init__(self) -> None:
        _count("threads", self.threads, 1)
        _count("max_write_buffer_number", self.max_write_buffer_number, 2)
        for name, least in _LEAST_SIZES.items():
            value = getattr(self, name)
            if value is not None or name in _REQUIRED_SIZES:
                object.__setattr__(self, name, parse_named_size(name, value, least=least))
        if not isinstance(self.store_kind, StoreKind):
            raise TypeError(f"store_kind: expected a StoreKind, found {self.store_kind!r}")
        if self.store_kind is StoreKind.IN_MEMORY:
            for name in ("block_cache_bytes", "write_buffer_bytes"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name}: expected none for stores in memory, found {getattr(self, name)}"
                    )
        sizes = self._division.sizes
        calculated = frozenset((part.name, sizes[part.name]) for part in self._clients if part.one_in)
        for name, size_bytes in calculated:
            object.__setattr__(self, f"{name}_bytes", size_bytes)
        object.__setattr__(self, "_calculated", calculated)
        self._ensure_floor(Task(1))

    @property
    def _clients(self) -> tuple[Part, Part]:
        """Producer and Consumer: as given, or as parts of a thread's share."""
        return (
            self._client("producer", self.producer_bytes, _PRODUCER_PART, DEFAULT_PRODUCER_BYTES),
            self._client("consumer", self.consumer_bytes, _CONSUMER_PART, DEFAULT_CONSUMER_BYTES),
        )

    def _client(self, name: str, size_bytes: int | None, one_in: int, most_bytes: int) -> Part:
        if size_bytes is None or (name, size_bytes) in self._calculated:
            return Part(name, one_in=one_in, most_bytes=most_bytes)
        return Part(name, size_bytes)

    @property
    def _division(self) -> Division:
        reserved = (Part("reserved", self.reserved_bytes),)
        return Division(self.total_bytes, self.threads, reserved, (*self._clients, *self.parts))

    @property
    def thread_bytes(self) -> int:
        """Total / numThreads, after `reserved_bytes` were taken from the total."""
        return self._division.share_bytes

    @property
    def fixed_bytes(self) -> dict[str, int]:
        """The bytes that each thread uses independent of its tasks, by name: `producer`, `consumer` and `parts`."""
        return self._division.sizes

    @property
    def usable_bytes(self) -> int:
        """What a rebalance divides, for each thread: Total / numThreads - Producer - Consumer - `parts`."""
        return self._division.rest_bytes

    # Rebalances

    def thread_plan(self, partitions: int, stores: int = 0) -> ThreadPlan:
        """Calculate the plan of a thread, if all threads have as many partitions and stores.

        Raises MemoryPlanError if its share cannot hold one batch for each partition. Logs a warning if the sizes that
        were given exceed the share.
        """
        plan = self.divided(partitions, stores)
        self._warn([plan])
        return plan

    def divided(self, partitions: int, stores: int = 0) -> ThreadPlan:
        """Calculate the same plan as `thread_plan`, but log no warning."""
        task = Task(_count("partitions", partitions, 0), _count("stores", stores, 0))
        self._ensure_floor(task)
        return self._divided(task, self.threads)

    def rebalance(self, tasks: Sequence[Sequence[Task]]) -> tuple[ThreadPlan, ...]:
        """Calculate the plans of all threads. tasks: a list of tasks for each thread.

        Raises and logs as `thread_plan`, once for all threads; ValueError if `tasks` has not one list for each thread,
        or a task has a negative number.
        """
        if len(tasks) != self.threads:
            raise ValueError(f"tasks: expected a list for each of {self.threads} threads, found {len(tasks)}")
        for task in chain.from_iterable(tasks):
            _count("partitions", task.partitions, 0)
            _count("stores", task.stores, 0)
        sums = [Task(sum(task.partitions for task in of), sum(task.stores for task in of)) for of in tasks]
        self._ensure_floor(max(sums, key=self._floor_of))
        sharing = sum(1 for one in sums if one.stores)
        plans = tuple(self._divided(one, sharing) for one in sums)
        self._warn(plans)
        return plans

    def _divided(self, tasks: Task, sharing: int) -> ThreadPlan:
        """Calculate the plan of one thread. sharing: the number of threads that have stores."""
        partitions, stores = tasks
        write_buffers = self.max_write_buffer_number * stores
        block_cache, write_buffer = self.block_cache_bytes, self.write_buffer_bytes
        if block_cache is not None:
            block_cache //= max(sharing, 1)
        if not stores:
            block_cache = write_buffer = 0
        buffered = self.buffered_bytes_per_partition

        # Buffers are taken from the rest first, then stores. Sizes that are not given are shares of what is left.
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
            write_buffer = min(max(share, LEAST_WRITE_BUFFER_BYTES), MAX_WRITE_BUFFER_BYTES)
        if block_cache is None:
            left = rest - (write_buffer * write_buffers if self.write_buffer_bytes is None else 0)
            block_cache = max(min(rest * _BLOCK_CACHE_SHARE // shares, left), 0)
            if stores:
                block_cache += self._left_by_cache(left - block_cache)
        if stores and self.store_kind is StoreKind.IN_MEMORY:
            block_cache, write_buffer = 0, min(write_buffer, _MAX_MOVE_BUFFER_BYTES)
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
            parts_bytes=sum(part.of(self.thread_bytes) for part in self.parts),
            store_kind=self.store_kind,
        )

    def _left_by_cache(self, cache_bytes: int) -> int:
        """Return the bytes of a cache that the block cache gets, because stores have none, or a map of dirty keys."""
        if self.store_kind is StoreKind.UNCACHED:
            return max(cache_bytes, 0)
        if self.store_kind is StoreKind.DIRTY_MAP:
            return max(cache_bytes, 0) * (_DIRTY_MAP_SHARE - 1) // _DIRTY_MAP_SHARE
        return 0

    def _floor_of(self, tasks: Task) -> int:
        """Return the least bytes that the calculated sizes need for these tasks."""
        floor = 0
        if self.buffered_bytes_per_partition is None:
            floor += self.least_batch_bytes * tasks.partitions
        if self.write_buffer_bytes is None:
            floor += LEAST_WRITE_BUFFER_BYTES * self.max_write_buffer_number * tasks.stores
        return floor

    def _ensure_floor(self, tasks: Task) -> None:
        """Raise MemoryPlanError if a thread's share is smaller than what its tasks need at least."""
        what = (
            " and ".join(["Producer and Consumer", *(part.name for part in self.parts)]) + " of each thread"
        )
        if self.buffered_bytes_per_partition is None:
            batch = f"one batch of {self.least_batch_bytes} bytes for each of {tasks.partitions} partitions of a thread"
            what = f"{batch} beside {what}"
        if self.write_buffer_bytes is None and tasks.stores:
            what += f", and {self.max_write_buffer_number} write buffers for each of {tasks.stores} stores"
        self._division.ensure_rest(self._floor_of(tasks), f"memory plan: {what}")

    def _warn(self, plans: Sequence[ThreadPlan]) -> None:
        """Log one warning if the rest of any thread is negative ("Summary")."""
        worst = min(plans, key=lambda plan: plan.rest_bytes)
        if worst.rest_bytes >= 0:
            return
        given = {
            "buffered_bytes_per_partition": self.buffered_bytes_per_partition if worst.partitions else None,
            "block_cache_bytes": self.block_cache_bytes if worst.stores else None,
            "write_buffer_bytes": self.write_buffer_bytes if worst.stores else None,
        }
        names = [name for name, value in given.items() if value is not None]
        least = self._division.least_total(self.usable_bytes - worst.rest_bytes)
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
        """Return a row for each thread, numbered from 0, and a last row `total` with sums. Sizes are in bytes.

        The sums leave out columns that cannot be added up, such as `buffered_bytes_per_partition`.
        """
        rows: list[dict[str, int | str]] = [
            {"thread": number, **plan.to_json()} for number, plan in enumerate(plans)
        ]
        each = {"thread", "buffered_bytes_per_partition", "write_buffer_bytes", "max_write_buffer_number"}
        names = rows[0].keys() if rows else ()
        sums = {name: sum(int(row[name]) for row in rows) for name in names if name not in each}
        return [*rows, {"thread": "total", **sums}]

    def to_json(self, plans: Iterable[ThreadPlan] = ()) -> dict[str, Any]:
        """Return this plan and the `plans` of its threads as one JSON object; sizes in bytes."""
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


def spread(tasks: Iterable[Task], threads: int) -> list[list[Task]]:
    """Distribute tasks over threads in turn; the numbers of tasks differ by one at most.

    Raises ValueError for less than one thread.
    """
    _count("threads", threads, 1)
    of_threads: list[list[Task]] = [[] for _ in range(threads)]
    for number, task in enumerate(tasks):
        of_threads[number % threads].append(task)
    return of_threads


def _use_text(plan: ThreadPlan) -> str:
    """Return a text on the bytes that the partitions and stores of a thread use."""
    uses = (
        (plan.partitions, "partition buffers", "partitions buffer", plan.buffer_bytes),
        (plan.stores, "store takes", "stores take", plan.state_bytes),
    )
    texts = [
        f"{count} {one if count == 1 else many} {size} bytes" for count, one, many, size in uses if count
    ]
    return " and ".join(texts)


def _count(name: str, value: int, least: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{name}: expected a number, found {value!r}")
    if value < least:
        raise ValueError(f"{name}: expected {least} or more, found {value}")
    return value
