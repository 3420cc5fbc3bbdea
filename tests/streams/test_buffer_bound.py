"""One bound for all buffers: busy partitions use what quiet ones leave, and none starves.

Memory Management in Kafka Streams, "Summary": `buffered.records.bytes`, a bound "at the global level".
"""

from __future__ import annotations

import random

import pytest

import reference as ref
from kafkafmt import TopicPartition
from kafkafmt.memory import MemoryBudget
from kafkafmt.streams import PartitionGroup
from reference import Row
from streams.partition_logs import Log, log_of

KIB = 1024
A, B, C, D = (TopicPartition("t", number) for number in range(4))
ALL = (A, B, C, D)


def log_at(times: list[int], size: int = 2000) -> Log:
    """A batch of one record for each time."""
    return log_of(*(ref.batch_of([Row(n, time, b"k", b"v" * size)]) for n, time in enumerate(times)))


def fill(group: PartitionGroup, logs: dict[TopicPartition, Log], run_bytes: int = 8 * KIB) -> int:
    """Feed what the group asks for. Returns how many runs it refused in part."""
    refused = 0
    for tp in group.filling():
        run = logs[tp].run(group.fetch_offset(tp), run_bytes)
        if run is None:
            group.finish(tp)
        else:
            refused += group.feed(tp, run) < len(run)
    return refused


def merged(
    group: PartitionGroup, logs: dict[TopicPartition, Log], bound: int
) -> list[tuple[TopicPartition, int]]:
    """All records in order; the bound holds at each step."""
    found = []
    while True:
        taken = group.take()
        assert group.buffered_bytes <= bound
        if taken is not None:
            found += [(taken.topic_partition, record.offset) for record in taken.records()]
        elif group.wanting():
            fill(group, logs)
        else:
            return found


def group_of(logs: dict[TopicPartition, Log], bound: int, least: int, **options: object) -> PartitionGroup:
    group = PartitionGroup(bound, least_bytes=least, **options)  # type: ignore[arg-type]
    for tp in logs:
        group.add(tp)
    return group


def skewed() -> dict[TopicPartition, Log]:
    """A has nearly all records; the others one in a hundred of its time."""
    return {A: log_at(list(range(400)))} | {tp: log_at(list(range(0, 400, 100))) for tp in (B, C, D)}


def test_filling_when_one_partition_is_busy_then_it_uses_what_the_quiet_ones_leave() -> None:
    logs, bound = skewed(), 400 * KIB
    shared, equal = group_of(logs, bound, 20 * KIB), group_of(logs, bound, bound)
    fill(shared, logs)
    fill(equal, logs)
    assert equal.buffered_bytes_of(A) <= bound // 4
    assert shared.buffered_bytes_of(A) > 2 * equal.buffered_bytes_of(A)
    assert shared.buffered_bytes <= bound


def test_filling_when_partitions_have_other_rates_then_all_are_buffered_up_to_the_same_time() -> None:
    logs = {
        A: log_at(list(range(600))),
        B: log_at(list(range(0, 1800, 3))),
        C: log_at(list(range(0, 6000, 10))),
    }
    group = group_of(logs, 600 * KIB, 20 * KIB)
    fill(group, logs, run_bytes=1)
    times = [time for tp, step in ((A, 1), (B, 3), (C, 10)) for time in [group.fetch_offset(tp) * step]]
    # A, whose records are read first, decides; C gets more only within its own part.
    assert times[1] - 3 <= times[0] <= times[1] + 3
    assert group.buffered_bytes_of(A) > 2 * group.buffered_bytes_of(B) > 2 * group.buffered_bytes_of(C)


def test_filling_when_a_quiet_partition_becomes_busy_then_it_gets_its_share_back_as_the_busy_one_drains() -> (
    None
):
    logs = {A: log_at([*range(300), *range(3000, 3010)]), B: log_at([0, *range(300, 3000, 9)])}
    bound, held = 200 * KIB, dict.fromkeys((A, B), 0)
    group = group_of(logs, bound, 10 * KIB)
    found: list[tuple[TopicPartition, int]] = []
    while True:
        taken = group.take(1)
        if taken is not None:
            found += [(taken.topic_partition, record.offset) for record in taken.records()]
            continue
        if not group.wanting():
            break
        fill(group, logs)
        assert group.buffered_bytes <= bound
        held = {tp: max(held[tp], group.buffered_bytes_of(tp)) for tp in held}
    assert len(found) == len(logs[A].rows) + len(logs[B].rows)
    assert min(held.values()) > 120 * KIB


@pytest.mark.parametrize("codec", range(5))
def test_feed_when_the_bound_is_used_up_then_an_empty_partition_takes_a_batch_within_the_bound(
    codec: int,
) -> None:
    batches = [
        ref.batch_of([Row(n, n, b"k", random.Random(n).randbytes(20_000))], codec=codec) for n in range(99)
    ]
    logs = {tp: log_of(*batches) for tp in ALL}
    bound = 4 * 100 * KIB
    budget = MemoryBudget(bound)
    group = group_of(logs, bound, 90 * KIB, budget=budget)
    run = logs[A].run()
    assert run is not None
    assert 0 < group.feed(A, run) < 99
    assert A not in group.wanting()
    for tp in (B, C, D):
        assert tp in group.wanting()
        run = logs[tp].run(0, 1)
        assert run is not None
        assert group.feed(tp, run) == 1
    while group.take() is not None:
        assert budget.held_bytes <= bound
    assert budget.peak_bytes <= bound


@pytest.mark.parametrize("least", [1, 6 * KIB, 1024 * KIB])
@pytest.mark.parametrize("bound", [64 * KIB, 200 * KIB, 4096 * KIB])
def test_merge_when_the_bound_is_divided_in_any_way_then_results_are_the_same(bound: int, least: int) -> None:
    chosen = random.Random(bound + least)
    logs = {
        tp: log_at(sorted(chosen.randrange(50_000) for _ in range(count)), size=100)
        for tp, count in zip(ALL, (500, 100, 10, 1), strict=True)
    }
    expected = sorted((row.timestamp, tp, row.offset) for tp, log in logs.items() for row in log.rows)
    found = merged(group_of(logs, bound, least), logs, bound)
    assert found == [(tp, offset) for _, tp, offset in expected]


def test_finish_when_quiet_partitions_end_then_the_others_share_their_parts() -> None:
    logs = skewed()
    group = group_of(logs, 400 * KIB, 80 * KIB)
    fill(group, logs)  # finishes B, C and D
    fill(group, logs)
    assert group.buffered_bytes_of(A) > 200 * KIB  # three parts of 80 KiB would leave 160


def test_filling_with_a_timestamp_extractor_then_partitions_are_filled_alike() -> None:
    logs = {A: log_at(list(range(400))), B: log_at(list(range(0, 4000, 10)))}
    group = group_of(logs, 400 * KIB, 20 * KIB, timestamp_extractor=lambda record, _: record.offset)
    fill(group, logs)
    held = [group.buffered_bytes_of(tp) for tp in logs]
    assert max(held) - min(held) <= 16 * KIB
