"""Memory Management in Kafka Streams, "Summary": its formulas in its symbols, and what is derived top-down."""

from __future__ import annotations

import inspect
import json
import logging
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from kafkafmt import MemoryPlan, MemoryPlanError
from kafkafmt._util.sizes import parse_size
from kafkafmt.memory import Part, StoreKind, Task, spread

KIB, MIB, GIB = 1024, 1024**2, 1024**3
LOGGER = "kafkafmt.memory"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


# The document's formulas


def test_plan_when_made_then_total_goes_to_the_threads_evenly():
    for Total, numThreads in ((4 * GIB, 4), (4 * GIB, 3), (GIB + 1, 7)):  # noqa: N806
        plan = MemoryPlan(Total, numThreads)
        assert plan.thread_bytes == Total // numThreads


def test_plan_when_producer_and_consumer_are_subtracted_then_the_rest_is_usable():
    Total, numThreads, Producer, Consumer = GIB, 2, 40 * MIB, 60 * MIB  # noqa: N806
    plan = MemoryPlan(Total, numThreads, Producer, Consumer)
    assert plan.usable_bytes == Total // numThreads - Producer - Consumer


def test_plan_when_rebalanced_then_buffer_state_and_cache_are_as_the_document_has_them():
    Total, numThreads, Producer, Consumer = 2 * GIB, 2, 32 * MIB, 50 * MIB  # noqa: N806
    buffered_bytes_per_partition, partitions = 4 * MIB, 12
    block_cache_size, write_buffer_size, max_write_buffer_number, stores = 64 * MIB, 8 * MIB, 3, 5
    thread = MemoryPlan(
        Total,
        numThreads,
        Producer,
        Consumer,
        buffered_bytes_per_partition=buffered_bytes_per_partition,
        block_cache_bytes=block_cache_size,
        write_buffer_bytes=write_buffer_size,
        max_write_buffer_number=max_write_buffer_number,
    ).thread_plan(partitions, stores)

    Buffer = buffered_bytes_per_partition * partitions  # noqa: N806
    State = block_cache_size // numThreads + write_buffer_size * max_write_buffer_number * stores  # noqa: N806
    Cache = Total // numThreads - Producer - Consumer - Buffer - State  # noqa: N806
    assert (thread.buffer_bytes, thread.state_bytes) == (Buffer, State)
    assert (thread.rest_bytes, thread.cache_bytes) == (Cache, Cache)


def test_plan_when_the_rest_is_negative_then_no_cache_and_one_warning_that_names_the_shortfall(caplog):
    plan = MemoryPlan(256 * MIB, 1, 32 * MIB, 50 * MIB, buffered_bytes_per_partition=16 * MIB)
    assert plan.thread_plan(8).rest_bytes > 0
    assert warnings(caplog) == []
    thread = plan.thread_plan(16)
    shortfall = 16 * 16 * MIB - (256 - 32 - 50) * MIB
    assert (thread.rest_bytes, thread.cache_bytes) == (-shortfall, 0)
    [message] = warnings(caplog)
    assert f"{shortfall} bytes lack" in message
    assert "lower buffered_bytes_per_partition, or give a total of at least 338M instead of 256M" in message
    assert (
        MemoryPlan("338m", 1, "32m", "50m", buffered_bytes_per_partition="16m").thread_plan(16).rest_bytes
        == 0
    )


def test_plan_when_several_threads_lack_then_one_warning_for_all(caplog):
    plan = MemoryPlan("64m", 2, 0, 0, buffered_bytes_per_partition="16m", block_cache_bytes="8m")
    plans = plan.rebalance([[Task(4, 1)], [Task(2), Task(1)]])
    assert [thread.rest_bytes < 0 for thread in plans] == [True, True]
    [message] = warnings(caplog)
    assert f"{-sum(thread.rest_bytes for thread in plans)} bytes lack" in message
    assert "lower buffered_bytes_per_partition or block_cache_bytes" in message


@pytest.mark.parametrize(
    ("threads", "tasks", "expected"),
    [
        (1, [(5, 0)], "23068672 bytes lack: 5 partitions buffer 83886080 bytes, of 60817408 usable"),
        (
            1,
            [(1, 1)],
            "8126464 bytes lack: 1 partition buffers 16777216 bytes and 1 store takes 52166656 bytes,",
        ),
        (2, [(3, 0), (1, 0)], "19922944 bytes lack in one of 2 threads: 3 partitions buffer 50331648 bytes,"),
        (
            2,
            [(3, 0), (2, 0)],
            "23068672 bytes lack in 2 of 2 threads, 19922944 in one: 3 partitions buffer 50331648 bytes,",
        ),
    ],
)
def test_plan_when_it_warns_then_of_what_there_is_and_of_no_number_twice(caplog, threads, tasks, expected):
    plan = MemoryPlan(
        "58m",
        threads,
        0,
        0,
        buffered_bytes_per_partition="16m",
        block_cache_bytes="49m",
        write_buffer_bytes="384k",
    )
    plan.rebalance([[Task(*task)] for task in tasks])
    [message] = warnings(caplog)
    assert message.startswith(f"there may not be enough memory: {expected}")


def test_plan_when_a_thread_of_several_lacks_and_all_get_the_same_then_it_warns_of_each(caplog):
    MemoryPlan("64m", 2, 0, 0, buffered_bytes_per_partition="16m").thread_plan(3)
    assert warnings(caplog) == [
        "there may not be enough memory: 16777216 bytes lack in each thread: 3 partitions buffer 50331648 bytes, "
        "of 33554432 usable: lower buffered_bytes_per_partition, or give a total of at least 96M instead of 64M"
    ]


# From the top down


def test_plan_when_tasks_come_then_their_numbers_shrink_and_the_total_does_not_move():
    plan = MemoryPlan("1g", 2)
    plans = [plan.thread_plan(partitions=tasks, stores=tasks) for tasks in range(1, 41)]
    for name in ("buffered_bytes_per_partition", "write_buffer_bytes"):
        numbers = [getattr(thread, name) for thread in plans]
        assert numbers == sorted(numbers, reverse=True)
        assert numbers[-1] < numbers[0]
    for thread in plans:
        held = (
            thread.producer_bytes
            + thread.consumer_bytes
            + thread.buffer_bytes
            + thread.state_bytes
            + thread.cache_bytes
        )
        assert held == thread.thread_bytes == 512 * MIB


def test_plan_when_nothing_is_given_then_the_shares_are_those_that_are_documented():
    usable = 512 * MIB
    plan = MemoryPlan(usable, 1, 0, 0)
    with_stores, without = plan.thread_plan(16, 4), plan.thread_plan(16)
    assert (with_stores.buffer_bytes, with_stores.block_cache_bytes) == (usable // 2, usable // 8)
    assert (with_stores.write_buffers_bytes, with_stores.cache_bytes) == (usable // 8, usable // 4)
    assert with_stores.write_buffer_bytes == 8 * MIB
    assert without.buffered_bytes_per_partition == usable * 2 // 3 // 16
    assert (without.state_bytes, without.write_buffer_bytes) == (0, 0)
    assert without.cache_bytes == usable - without.buffer_bytes


def test_plan_when_write_buffers_would_be_large_then_what_is_above_16_mib_goes_to_caches():
    thread = MemoryPlan("4g", 1, 0, 0).thread_plan(1, 1)
    assert (thread.write_buffer_bytes, thread.cache_bytes) == (16 * MIB, GIB + 512 * MIB - 32 * MIB)


def test_plan_when_the_block_cache_is_given_then_it_is_one_for_the_instance():
    plan = MemoryPlan("1g", 3, block_cache_bytes="90m")
    plans = plan.rebalance([[Task(2, 1)], [Task(2)], [Task(1, 4), Task(1, 4)]])
    assert [thread.block_cache_bytes for thread in plans] == [45 * MIB, 0, 45 * MIB]
    assert plan.thread_plan(2, 1).block_cache_bytes == 30 * MIB


def test_plan_when_a_thread_has_no_tasks_then_all_of_its_usable_bytes_are_cache():
    plan = MemoryPlan("1g", 2)
    idle, busy = plan.rebalance([[], [Task(8, 2)]])
    assert (idle.buffer_bytes, idle.state_bytes, idle.cache_bytes) == (0, 0, plan.usable_bytes)
    assert busy.thread_bytes == idle.thread_bytes


def test_plan_when_producer_and_consumer_are_not_given_then_kafkas_or_a_part_of_a_small_share():
    assert (MemoryPlan("1g").producer_bytes, MemoryPlan("1g").consumer_bytes) == (32 * MIB, 50 * MIB)
    small = MemoryPlan("64m")
    assert (small.producer_bytes, small.consumer_bytes) == (8 * MIB, 16 * MIB)


def test_plan_when_bytes_are_reserved_then_they_are_off_the_total_first():
    assert MemoryPlan("100m", 3, reserved_bytes="10m").thread_bytes == 30 * MIB


sizes = st.none() | st.integers(64 * KIB, 64 * MIB)
shapes = st.lists(
    st.lists(st.builds(Task, st.integers(0, 20), st.integers(0, 5)), max_size=4), min_size=1, max_size=5
)


@pytest.mark.thread_unsafe
@given(
    tasks=shapes,
    total=st.integers(MIB, 8 * GIB),
    reserved=st.integers(0, 64 * MIB),
    producer=sizes,
    consumer=sizes,
    fixed=st.tuples(sizes, sizes, sizes),
    count=st.integers(2, 4),
)
def test_plan_when_rebalanced_in_any_way_then_threads_together_stay_within_total_or_warn(
    tasks, total, reserved, producer, consumer, fixed, count
):
    names = ("buffered_bytes_per_partition", "block_cache_bytes", "write_buffer_bytes")
    options = {
        **dict(zip(names, fixed, strict=True)),
        "reserved_bytes": reserved,
        "max_write_buffer_number": count,
        "least_batch_bytes": 16 * KIB,
    }
    said = Said()
    with said:
        plans = plans_or_error(total, producer, consumer, tasks, options)
        if isinstance(plans, MemoryPlanError):
            least = plans.least_total_bytes
            event("too small a total")
            assert least > total
            again = plans_or_error(least, producer, consumer, tasks, options)
            if isinstance(again, MemoryPlanError):  # as the first was about the plan alone
                assert again.least_total_bytes > least
                least = again.least_total_bytes
                assert not isinstance(
                    plans_or_error(least, producer, consumer, tasks, options), MemoryPlanError
                )
            assert isinstance(plans_or_error(least - 1, producer, consumer, tasks, options), MemoryPlanError)
            return
    shortfall = -sum(min(thread.rest_bytes, 0) for thread in plans)
    held = sum(
        part.producer_bytes + part.consumer_bytes + part.buffer_bytes + part.state_bytes + part.cache_bytes
        for part in plans
    )
    assert held + reserved <= total + shortfall
    if shortfall:
        assert any(size is not None for size in fixed)
        [message] = said.messages
        assert f"{shortfall} bytes lack" in message
    else:
        assert said.messages == []
    for thread in plans:
        assert thread.rest_bytes <= 0 or thread.cache_bytes == thread.rest_bytes
        if fixed[0] is None:
            assert thread.buffered_bytes_per_partition >= 16 * KIB


def plans_or_error(total, producer, consumer, tasks, options):
    try:
        return MemoryPlan(total, len(tasks), producer, consumer, **options).rebalance(tasks)
    except MemoryPlanError as error:
        return error


class Said(logging.Handler):
    """What the logger is told meanwhile: hypothesis runs many examples within one `caplog`."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> Said:
        logging.getLogger(LOGGER).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(LOGGER).removeHandler(self)


# What cannot be


def test_plan_when_a_batch_for_each_partition_does_not_fit_then_the_least_total_that_could_is_named():
    plan = MemoryPlan("64m", 2, "4m", "8m")
    with pytest.raises(
        MemoryPlanError, match="one batch of 1048588 bytes for each of 100 partitions"
    ) as error:
        plan.thread_plan(100)
    least = error.value.least_total_bytes
    assert least == 2 * (12 * MIB + 100 * (MIB + 12))
    assert "expected a total of at least 225M, found 64M" in str(error.value)
    MemoryPlan(least, 2, "4m", "8m").thread_plan(100)
    with pytest.raises(MemoryPlanError):
        MemoryPlan(least - 1, 2, "4m", "8m").thread_plan(100)


def test_plan_when_write_buffers_do_not_fit_then_the_error_counts_them():
    with pytest.raises(MemoryPlanError, match="and 2 write buffers for each of 100 stores") as error:
        MemoryPlan("16m", 1, 0, 0).thread_plan(8, 100)
    assert error.value.least_total_bytes == 8 * (MIB + 12) + 100 * 2 * 64 * KIB


def test_plan_when_made_with_less_than_a_batch_a_thread_then_it_says_so_at_start():
    with pytest.raises(
        MemoryPlanError, match=r"expected a total of at least 6656K, found 1M|at least \d+K, found 1M"
    ) as error:
        MemoryPlan("1m", 4)
    assert MemoryPlan(error.value.least_total_bytes, 4).thread_plan(1).rest_bytes >= 0


def test_plan_when_producer_and_consumer_take_more_than_a_share_then_the_least_total_is_named():
    with pytest.raises(MemoryPlanError, match="expected a total of at least 164M, found 100M"):
        MemoryPlan("100m", 2, "32m", "50m", buffered_bytes_per_partition="1m")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"total_bytes": "4 gigs"}, ValueError, "total_bytes: expected a size of 1 byte or more"),
        ({"total_bytes": 0}, ValueError, "total_bytes: expected a size"),
        ({"threads": 0}, ValueError, "threads: expected 1 or more, found 0"),
        ({"threads": 1.5}, TypeError, "threads: expected a number"),
        ({"producer_bytes": -1}, ValueError, "producer_bytes: expected a size of 0 bytes or more"),
        (
            {"write_buffer_bytes": "32k"},
            ValueError,
            "write_buffer_bytes: expected a size of 65536 bytes or more",
        ),
        ({"max_write_buffer_number": 1}, ValueError, "max_write_buffer_number: expected 2 or more, found 1"),
    ],
)
def test_plan_when_an_argument_is_none_then_its_name_and_what_was_found(arguments, error, message):
    with pytest.raises(error, match=message):
        MemoryPlan(**{"total_bytes": "1g", **arguments})


def test_plan_when_tasks_are_for_another_number_of_threads_then_value_error():
    with pytest.raises(ValueError, match="expected a list for each of 2 threads, found 1"):
        MemoryPlan("1g", 2).rebalance([[]])
    with pytest.raises(ValueError, match="partitions: expected 0 or more, found -1"):
        MemoryPlan("1g").thread_plan(-1)


# For people and programs


def test_plan_when_shown_then_a_row_for_each_thread_and_their_sums():
    plan = MemoryPlan("1g", 3)
    plans = plan.rebalance(spread([Task(2, 1)] * 4, 3))
    *rows, total = plan.table(plans)
    assert [(row["thread"], row["partitions"], row["stores"]) for row in rows] == [
        (0, 4, 2),
        (1, 2, 1),
        (2, 2, 1),
    ]
    assert total["thread"] == "total"
    for name in ("partitions", "stores", "buffer_bytes", "state_bytes", "cache_bytes", "thread_bytes"):
        assert total[name] == sum(row[name] for row in rows)
    assert "write_buffer_bytes" not in total


def test_plan_when_written_as_json_then_all_of_it_in_bytes():
    plan = MemoryPlan("1g", 2)
    found = json.loads(json.dumps(plan.to_json(plan.rebalance([[Task(3)], []]))))
    assert (found["total_bytes"], found["threads"], found["usable_bytes"]) == (GIB, 2, plan.usable_bytes)
    assert [thread["partitions"] for thread in found["thread_plans"]] == [3, 0]
    assert found["thread_plans"][0]["rest_bytes"] == plan.thread_plan(3).rest_bytes
    assert parse_size(found["thread_bytes"]) == 512 * MIB


# Parts, and what changes


def test_plan_when_it_has_parts_then_each_thread_holds_them_before_its_tasks_get_any():
    plan = MemoryPlan("64m", 2, 0, 0, parts=(Part("reading", 9 * MIB), Part("writing", one_in=16)))
    assert plan.fixed_bytes == {"producer": 0, "consumer": 0, "reading": 9 * MIB, "writing": 2 * MIB}
    thread = plan.thread_plan(4)
    assert plan.usable_bytes == 21 * MIB
    assert thread.buffer_bytes + thread.cache_bytes == 21 * MIB


def test_plan_when_its_parts_leave_no_batch_then_the_error_names_them_and_the_least_total():
    parts = (Part("reading", 9 * MIB), Part("writing", one_in=16))
    with pytest.raises(
        MemoryPlanError, match="beside Producer and Consumer and reading and writing"
    ) as error:
        MemoryPlan("4m", 1, 0, 0, parts=parts)
    least = error.value.least_total_bytes
    assert MemoryPlan(least, 1, 0, 0, parts=parts).usable_bytes == MIB + 12
    with pytest.raises(MemoryPlanError):
        MemoryPlan(least - 1, 1, 0, 0, parts=parts)


def test_plan_when_replaced_then_clients_that_were_not_given_are_divided_anew():
    small = MemoryPlan("64m", consumer_bytes="4m")
    assert replace(small, total_bytes="1g") == MemoryPlan("1g", consumer_bytes="4m")
    assert replace(replace(small, total_bytes="1g"), total_bytes="64m") == small
    assert replace(MemoryPlan("64m", producer_bytes="8m"), total_bytes="1g").producer_bytes == 8 * MIB


def test_plan_when_given_a_size_that_another_plan_calculated_then_keeps_it():
    calculated = MemoryPlan("128m").producer_bytes
    assert calculated == 16 * MIB
    assert type(calculated) is int
    plan = MemoryPlan("1g", producer_bytes=calculated)
    assert plan.producer_bytes == replace(plan, total_bytes="2g").producer_bytes == calculated


def test_plan_when_its_signature_is_read_then_clients_are_not_given_by_default():
    parameters = inspect.signature(MemoryPlan).parameters
    assert parameters["producer_bytes"].default is parameters["consumer_bytes"].default is None


def test_plan_when_changed_in_place_then_is_not():
    with pytest.raises(FrozenInstanceError):
        MemoryPlan("64m").total_bytes = 1


def test_error_when_pickled_then_says_the_same():
    with pytest.raises(MemoryPlanError) as error:
        MemoryPlan("1m")
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.least_total_bytes) == (str(error.value), error.value.least_total_bytes)


# Kinds of stores


@pytest.mark.parametrize("stores", [1, 3])
def test_plan_when_stores_have_no_cache_then_the_block_cache_has_its_bytes(stores):
    cached, uncached, dirty = (
        MemoryPlan("512m", store_kind=kind).thread_plan(4, stores)
        for kind in (StoreKind.CACHED, StoreKind.UNCACHED, StoreKind.DIRTY_MAP)
    )
    assert uncached.cache_bytes == 0
    assert uncached.block_cache_bytes == cached.block_cache_bytes + cached.cache_bytes
    assert dirty.cache_bytes == pytest.approx(cached.cache_bytes / 4, abs=4)
    assert dirty.state_bytes + dirty.cache_bytes == cached.state_bytes + cached.cache_bytes
    assert cached.buffer_bytes == uncached.buffer_bytes == dirty.buffer_bytes


def test_plan_when_stores_are_in_memory_then_they_have_all_bytes_of_state_and_cache():
    cached = MemoryPlan("512m").thread_plan(4, 1)
    in_memory = MemoryPlan("512m", store_kind=StoreKind.IN_MEMORY).thread_plan(4, 1)
    assert in_memory.block_cache_bytes == 0
    assert in_memory.state_bytes == 2 * MIB  # to move into RocksDB
    assert in_memory.cache_bytes == cached.cache_bytes + cached.state_bytes - in_memory.state_bytes
    with pytest.raises(
        ValueError, match="block_cache_bytes: expected none for stores in memory, found 1048576"
    ):
        MemoryPlan("512m", block_cache_bytes="1m", store_kind=StoreKind.IN_MEMORY)


def test_plan_when_the_block_cache_is_fixed_and_there_is_no_cache_then_the_rest_is_no_cache():
    thread = MemoryPlan("512m", block_cache_bytes="1m", store_kind=StoreKind.UNCACHED).thread_plan(4, 1)
    assert thread.block_cache_bytes == MIB
    assert (thread.rest_bytes > 0, thread.cache_bytes) == (True, 0)


@pytest.mark.parametrize("kind", StoreKind)
def test_plan_when_there_are_no_stores_then_their_kind_changes_nothing(kind):
    plan = MemoryPlan("512m", store_kind=kind)
    assert plan.thread_plan(4).to_json() == MemoryPlan("512m").thread_plan(4).to_json()


@pytest.mark.parametrize("kind", ["UNCACHED", "in memory", StoreKind.UNCACHED.value, None])
def test_plan_when_the_kind_of_stores_is_no_store_kind_then_type_error(kind):
    with pytest.raises(TypeError, match=r"^store_kind: expected a StoreKind, found "):
        MemoryPlan("256m", store_kind=kind)


@pytest.mark.parametrize("name", ["total_bytes", "reserved_bytes", "least_batch_bytes"])
def test_plan_when_a_size_that_it_needs_is_none_then_it_is_named(name):
    with pytest.raises(TypeError, match=f"^{name}: .* found None"):
        MemoryPlan(**{"total_bytes": "256m", name: None})


@pytest.mark.parametrize("task", [Task(-4, 1), Task(4, -1)])
def test_rebalance_when_a_task_has_a_negative_number_then_value_error(task):
    with pytest.raises(ValueError, match=r"^(partitions|stores): expected 0 or more, found -"):
        MemoryPlan("256m").rebalance([[Task(8, 8), task]])


def test_spread_when_there_is_no_thread_then_value_error():
    with pytest.raises(ValueError, match=r"^threads: expected 1 or more, found 0"):
        spread([Task(1)], 0)
