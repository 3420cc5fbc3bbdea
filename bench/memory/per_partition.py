"""What is bounded for each partition and each store alone, from the bottom up, with Kafka Streams' own numbers.

A partition is fetched from while it has fewer than 1000 deserialised records (`buffered.records.per.partition`), a
batch at a time, since batches are decompressed whole. A store has a block cache of 50 MB and up to three write
buffers of 16 MB, as RocksDBStore there. Nothing here knows how many partitions there are.
"""

from __future__ import annotations

import heapq
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rocksdict import BlockBasedOptions, Cache, Options, Rdict

from bench.memory.brute_force import table_checksum
from kafkafmt import FileRecords

if TYPE_CHECKING:
    from bench.memory.topic import Topic
    from kafkafmt import Record

BUFFERED_RECORDS_PER_PARTITION = 1000
BLOCK_CACHE_BYTES = 50 * 1024 * 1024
WRITE_BUFFER_BYTES = 16 * 1024 * 1024
MAX_WRITE_BUFFER_NUMBER = 3

_STAMP = struct.Struct("<qq")


class Buffered(NamedTuple):
    """A record as an object of its own, as Kafka Streams' RecordQueue keeps them."""

    timestamp: int
    offset: int
    key: bytes | None
    value: Any


def as_bytes(record: Record) -> Buffered:
    return Buffered(record.timestamp, record.offset, record.key, record.value)


@dataclass(frozen=True)
class Buffering:
    """How many records of a partition are buffered before it is paused, and as what."""

    records: int = BUFFERED_RECORDS_PER_PARTITION
    buffered: Callable[[Record], Buffered] = as_bytes


class _Partition:
    """A partition from an offset on, in batches that are decompressed whole."""

    def __init__(self, topic: Topic, number: int, offset: int, how: Buffering) -> None:
        self.offset = offset
        self._how = how
        self.queue: deque[Buffered] = deque()
        self._batches = self._read(sorted(topic.folder(number).glob("*.log")))

    def fill(self) -> bool:
        """Whether there is a record."""
        while len(self.queue) < self._how.records:
            batch = next(self._batches, None)
            if batch is None:
                break
            self.queue.extend(batch)
        return bool(self.queue)

    def pop(self) -> Buffered:
        record = self.queue.popleft()
        self.offset = record.offset + 1
        return record

    def _read(self, segments: Sequence[Path]) -> Iterator[list[Buffered]]:
        for path in segments:
            with FileRecords(path) as records:
                for batch in records.batches():
                    if batch.last_offset >= self.offset:
                        yield [
                            self._how.buffered(one) for one in batch.records() if one.offset >= self.offset
                        ]


KAFKA_STREAMS = Buffering()


class PerPartitionReplay:
    """Merges partitions by timestamp out of queues that are bounded each for itself."""

    def __init__(self, topic: Topic, how: Buffering = KAFKA_STREAMS) -> None:
        self._topic = topic
        self._how = how
        self._offsets = [0] * topic.partitions
        self._partitions: dict[int, _Partition] = {}
        self._heads: list[tuple[int, int]] = []

    def revoke(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._offsets[number] = self._partitions.pop(number).offset
        self._heads = [head for head in self._heads if head[1] not in numbers]
        heapq.heapify(self._heads)

    def assign(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._partitions[number] = _Partition(self._topic, number, self._offsets[number], self._how)
            self._push(number)

    def take(self) -> Sequence[tuple[int, Sequence[Buffered]]] | None:
        """Partition and records, of the next record alone; None where all that are assigned have ended."""
        if not self._heads:
            return None
        _, number = heapq.heappop(self._heads)
        record = self._partitions[number].pop()
        self._push(number)
        return [(number, (record,))]

    def finish(self) -> dict[str, object]:
        """Nothing is left to be done."""
        return {}

    def _push(self, number: int) -> None:
        partition = self._partitions[number]
        if partition.fill():
            heapq.heappush(self._heads, (partition.queue[0].timestamp, number))


class PerPartitionTable:
    """The latest value of each key, a store for each partition with settings of its own."""

    def __init__(self, topic: Topic, state: Path) -> None:
        self._topic, self._state = topic, state
        self._offsets = [0] * topic.partitions
        self._partitions: dict[int, _Partition] = {}
        self._stores: dict[int, Rdict] = {}
        self._turns: deque[int] = deque()

    def revoke(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._offsets[number] = self._partitions.pop(number).offset
            self._stores.pop(number).close()
        self._turns = deque(number for number in self._turns if number not in numbers)

    def assign(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._partitions[number] = _Partition(self._topic, number, self._offsets[number], KAFKA_STREAMS)
            self._stores[number] = Rdict(str(self._state / str(number)), _store_options())
        self._turns.extend(numbers)

    def take(self) -> int | None:
        """Put what is buffered of the next partition in turn, and return how many records; None at the end of all."""
        while self._turns:
            number = self._turns.popleft()
            partition, store = self._partitions[number], self._stores[number]
            if not partition.fill():
                continue
            self._turns.append(number)
            taken = len(partition.queue)
            while partition.queue:
                _put(store, partition.pop())
            return taken
        return None

    def finish(self) -> dict[str, object]:
        """The checksum of each partition's table, and how many rows it has."""
        stores = [self._stores[number] for number in sorted(self._stores)]
        tables = [table_checksum(_row(*item) for item in store.items()) for store in stores]
        rows = [sum(1 for _ in store.items()) for store in stores]
        for store in stores:
            store.close()
        return {"tables": tables, "rows": rows}


def _store_options() -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(MAX_WRITE_BUFFER_NUMBER)
    return options


def _put(store: Rdict, record: Buffered) -> None:
    if record.key is not None and record.value is not None:
        store[record.key] = _STAMP.pack(record.offset, record.timestamp) + record.value
    elif record.key is not None:
        store.delete(record.key)


def _row(key: bytes, stored: bytes) -> tuple[bytes, int, int, bytes]:
    return key, *_STAMP.unpack_from(stored), stored[_STAMP.size :]
