"""Long polls: what wakes them, and that nothing is looked at for nobody."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.growth import GrowthWatch
from kafkafmt.serve.partition import Partition
from log.samples import batch, batches, name, put_segment

SECONDS = 60


def run(scenario: Callable[[GrowthWatch], Awaitable[None]]) -> None:
    async def main() -> None:
        growth = GrowthWatch()
        await scenario(growth)
        assert not growth._waiting
        if growth._polling is not None:
            await growth._polling  # it ends by itself

    asyncio.run(main())


@pytest.fixture
def partitions(tmp_path: Path) -> list[Partition]:
    for number in range(3):
        put_segment(tmp_path / f"t-{number}", 0, batches(0, 5))
    topic = Catalog(tmp_path).topic("t")
    assert topic is not None
    return list(topic.partitions.values())


def grow(partition: Partition, offset: int = 5) -> None:
    with (partition.folder / name(0)).open("ab") as file:
        file.write(batch(offset))


async def started(growth: GrowthWatch, seen: dict[Partition, int]) -> asyncio.Task[bool]:
    task = asyncio.create_task(growth.wait(seen, SECONDS))
    await asyncio.sleep(0)
    return task


def test_wait_ends_for_those_whose_log_grows_and_for_no_others(partitions: list[Partition]) -> None:
    async def scenario(growth: GrowthWatch) -> None:
        some, same, other = [
            await started(growth, dict.fromkeys(chosen, 5))
            for chosen in (partitions[:2], partitions[1:2], partitions[2:])
        ]
        grow(partitions[1])
        assert await asyncio.wait_for(asyncio.gather(some, same), SECONDS) == [True, True]
        assert not other.done()
        grow(partitions[2])
        assert await asyncio.wait_for(other, SECONDS)

    run(scenario)


def test_wait_when_another_awaited_log_is_being_read_then_ends_as_its_own_log_grows(
    partitions: list[Partition],
) -> None:
    async def scenario(growth: GrowthWatch) -> None:
        slow, quick = [await started(growth, {partition: 5}) for partition in partitions[:2]]
        async with partitions[0]._following:
            grow(partitions[1])
            assert await asyncio.wait_for(quick, SECONDS)
        grow(partitions[0])
        assert await asyncio.wait_for(slow, SECONDS)

    run(scenario)


def test_wait_for_a_log_that_grew_already_ends_at_the_next_look(partitions: list[Partition]) -> None:
    async def scenario(growth: GrowthWatch) -> None:
        assert partitions[0].log.end_offset == 5
        assert await asyncio.wait_for(growth.wait({partitions[0]: 4}, SECONDS), SECONDS)

    run(scenario)


def test_wait_ends_where_the_log_is_gone(partitions: list[Partition]) -> None:
    async def scenario(growth: GrowthWatch) -> None:
        task = await started(growth, {partitions[0]: 5})
        shutil.rmtree(partitions[0].folder)
        assert await asyncio.wait_for(task, SECONDS)

    run(scenario)


def test_wait_when_following_another_log_raises_any_error_then_goes_on(
    partitions: list[Partition], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise RuntimeError("unexpected")

    async def scenario(growth: GrowthWatch) -> None:
        monkeypatch.setattr(partitions[0], "follow", fail)
        failing, waiting = [await started(growth, {one: 5}) for one in partitions[:2]]
        assert await asyncio.wait_for(failing, SECONDS)
        grow(partitions[1])
        assert await asyncio.wait_for(waiting, SECONDS)

    run(scenario)


@pytest.mark.parametrize("count", [0, 2])
def test_wait_ends_when_its_time_is_over(partitions: list[Partition], count: int) -> None:
    async def scenario(growth: GrowthWatch) -> None:
        assert not await growth.wait(dict.fromkeys(partitions[:count], 5), 0.001)

    run(scenario)


def test_wait_that_is_cancelled_is_forgotten(partitions: list[Partition]) -> None:
    async def scenario(growth: GrowthWatch) -> None:
        task, other = await started(growth, {partitions[0]: 5}), await started(growth, {partitions[0]: 5})
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        grow(partitions[0])
        assert await asyncio.wait_for(other, SECONDS)

    run(scenario)


def test_wake_all_ends_every_wait_now_and_later(partitions: list[Partition]) -> None:
    async def scenario(growth: GrowthWatch) -> None:
        tasks = [await started(growth, {one: 5}) for one in partitions]
        growth.wake_all()
        assert await asyncio.wait_for(asyncio.gather(*tasks), SECONDS) == [False] * 3
        assert not await growth.wait({partitions[0]: 4}, SECONDS)

    run(scenario)
