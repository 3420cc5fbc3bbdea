"""Partitions merged by timestamp: against a merge of all that the reference decodes, whatever happens meanwhile."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kafkafmt import TopicPartition
from kafkafmt.memory import PartitionGroup
from kafkafmt.memory.budget import MemoryBudget
from memory.partition_logs import Log, logs, overwrite
from records.samples import as_row
from reference import Row

PARTITIONS = [TopicPartition(topic, number) for topic in ("a", "b") for number in (0, 1)]
A, B = PARTITIONS[:2]


def fed(group: PartitionGroup, topic_partition: TopicPartition, log: Log, *, finished: bool = True) -> int:
    run = log.run(group.fetch_offset(topic_partition))
    count = group.feed(topic_partition, run) if run is not None else 0
    if finished:
        group.finish(topic_partition)
    return count


def everything(group: PartitionGroup) -> list[tuple[TopicPartition, Row]]:
    found = []
    while (taken := group.take()) is not None:
        found += [(taken.topic_partition, as_row(record)) for record in taken.records()]
    return found


class Model:
    """A group beside what it should hand out: all that the reference reads, and a search for the smallest."""

    def __init__(self, logs: dict[TopicPartition, Log], bound: int, total: int, window: int) -> None:
        self.logs = logs
        self.budget = MemoryBudget(total)
        self.group = PartitionGroup(bound, budget=self.budget)
        self.rest: dict[TopicPartition, list[Row]] = {}
        self.finished: set[TopicPartition] = set()
        self.offsets: dict[TopicPartition, int] = {}
        self.stream_time = -1

    def add(self, tp: TopicPartition) -> None:
        offset = self.offsets.setdefault(tp, 0)
        self.group.add(tp, offset)
        self.rest[tp] = [row for row in self.logs[tp].rows if row.offset >= offset]

    def remove(self, tp: TopicPartition) -> None:
        self.offsets[tp] = self.group.remove(tp)
        handed_out = [row for row in self.logs[tp].rows if row.offset < self.offsets[tp]]
        assert len(handed_out) + len(self.rest.pop(tp)) == len(self.logs[tp].rows)
        self.finished.discard(tp)

    def feed(self, tp: TopicPartition, run_bytes: int) -> None:
        assert (tp in self.group.wanting()) <= (tp not in self.finished)
        was_dry = not self.buffered(tp)
        run = self.logs[tp].run(self.group.fetch_offset(tp), run_bytes)
        if run is None:
            self.group.finish(tp)
            self.finished.add(tp)
            return
        count = self.group.feed(tp, run)
        overwrite(run)
        self.finished.discard(tp)
        assert count or not was_dry

    def buffered(self, tp: TopicPartition) -> list[Row]:
        return [row for row in self.rest[tp] if row.offset < self.group.fetch_offset(tp)]

    def take(self, most: int | None) -> None:
        taken = self.group.take(most)
        heads = {tp: self.buffered(tp) for tp in self.rest}
        is_waiting = any(not heads[tp] and tp not in self.finished for tp in heads)
        assert (taken is None) == (is_waiting or not any(heads.values()))
        if taken is None:
            return
        found = [as_row(record) for record in taken.records()]
        assert 1 <= len(found) <= (most or len(found))
        for row in found:
            ready = [(buffered[0].timestamp, tp) for tp, buffered in heads.items() if buffered]
            timestamp, tp = min(ready)
            assert (tp, row) == (taken.topic_partition, heads[tp].pop(0))
            self.rest[tp].pop(0)
            self.stream_time = max(self.stream_time, timestamp)
        assert self.group.stream_time == self.stream_time

    def check(self) -> None:
        assert self.group.buffered_bytes == self.budget.held_bytes
        assert sum(map(self.group.buffered_bytes_of, self.group.partitions)) == self.group.buffered_bytes

    def drain(self) -> None:
        for _ in range(10_000):
            for tp in self.group.wanting():
                self.feed(tp, 1 << 20)
            if not self.group.wanting() and not any(self.rest.values()):
                return
            self.take(None)
            self.check()
        raise AssertionError("it never comes to the end")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(logs(), min_size=4, max_size=4),
    st.sampled_from([1, 200, 1000, 10_000, 1_000_000]),
    st.sampled_from([1, 1000, 1_000_000]),
    st.data(),
)
def test_group_when_fed_in_any_way_then_hands_out_what_a_merge_of_all_records_has(
    made: list[Log], bound: int, total: int, data: st.DataObject
) -> None:
    model = Model(dict(zip(PARTITIONS, made, strict=True)), bound, total, 0)
    for _ in range(data.draw(st.integers(0, 60))):
        tp = data.draw(st.sampled_from(PARTITIONS))
        if tp not in model.group:
            model.add(tp)
        action = data.draw(st.sampled_from(["feed"] * 4 + ["take"] * 6 + ["remove", "resize"]))
        if action == "feed":
            model.feed(tp, data.draw(st.sampled_from([1, 300, 1 << 20])))
        elif action == "take":
            model.take(data.draw(st.sampled_from([None, 1, 3])))
        elif action == "remove":
            model.remove(tp)
        else:
            model.group.resize(data.draw(st.sampled_from([1, 500, 100_000])))
        model.check()
    for tp in PARTITIONS:
        if tp not in model.group:
            model.add(tp)
    model.drain()
    for tp in PARTITIONS:
        model.remove(tp)
    assert model.budget.held_bytes == model.group.buffered_bytes == 0
