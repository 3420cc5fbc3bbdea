"""What a Consumer does with its arguments: wrong ones are refused, and it works afterwards. Served by kafkafmt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition

import kafkafmt as kf
from client.raw_reading import READ_SECONDS
from endpoints.served import Served
from kafkafmt import MemoryBudget, MemoryBudgetError
from kafkafmt.net import Consumer
from log.samples import batches, put_segment

pytestmark = [pytest.mark.clients, pytest.mark.xdist_group("consumer-arguments")]

NOBODY = "127.0.0.1:1"
TOPIC = "b"
PARTITION = TopicPartition(TOPIC, 0)
OWN_PARTITION = kf.TopicPartition(TOPIC, 0)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("logs")
    put_segment(folder / f"{TOPIC}-0", 0, batches(0, 10))
    with Served(folder) as served:
        yield "{}:{}".format(*served.address)


@contextmanager
def consuming(address: str, **options: Any) -> Iterator[Any]:
    consumer: Any = Consumer(
        bootstrap_servers=address, fetch_max_wait_ms=20, auto_offset_reset="earliest", **options
    )
    try:
        consumer.assign([PARTITION])
        yield consumer
    finally:
        consumer.close(autocommit=False)


def poll_until(consumer: Any, is_done: Callable[[], bool] = lambda: False) -> Any:
    """What the first poll returns that returns records, or None once that is done."""
    deadline = time.monotonic() + READ_SECONDS
    while not is_done():
        assert time.monotonic() < deadline
        if polled := consumer.poll(100):
            return polled
    return None


@pytest.mark.parametrize("name", ["max_partition_fetch_bytes", "fetch_max_bytes", "fetch_min_bytes"])
def test_poll_when_a_size_is_0_then_records_come(address: str, name: str) -> None:
    with consuming(address, **{name: 0}) as consumer:
        assert poll_until(consumer)[PARTITION][0].offset == 0


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        *(
            ({name: value}, kind, f"{name}: expected .*, found {value!r}")
            for name in ("max_partition_fetch_bytes", "fetch_max_bytes", "fetch_min_bytes")
            for value, kind in ((-1, ValueError), (1.5, TypeError), ("1m", TypeError), (True, TypeError))
        ),
        ({"budget": 5}, TypeError, "budget: expected a MemoryBudget, found 5"),
        ({"budget": "64m"}, TypeError, "budget: expected a MemoryBudget, found '64m'"),
    ],
)
def test_option_when_it_is_no_value_of_its_type_then_refused_before_it_connects(
    option: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}"):
        Consumer(bootstrap_servers=NOBODY, **option)


def test_poll_when_its_budget_is_closed_then_raises(address: str) -> None:
    budget = MemoryBudget("1m", "fetches")
    budget.close()
    with consuming(address, budget=budget) as consumer:
        for _ in range(2):
            with pytest.raises(MemoryBudgetError, match="fetches is closed: the consumer can fetch no more"):
                poll_until(consumer)


def test_poll_when_its_budget_is_closed_while_it_waits_then_raises(address: str) -> None:
    budget = MemoryBudget(1000, "fetches")
    with consuming(address, budget=budget) as consumer, budget.reserve(1000):
        poll_until(consumer, lambda: budget.waiting > 0)
        budget.close()
        with pytest.raises(MemoryBudgetError, match="fetches is closed: the consumer can fetch no more"):
            poll_until(consumer)


@pytest.mark.parametrize("wrong", [(TOPIC, 0), TOPIC, None])
def test_assign_when_it_is_no_partition_then_refused_and_the_consumer_works(address: str, wrong: Any) -> None:
    with consuming(address) as consumer:
        with pytest.raises(TypeError, match="partitions must be TopicPartition"):
            consumer.assign([wrong])
        assert consumer.assignment() == {PARTITION}
        assert poll_until(consumer)


@pytest.mark.parametrize(
    "use",
    [
        lambda consumer: consumer.assign([OWN_PARTITION]),
        lambda consumer: consumer.position(OWN_PARTITION),
        lambda consumer: consumer.highwater(OWN_PARTITION),
        lambda consumer: consumer.pause(OWN_PARTITION) or consumer.resume(OWN_PARTITION),
        lambda consumer: consumer.seek(OWN_PARTITION, 0),
        lambda consumer: consumer.seek_to_beginning(OWN_PARTITION),
        lambda consumer: consumer.commit({OWN_PARTITION: OffsetAndMetadata(3, "", -1)}),
        lambda consumer: consumer.committed(OWN_PARTITION),
        lambda consumer: consumer.beginning_offsets([OWN_PARTITION])[OWN_PARTITION],
        lambda consumer: consumer.end_offsets([OWN_PARTITION])[OWN_PARTITION],
        lambda consumer: consumer.offsets_for_times({OWN_PARTITION: 0})[OWN_PARTITION],
    ],
    ids=[
        "assign",
        "position",
        "highwater",
        "pause",
        "seek",
        "seek_to_beginning",
        "commit",
        "committed",
        "beginning_offsets",
        "end_offsets",
        "offsets_for_times",
    ],
)
def test_partition_when_it_is_that_of_kafkafmt_then_taken(address: str, use: Callable[[Any], Any]) -> None:
    with consuming(address, group_id="group", enable_auto_commit=False) as consumer:
        use(consumer)
        assert all(type(partition) is TopicPartition for partition in consumer.assignment())
        assert poll_until(consumer)
