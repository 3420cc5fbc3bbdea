"""Read the latest value of each key from logs, or from a cluster, into a store. A tombstone deletes its key.

Partitions are read in turn, run by run, so only one partition is buffered at a time. By default values go through a
cache to RocksDB (Memory Management in Kafka Streams, "Triggering based Caches"), so a frequent key is seldom written.
`stores.py` has the other kinds of stores. A commit writes the entries of the cache and the position of each partition.
Records after the last commit are read again after a crash, with the same result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.closing import Closing
from kafkafmt.jobs.memory import LargeBatches
from kafkafmt.jobs.readers import Readers, take_sound
from kafkafmt.jobs.table.parquet import write_table
from kafkafmt.jobs.table.rows import VALUE_PREFIX, TableRow, stored_rows
from kafkafmt.jobs.table.state import TableError, TableState
from kafkafmt.jobs.table.stores import TableStore
from kafkafmt.memory import MemoryBudget, MemoryPlan
from kafkafmt.records.runs import slice_run
from kafkafmt.streams import PartitionGroup
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from _kafkafmt.records.decode import Record
    from kafkafmt.streams import RecordSlice

# The number of records that are reduced to the latest one of each key before they go into the cache.
_MAX_RECORDS = 1024


class Table(Closing):
    """Read the assigned partitions into the store of `state`. A context manager, which does not commit.

    plan: the memory plan; this uses the share of one thread. on_move: see `TableStore`.

    The store has the position of each partition, so a partition that is assigned again continues there. Raises what
    store and readers raise.
    """

    def __init__(
        self,
        readers: Readers,
        state: TableState,
        plan: MemoryPlan,
        *,
        on_move: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._readers, self._state, self._memory_plan = readers, state, plan
        self.plan = plan.thread_plan(1, 1)
        self.budget = MemoryBudget(plan.thread_bytes)
        self.records = self.null_keys = self.read_bytes = 0
        self._turns: deque[TopicPartition] = deque()
        self._prefixes: dict[TopicPartition, bytes] = {}
        state.number_topics(topic for topic, _ in readers.partitions)
        with ExitStack() as stack:
            for name, size in plan.fixed_bytes.items():
                stack.enter_context(self.budget.child(name).reserve(size, timeout=0))
            buffers = self.budget.child("buffers")
            stack.callback(buffers.close)
            large = LargeBatches(plan, self.budget)
            stack.callback(large.close)
            self._group = PartitionGroup(
                self.plan.buffered_bytes_per_partition, budget=buffers, verify=False, batch_bound=large
            )
            self._kept = TableStore(state.store_path, plan, self.budget, on_move=on_move)
            stack.callback(self._kept.close)
            self._reserved = stack.pop_all()
        self._store = self._kept.store
        self._positions = dict(self._store.positions())

    def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Add these partitions. Each is read from its position, or from its start.

        A partition whose folder was deleted meanwhile is left out: see `PartitionReaders.deleted`. Raises TableError if
        a log ends before the position that the state has of it.
        """
        new = sorted({*topic_partitions} - self._prefixes.keys())
        self._state.number_topics(topic for topic, _ in new)
        for topic_partition in new:
            position = self._positions.get(topic_partition)
            end_offset = self._readers.end_offset(topic_partition)
            if end_offset is None:
                continue
            if position is not None and position > end_offset:
                raise TableError(
                    f"{self._state.path}: {topic_partition} was read to offset {position}, and its log ends at "
                    f"{end_offset} now: expected the log that the state was made from"
                )
            self._readers.seek(topic_partition, position)
            self._prefixes[topic_partition] = self._state.key_prefix(topic_partition)
            self._turns.append(topic_partition)
        self._divide()

    def revoke(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        gone = {*topic_partitions}.intersection(self._prefixes)
        self._turns = deque(one for one in self._turns if one not in gone)
        for topic_partition in gone:
            self._readers.rest(topic_partition)
            del self._prefixes[topic_partition]
        self._divide()

    def _divide(self, *, is_buffering: bool = False) -> None:
        """Divide the memory again: a table without partitions gives the bytes of their buffer to store and cache.

        is_buffering: keep the bytes of a buffer in any case.
        """
        plan = self._memory_plan.thread_plan(1 if is_buffering or self._prefixes else 0, 1)
        if plan == self.plan:
            return
        self.plan = plan
        self._group.resize(plan.buffered_bytes_per_partition)
        self._kept.resize(plan)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset to read of each assigned partition of which something was read."""
        return {one: self._positions[one] for one in self._prefixes if one in self._positions}

    def step(self) -> int | None:
        """Read one run of the next partition in turn. Returns its number of records; None after the last run of all.

        Returns 0 if nothing has arrived from a cluster for a while. Raises CorruptRecordError and OSError if a log
        cannot be read, and MemoryPlanError for a batch that is too large for the plan.
        """
        while ready := self._readers.ready(self._turns):
            topic_partition = ready[0]
            offset = self._readers.offset(topic_partition)
            run = self._readers.read(topic_partition)
            if run is None:
                self._positions[topic_partition] = self._readers.offset(topic_partition)
                self._turns.remove(topic_partition)
                self._readers.rest(topic_partition)
                continue
            self.read_bytes += int(run.index["size"].sum())
            try:
                records = self._put_run(topic_partition, offset, run)
            except BaseException:
                self._readers.seek(topic_partition, offset)  # the next step reads the run again
                raise
            self._positions[topic_partition] = self._readers.offset(topic_partition)
            self._turns.remove(topic_partition)
            self._turns.append(topic_partition)
            self.records += records
            return records
        return None if self._readers.is_over else 0

    def _put_run(self, topic_partition: TopicPartition, offset: int, run: BatchRun) -> int:
        """Put the records of a run from `offset` on into the store. Returns how many."""
        records = fed = 0
        self._group.add(topic_partition, offset)
        try:
            while fed < len(run):
                fed += self._group.feed(topic_partition, slice_run(run, fed, len(run)))
                while (taken := take_sound(self._group, self._readers, self._group.take)) is not None:
                    self._put(taken)
                    records += taken.stop - taken.first
        finally:
            self._group.remove(topic_partition)
        return records

    def commit(self) -> None:
        """Write all values that were read, with the positions, to disk."""
        self._store.commit(self._positions)

    def rows(self) -> Iterator[TableRow]:
        """Iterate over the rows of the readers' own partitions, sorted by partition and key. Commit before.

        Topics that were added to an existing state come last.
        """
        return stored_rows(self._store, self._state, self._readers.owned)

    def write(self, path: Path) -> int:
        """Commit, and write all rows to a Parquet file. Returns their number. The cache gives its memory for this.

        Raises as `write_table`.
        """
        self.commit()
        self._divide(is_buffering=True)
        size = self.plan.buffered_bytes_per_partition
        with self._kept.without_cache(), self.budget.child("parquet").reserve(size):
            return write_table(path, self.rows(), memory_bytes=size, before_rename=self._state.note_written)

    def leave(self) -> None:
        """End the reading: a group's positions are committed, and its other members get the partitions."""
        self._readers.leave()

    def close(self) -> None:
        """Close the store, and release all memory. Records after the last commit are read again in the next run."""
        self._reserved.close()

    def _put(self, taken: RecordSlice) -> None:
        records = taken.records()
        prefix, store = self._prefixes[taken.topic_partition], self._store
        while some := list(islice(records, _MAX_RECORDS)):
            latest: dict[bytes | None, Record] = {record.key: record for record in some}
            if None in latest:
                del latest[None]
                self.null_keys += sum(record.key is None for record in some)
            for key, record in latest.items():
                assert key is not None
                value = record.value
                if value is None:
                    store.delete(prefix + key)
                else:
                    kept = VALUE_PREFIX.pack(record.offset, record.timestamp, record.timestamp_type)
                    store.put(prefix + key, kept + value)
