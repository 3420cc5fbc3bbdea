"""The same from the top down: a plan of one number, made anew whenever partitions come or go, and a budget.

What `kafkafmt replay --by-time --memory` and `kafkafmt table --memory` run, with their plans; partitions come and go
here, and the table is committed when they do, as Kafka Streams commits at a rebalance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkafmt import Codec, TopicPartition
from kafkafmt.jobs.memory import plan_for
from kafkafmt.jobs.partition_readers import PartitionReaders
from kafkafmt.jobs.replay import LogTarget, Merge
from kafkafmt.jobs.table import Table, TableState, bound_threads
from kafkafmt.memory import Part

if TYPE_CHECKING:
    from bench.memory.topic import Topic
    from kafkafmt import Record

REPLAYED, TABLED = "replayed", "table.parquet"
_WRITING = Part("writing", one_in=16)


def readers_of(topic: Topic) -> PartitionReaders:
    folders = {TopicPartition(topic.name, number): topic.folder(number) for number in range(topic.partitions)}
    return PartitionReaders(folders)


class PlannedReplay:
    """A merge that goes to a log directory with lz4 as it is taken."""

    def __init__(self, topic: Topic, memory_bytes: int, folder: Path) -> None:
        self._name = topic.name
        with ExitStack() as stack:
            plan = plan_for(memory_bytes, topic.partitions, writing=_WRITING)
            self._merge = stack.enter_context(Merge(readers_of(topic), plan))
            self._target = LogTarget(folder / REPLAYED, codec=Codec.LZ4)
            stack.callback(self._target.close)
            self._opened = stack.pop_all()

    def assign(self, numbers: Sequence[int]) -> None:
        self._merge.assign([TopicPartition(self._name, number) for number in numbers])

    def revoke(self, numbers: Sequence[int]) -> None:
        self._merge.revoke([TopicPartition(self._name, number) for number in numbers])

    def take(self) -> Iterator[tuple[int, Iterator[Record]]] | None:
        merged = self._merge.take()
        if merged is None:
            return None
        self._target.write(merged)
        return ((taken.topic_partition.partition, taken.records()) for taken in merged.runs())

    def finish(self) -> dict[str, Any]:
        self._target.finish()
        peak = self._merge.budget.peak_bytes
        self._opened.close()
        return {"counted_bytes": peak}


class PlannedTable:
    """A table that is committed when partitions come or go, and becomes a Parquet file at the end."""

    def __init__(self, topic: Topic, memory_bytes: int, folder: Path) -> None:
        self._name, self._folder = topic.name, folder
        state = TableState(folder / "state", topic.log_dir, topics=None, isolation="read_committed")
        plan = plan_for(memory_bytes, 1, 1)
        self._table = Table(readers_of(topic), state, plan)

    def assign(self, numbers: Sequence[int]) -> None:
        self._table.assign([TopicPartition(self._name, number) for number in numbers])

    def revoke(self, numbers: Sequence[int]) -> None:
        self._table.commit()
        self._table.revoke([TopicPartition(self._name, number) for number in numbers])

    def take(self) -> int | None:
        return self._table.step()

    def finish(self) -> dict[str, Any]:
        table = self._table
        with table:
            bound_threads()
            table.write(self._folder / TABLED)
            return {"counted_bytes": table.budget.peak_bytes}
