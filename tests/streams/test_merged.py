"""What a group hands out of several partitions at once: the order, what it waits for, what is held, and its kernel."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference as ref
from _kafkafmt.records.decode import LocatedRecords
from _kafkafmt.streams.merge import PLACE_BYTES, Heads, MergedRecords
from _kafkafmt.streams.record_cursor import RecordCursor
from kafkafmt import MemoryRecords, TopicPartition
from kafkafmt.build.builder import BatchesBuilder
from kafkafmt.errors import CorruptRecordError
from kafkafmt.memory import MemoryBudget
from kafkafmt.streams import Merged, PartitionGroup
from records.samples import as_rows
from reference import Row
from streams.partition_logs import Log, log_of
from streams.test_group import MIB, PARTITIONS, A, B, C, damaged, feed, group_of, held_by_hand, rows

D = PARTITIONS[3]


def order_of(merged: Merged) -> list[tuple[TopicPartition, int]]:
    return [(run.topic_partition, record.offset) for run in merged.runs() for record in run.records()]


def merges(group: PartitionGroup, most: int | None = None) -> list[list[tuple[TopicPartition, int]]]:
    """Partition and offset of all that is handed out, of each time on its own."""
    found = []
    while (merged := group.take_merged(most)) is not None:
        assert len(merged) == len(order_of(merged))
        found.append(order_of(merged))
    return found


def merge_into(found: list[tuple[TopicPartition, int]], group: PartitionGroup) -> None:
    """All that is handed out until an error, too."""
    while (merged := group.take_merged()) is not None:
        found += order_of(merged)


def interleaved(count: int, codec: int = 0) -> dict[TopicPartition, Log]:
    """The partitions taking turns, in batches of a hundred."""
    return {
        tp: log_of(
            *(
                ref.batch_of(rows(n, *(4 * k + number for k in range(n, n + 100)), size=50), codec=codec)
                for n in range(0, count, 100)
            )
        )
        for number, tp in enumerate(PARTITIONS)
    }


# The order, and where it ends


@pytest.mark.parametrize("codec", range(5))
def test_take_merged_when_partitions_alternate_then_ends_with_a_buffer(codec: int) -> None:
    group = group_of(
        {
            A: log_of(ref.batch_of(rows(0, 10, 30, 50), codec=codec)),
            B: log_of(ref.batch_of(rows(7, 20, 40), codec=codec)),
        }
    )
    assert merges(group) == [[(A, 0)], [(B, 7), (A, 1), (B, 8)], [(A, 2)]]
    assert group.stream_time == 50
    assert group.buffered_bytes == 0


def test_take_merged_when_timestamps_are_equal_or_go_back_then_as_take() -> None:
    made = {
        C: log_of(ref.batch_of(rows(0, 5, 5))),
        A: log_of(ref.batch_of(rows(0, 5, 3, 6))),
        B: log_of(ref.batch_of(rows(0, 5, 9))),
    }
    found = [one for merged in merges(group_of(made)) for one in merged]
    assert found == [(A, 0), (A, 1), (B, 0), (C, 0), (C, 1), (A, 2), (B, 1)]


@pytest.mark.parametrize("most", [1, 7, 100, None])
def test_take_merged_when_most_records_is_given_then_takes_no_more(most: int | None) -> None:
    found = merges(group_of(interleaved(400)), most)
    assert [one for merged in found for one in merged] == [(tp, n) for n in range(400) for tp in PARTITIONS]
    sizes = [len(merged) for merged in found]
    assert max(sizes) <= (most or max(sizes))
    if most != 1:
        assert len(sizes) < 1600 // 5
    with pytest.raises(ValueError, match="expected 1 or more, found 0"):
        PartitionGroup(MIB).take_merged(0)


def test_take_merged_when_taken_in_turns_with_take_then_goes_on_where_each_was() -> None:
    group = group_of(interleaved(300))
    found: list[tuple[TopicPartition, int]] = []
    while (merged := group.take_merged(5)) is not None:
        found += order_of(merged)
        if (taken := group.take(3)) is not None:
            found += [(taken.topic_partition, record.offset) for record in taken.records()]
        for tp in PARTITIONS:
            assert group.offset(tp) == sum(one[0] == tp for one in found)
    assert found == [(tp, n) for n in range(300) for tp in PARTITIONS]


def test_take_merged_when_a_partition_has_nothing_yet_then_none_until_it_is_fed() -> None:
    made = interleaved(100)
    group = PartitionGroup(MIB)
    for tp in PARTITIONS:
        group.add(tp)
    for tp in PARTITIONS[:3]:
        feed(group, tp, made[tp], finished=False)
    assert group.take_merged() is None
    feed(group, D, made[D])
    found = [one for merged in merges(group) for one in merged]
    assert found[-1] == (A, 99)  # whose next record is to be waited for


def test_take_merged_when_partitions_come_and_go_then_ranks_are_by_topic_and_partition_again() -> None:
    made = {tp: log_of(ref.batch_of(rows(0, *[5] * 6))) for tp in PARTITIONS}
    group = group_of({tp: made[tp] for tp in (D, B)})
    first = group.take_merged(2)
    assert first is not None
    assert order_of(first) == [(B, 0), (B, 1)]
    group.add(A)
    feed(group, A, made[A])
    assert [one for merged in merges(group, 2)[:3] for one in merged] == [(A, n) for n in range(6)]
    group = group_of({tp: made[tp] for tp in (D, B, A)})
    taken = group.take_merged(4)
    assert taken is not None
    assert group.remove(A) == 4
    assert [one for merged in merges(group) for one in merged] == [(tp, n) for tp in (B, D) for n in range(6)]


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_take_merged_when_a_batch_is_damaged_then_what_is_before_it_comes_first(codec: int) -> None:
    sound = [ref.batch_of(rows(n, n * 10, n * 10), codec=codec) for n in (0, 2, 4)]
    group = group_of(
        {
            A: Log(sound[0] + damaged(sound[1]) + sound[2], []),
            B: log_of(ref.batch_of(rows(0, 5, 25, 60), codec=codec)),
        }
    )
    found: list[tuple[TopicPartition, int]] = []
    with pytest.raises(CorruptRecordError, match=r"^a-0: .*CRC mismatch.*offsets 2 to 3"):
        merge_into(found, group)
    assert found == [(A, 0), (A, 1), (B, 0)]
    assert group.failed == A
    assert group.skip(A) == 4
    assert [one for merged in merges(group) for one in merged] == [(B, 1), (A, 4), (A, 5), (B, 2)]
    assert group.buffered_bytes == 0


def test_take_merged_when_there_is_an_extractor_then_it_decides() -> None:
    group = group_of(
        {A: log_of(ref.batch_of(rows(0, 1, 2))), B: log_of(ref.batch_of(rows(0, 1, 2)))},
        timestamp_extractor=lambda record, _: 100 - 10 * record.timestamp,
    )
    assert [one for merged in merges(group) for one in merged] == [(A, 0), (A, 1), (B, 0), (B, 1)]


# What is held


@pytest.mark.parametrize("codec", range(5))
def test_buffered_bytes_when_a_merge_was_handed_out_then_its_places_until_the_next(codec: int) -> None:
    group = group_of(interleaved(300, codec))
    merged = group.take_merged()
    while merged is not None:
        places = 0 if group._placing is None else PLACE_BYTES * len(merged)
        assert group.buffered_bytes == held_by_hand(group) + places
        group.wanting()
        assert group.buffered_bytes == held_by_hand(group)
        merged = group.take_merged()
    assert group.buffered_bytes == 0


@pytest.mark.parametrize("total", [1, 60_000, 200_000])
def test_budget_when_it_has_no_room_for_places_then_hands_out_in_the_same_order(total: int) -> None:
    made = interleaved(300, ref.LZ4)
    budget = MemoryBudget(total)
    group = PartitionGroup(MIB, budget=budget)
    for tp in PARTITIONS:
        group.add(tp)
    found: list[tuple[TopicPartition, int]] = []
    while len(found) < 1200:
        if (merged := group.take_merged()) is not None:
            found += order_of(merged)
        else:
            for tp in group.wanting():
                feed(group, tp, made[tp], finished=group.fetch_offset(tp) == 300)
        assert budget.held_bytes == group.buffered_bytes
    assert found == [(tp, n) for n in range(300) for tp in PARTITIONS]
    for tp in PARTITIONS:
        group.remove(tp)
    assert budget.held_bytes == 0


def test_take_merged_when_whoever_is_asked_for_memory_raises_then_the_next_one_has_all_that_is_left() -> None:
    made = interleaved(100)
    budget = MemoryBudget(MIB)
    group = PartitionGroup(MIB, budget=budget)
    for tp in PARTITIONS:
        group.add(tp)
        feed(group, tp, made[tp])
    first = group.take_merged(10**30)
    assert first is not None
    found = order_of(first)
    group.wanting()

    def refuse(wanted_bytes: int) -> None:
        raise OSError(f"{wanted_bytes} bytes are not given back")

    forget = budget.on_pressure(refuse)
    with budget.reserve(budget.available_bytes), pytest.raises(OSError, match="are not given back"):
        merge_into(found, group)
    forget()
    found += [one for merged in merges(group) for one in merged]
    assert found == [(tp, n) for n in range(100) for tp in PARTITIONS]
    for tp in PARTITIONS:
        group.remove(tp)
    assert budget.held_bytes == 0


def test_merged_when_group_goes_on_and_drops_all_then_records_are_still_there() -> None:
    made = interleaved(300, ref.ZSTD)
    group = group_of(made)
    kept = []
    while (merged := group.take_merged()) is not None:
        kept.append(merged)
    for tp in PARTITIONS:
        group.remove(tp)
    found = [row for merged in kept for run in merged.runs() for row in as_rows(run.records())]
    assert found == [made[tp].rows[n] for n in range(300) for tp in PARTITIONS]


# What becomes of them


def test_by_topic_when_there_are_several_then_each_has_its_own_in_order() -> None:
    group = group_of(interleaved(200))
    found: dict[str, list[tuple[TopicPartition, int]]] = {"a": [], "b": []}
    while (merged := group.take_merged()) is not None:
        for topic, records in merged.by_topic().items():
            found[topic] += order_of(records)
    for topic, ones in found.items():
        assert ones == [(tp, n) for n in range(200) for tp in PARTITIONS if tp.topic == topic]


def test_fill_merged_when_batches_end_then_all_records_are_there_once_and_in_order() -> None:
    made = interleaved(300, ref.LZ4)
    group = group_of(made)
    builder = BatchesBuilder(batch_size=1000)
    batches = []
    while (merged := group.take_merged()) is not None:
        number = 0
        while (number := builder.fill_merged(merged.records, number)) < len(merged):
            batches.append(builder.finish())
    batches.append(builder.finish())
    assert max(map(len, batches)) <= 1000
    found = as_rows(MemoryRecords(b"".join(batches)).records())
    assert [row.offset for row in found] == list(range(1200))
    expected = [made[tp].rows[n] for n in range(300) for tp in PARTITIONS]
    assert [row[1:] for row in found] == [row[1:] for row in expected]


def test_fill_merged_when_a_record_cannot_be_appended_then_error_once_it_is_the_first() -> None:
    records = merged_of([Row(0, 5, None, b"a"), Row(1, -7, None, b"b"), Row(2, 8, None, b"c")])
    builder = BatchesBuilder()
    assert builder.fill_merged(records, 0) == 1
    with pytest.raises(ValueError, match=r"timestamps, entry 1: expected -1 \(none\) or more, found -7"):
        builder.fill_merged(records, 1)
    assert builder.fill_merged(records, 2) == 3
    with pytest.raises(IndexError, match="records 4 to 3 of 3"):
        builder.fill_merged(records, 4)


# The kernel


def located_of(made: list[Row]) -> LocatedRecords:
    (run,) = MemoryRecords(ref.batch_of(made)).runs()
    return LocatedRecords(run)


def merged_of(made: list[Row]) -> MergedRecords:
    return MergedRecords(located_of(made), 0, len(made))


def test_merged_records_when_of_one_part_then_that_is_its_run() -> None:
    located = located_of(rows(0, 1, 2, 3))
    records = MergedRecords(located, 1, 3)
    assert len(records) == 2
    assert records.run(0) == (0, located, 1, 3)
    assert records.run(1) == (0, located, 2, 3)
    (alone,) = records.split(np.array([0], np.int32), 1)
    assert alone.run(0) == (0, located, 1, 3)


def test_merged_records_when_arguments_are_wrong_then_error() -> None:
    located = located_of(rows(0, 1, 2, 3))
    records = MergedRecords(located, 1, 3)
    for number in (-1, 2):
        with pytest.raises(IndexError):
            records.run(number)
    for first, stop in ((-1, 1), (2, 1), (0, 4)):
        with pytest.raises(IndexError):
            MergedRecords(located, first, stop)
    with pytest.raises(RuntimeError, match="already initialised"):
        records.__init__(located, 0, 1)
    for groups, count in (([], 1), ([1], 1), ([-1], 1), ([0, 0], 1), ([0], 0)):
        with pytest.raises(ValueError, match="groups: expected one of"):
            records.split(np.array(groups, np.int32), count)


def test_heads_when_made_wrong_then_error() -> None:
    with pytest.raises(ValueError, match="ranks: expected 0 or more, found -1"):
        Heads(-1)
    heads = Heads(1)
    with pytest.raises(RuntimeError, match="already initialised"):
        heads.__init__(2)


def test_heads_when_there_is_none_then_index_error() -> None:
    heads = Heads(2)
    for ask in (
        lambda: heads.first,
        heads.limit,
        heads.pop,
        lambda: heads.replace(1, None),
        lambda: heads.merge(1),
    ):
        with pytest.raises(IndexError, match="expected a head, found none"):
            ask()
    with pytest.raises(IndexError, match="expected one that has a head, found 0"):
        heads.remove(0)
    for rank in (-1, 2):
        with pytest.raises(IndexError, match=f"expected one of 2 without a head, found {rank}"):
            heads.push(rank, 1, None)
    heads.push(0, 1, None)
    with pytest.raises(IndexError, match="expected one of 2 without a head, found 0"):
        heads.push(0, 1, None)


def test_heads_when_the_first_has_no_cursor_or_no_record_left_then_value_error() -> None:
    heads = Heads(1)
    heads.push(0, 1, None)
    with pytest.raises(ValueError, match="expected 1 or more, and the cursor of the first head"):
        heads.merge(1)
    cursor = RecordCursor(located_of(rows(0, 1, 2)))
    heads.replace(1, cursor)
    with pytest.raises(ValueError, match="most 0"):
        heads.merge(0)
    merged, ranks = heads.merge(5)
    assert (len(merged), ranks, cursor.next, cursor.latest) == (2, [0], 2, 2)
    with pytest.raises(ValueError, match="the cursor of the first head"):
        heads.merge(5)


def test_heads_when_a_cursor_is_moved_after_it_was_pushed_then_a_split_has_all_merged_records() -> None:
    heads = Heads(1)
    cursor = RecordCursor(located_of(rows(0, 1, 2, 3, 4)))
    heads.push(0, 1, cursor)
    assert cursor.take(3, True, 9) > 0
    merged, _ = heads.merge(9)
    (part,) = merged.split(np.zeros(1, np.int32), 1)
    assert len(part) == len(merged) == 4


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 9), st.data())
def test_heads_when_pushed_replaced_and_removed_then_the_first_is_the_smallest(
    ranks: int, data: st.DataObject
) -> None:
    heads = Heads(ranks)
    model: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(0, 40))):
        timestamp = data.draw(st.integers(-1, 5))
        free = sorted(set(range(ranks)) - {rank for _, rank in model})
        action = data.draw(st.sampled_from(["push", "push", "replace", "pop", "remove"]))
        if action == "push" and free:
            bisect.insort(model, (timestamp, rank := data.draw(st.sampled_from(free))))
            heads.push(rank, timestamp, None)
        elif action == "replace" and model:
            _, rank = model.pop(0)
            bisect.insort(model, (timestamp, rank))
            heads.replace(timestamp, None)
        elif action == "pop" and model:
            model.pop(0)
            heads.pop()
        elif action == "remove" and model:
            heads.remove(model.pop(data.draw(st.integers(0, len(model) - 1)))[1])
        assert sorted((timestamp, rank) for rank, timestamp in heads.known()) == model
        assert len(heads) == len(model)
        if model:
            assert heads.first == model[0][::-1]
            second = (model[1][0], model[0][1] < model[1][1]) if len(model) > 1 else (2**63 - 1, True)
            assert heads.limit() == second
