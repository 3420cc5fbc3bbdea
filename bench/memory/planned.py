"""The same from the top down: a plan of one number, made anew whenever partitions come or go, and a budget.

What `kafkafmt replay --by-time --memory` and `kafkafmt table --memory` run, with their plans; partitions come and go
here, and the table is committed when they do, as Kafka Streams commits at a rebalance. Records are those of the logs,
or of a broker that has them. A replay may have two threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkafmt import Codec, TopicPartition
from kafkafmt.cli.log_selection import Selection
from kafkafmt.cli.topic_selection import LiveSettings, SelectedTopics
from kafkafmt.jobs.memory import CLUSTER, plan_for
from kafkafmt.jobs.partition_readers import PartitionReaders
from kafkafmt.jobs.replay import BUFFERS_AHEAD, JoinedMerge, LogTarget, Merge
from kafkafmt.jobs.table import Table, TableState, bound_threads
from kafkafmt.jobs.thread_shares import shares_of
from kafkafmt.memory import MemoryPlan, Part
from kafkafmt.mirror.addresses import ClusterAddress

if TYPE_CHECKING:
    from bench.memory.topic import Topic
    from kafkafmt import Record
    from kafkafmt.jobs.readers import Readers

REPLAYED, TABLED = "replayed", "table.parquet"
_WRITING = Part("writing", one_in=16)
THREADS = 2


def readers_of(topic: Topic) -> PartitionReaders:
    folders = {TopicPartition(topic.name, number): topic.folder(number) for number in range(topic.partitions)}
    return PartitionReaders(folders)


class Source:
    """Where records come from: the logs, or a broker that has them, by its address."""

    def __init__(self, topic: Topic, bootstrap: str | None = None) -> None:
        self._topic = topic
        self._live: SelectedTopics | None = None
        self.kind: Any = topic.log_dir
        if bootstrap is not None:
            address = ClusterAddress((bootstrap,), (topic.name,))
            selection = Selection(address, None, "read_committed", "fail", from_segment_start=False)
            self._live, self.kind = SelectedTopics(selection, LiveSettings(False, None, {})), CLUSTER

    @property
    def name(self) -> Any:
        return self._topic.log_dir if self._live is None else self._live.name

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self._topic.name, number) for number in range(self._topic.partitions)]

    def open(self, plan: MemoryPlan, partitions: Sequence[TopicPartition]) -> AbstractContextManager[Readers]:
        if self._live is not None:
            return self._live.open(plan, partitions)
        return nullcontext(PartitionReaders({one: self._topic.folder(one.partition) for one in partitions}))


class PlannedReplay:
    """A merge that goes to a log directory with lz4 as it is taken."""

    def __init__(self, topic: Topic, memory_bytes: int, folder: Path, source: Source, threads: int) -> None:
        self._name = topic.name
        shares = shares_of(source.partitions, threads)
        ahead = BUFFERS_AHEAD if threads > 1 else 0
        plan = plan_for(
            memory_bytes,
            max(map(len, shares)) + ahead,
            writing=_WRITING,
            source=source.kind,
            threads=threads,
        )
        with ExitStack() as stack:
            merges = [
                stack.enter_context(
                    Merge(stack.enter_context(source.open(plan, share)), plan, buffers_ahead=ahead)
                )
                for share in shares
            ]
            self._merge: Merge | JoinedMerge = (
                merges[0] if threads == 1 else stack.enter_context(JoinedMerge(merges))
            )
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
        peak = self._merge.peak_bytes
        self._opened.close()
        return {"counted_bytes": peak}


class PlannedTable:
    """A table that is committed when partitions come or go, and becomes a Parquet file at the end."""

    def __init__(self, topic: Topic, memory_bytes: int, folder: Path, source: Source) -> None:
        self._name, self._folder = topic.name, folder
        state = TableState(folder / "state", source.name, topics=None, isolation="read_committed")
        plan = plan_for(memory_bytes, 1, 1, source=source.kind)
        with ExitStack() as stack:
            readers = stack.enter_context(source.open(plan, source.partitions))
            self._table = stack.enter_context(Table(readers, state, plan))
            self._opened = stack.pop_all()

    def assign(self, numbers: Sequence[int]) -> None:
        self._table.assign([TopicPartition(self._name, number) for number in numbers])

    def revoke(self, numbers: Sequence[int]) -> None:
        self._table.commit()
        self._table.revoke([TopicPartition(self._name, number) for number in numbers])

    def take(self) -> int | None:
        return self._table.step()

    def finish(self) -> dict[str, Any]:
        table = self._table
        with self._opened:
            bound_threads()
            table.write(self._folder / TABLED)
            return {"counted_bytes": table.budget.peak_bytes}
