"""The cap on memory for conversions: who waits, in which order, and that nothing fails or is held for ever."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import kafkafmt as kf
from endpoints.endpoint_here import Told, serving
from endpoints.fetched import ask, partitions, read
from endpoints.requests import MIB, Wanted, fetch
from kafkafmt.convert.chunks import chunk_memory_bytes
from kafkafmt.convert.engine import Converter
from kafkafmt.memory import MemoryBudget
from kafkafmt.server.down_conversion_memory import (
    LEAST_CHUNK_BYTES,
    DownConversionMemory,
    KeptConversions,
    Lease,
)
from log.samples import batch, batches, put_segment

OLD = 3
CAP = 100


def run(scenario: Callable[[DownConversionMemory, Told], Awaitable[None]]) -> None:
    async def main() -> None:
        told = Told()
        memory = DownConversionMemory(MemoryBudget(CAP), 64 * 1024, told)
        await scenario(memory, told)
        assert (told.held, told.waiting) == (0, 0)

    asyncio.run(main())


async def waiting(lease: Lease, size: int) -> asyncio.Task[None]:
    """A lease that is in the line."""
    task = asyncio.create_task(lease.acquire(size))
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize(
    ("most", "budget", "expected"),
    [
        (0, MIB, [True, False, False, False]),
        (2.5, MIB, [True, True, False, False]),
        (9, MIB, [True, True, True, True]),
        (9, 3, [True, True, True, False]),
    ],
)
def test_conversions_when_kept_for_a_response_then_are_the_first_ones_that_fit(
    most: float, budget: int, expected: list[bool]
) -> None:
    """KIP-283, "Determining Total Response Size": the first batch of each partition is converted beforehand."""
    converted = [kf.LazyDownConvertRecords(kf.MemoryRecords(batch(0)), 1) for _ in expected]
    size = converted[0].first_bytes

    async def main() -> None:
        total = budget if budget == MIB else budget * size
        lease = DownConversionMemory(MemoryBudget(total), 64 * 1024, Told()).lease()
        kept = KeptConversions(lease, int(most * size))
        for records in converted:
            kept.add(records)
        assert [records.first_bytes > 0 for records in converted] == expected
        assert lease.held == sum(expected) * size
        kept.forget()
        assert ({records.first_bytes for records in converted}, lease.held) == ({0}, 0)

    asyncio.run(main())


def test_memory_is_ample_while_few_connections_convert() -> None:
    async def main() -> None:
        chunk = 64 * 1024
        memory = DownConversionMemory(MemoryBudget(20 * chunk_memory_bytes(chunk)), chunk, Told())
        leases = [memory.lease() for _ in range(3)]
        found = []
        for lease in leases:
            lease.begin()
            found.append(memory.is_ample)
        leases[0].end()
        assert (found, memory.is_ample) == ([True, True, False], True)

    asyncio.run(main())


def test_leases_are_served_in_the_order_they_came_though_a_later_one_would_fit() -> None:
    async def scenario(memory: DownConversionMemory, told: Told) -> None:
        first, large, small = (memory.lease() for _ in range(3))
        await first.acquire(60)
        tasks = [await waiting(large, 80), await waiting(small, 10)]
        assert (told.held, told.waiting) == (60, 2)
        assert not small.try_extend(1)
        first.resize(30)
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        first.end()
        await tasks[0]
        assert (told.held, told.waiting) == (80, 1)  # what it takes in truth is not known yet
        large.resize(80)
        await tasks[1]
        assert (told.held, told.waiting) == (90, 0)
        large.end()
        small.end()

    run(scenario)


def test_lease_of_more_than_the_cap_waits_until_nothing_else_is_held() -> None:
    async def scenario(memory: DownConversionMemory, told: Told) -> None:
        one, huge, last = (memory.lease() for _ in range(3))
        await one.acquire(1)
        task, behind = await waiting(huge, 10 * CAP), await waiting(last, 1)
        assert not task.done()
        one.end()
        await task
        assert (told.held, behind.done()) == (10 * CAP, False)
        huge.end()
        await behind
        last.end()

    run(scenario)


def test_lease_that_takes_more_than_it_asked_for_makes_others_wait() -> None:
    async def scenario(memory: DownConversionMemory, told: Told) -> None:
        one, other = memory.lease(), memory.lease()
        await one.acquire(10)
        one.resize(5 * CAP)
        assert told.held == 5 * CAP
        task = await waiting(other, 1)
        assert not task.done()
        one.resize(0)
        await task
        other.end()

    run(scenario)


def test_lease_that_acquires_again_goes_behind_those_who_wait() -> None:
    async def scenario(memory: DownConversionMemory, told: Told) -> None:
        greedy, other = memory.lease(), memory.lease()
        await greedy.acquire(CAP)
        task = await waiting(other, CAP)
        again = asyncio.create_task(greedy.acquire(CAP))
        await task
        assert not again.done()
        other.end()
        await again
        greedy.end()

    run(scenario)


@pytest.mark.parametrize("is_admitted", [False, True], ids=["in the line", "admitted just now"])
@pytest.mark.parametrize("given_back", ["before", "after"])
def test_lease_that_is_cancelled_gives_its_place_to_the_next(is_admitted: bool, given_back: str) -> None:
    """A connection that ends while it waits, at any moment."""

    async def scenario(memory: DownConversionMemory, told: Told) -> None:
        one, cancelled, next_one = (memory.lease() for _ in range(3))
        await one.acquire(CAP)
        task, behind = await waiting(cancelled, CAP), await waiting(next_one, CAP)
        if is_admitted:
            one.end()
            task.cancel()
        elif given_back == "before":
            task.cancel()
            one.end()
        else:
            task.cancel()
            await asyncio.sleep(0)
            one.end()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(behind, 60)
        assert told.held == CAP
        next_one.end()

    run(scenario)


def test_leases_of_any_course_are_within_the_cap_and_all_have_their_turn() -> None:
    async def scenario(memory: DownConversionMemory, told: Told) -> None:
        rng, turns = random.Random(1), itertools.count()

        async def convert(lease: Lease) -> None:
            lease.begin()
            for _ in range(20):
                await lease.acquire(rng.randint(1, CAP))
                next(turns)
                lease.resize(rng.randint(0, lease.held))
                await asyncio.sleep(0)
            lease.end()

        tasks = [asyncio.create_task(convert(memory.lease())) for _ in range(50)]
        gone = [memory.lease() for _ in range(20)]
        leaving = [asyncio.create_task(convert(lease)) for lease in gone]
        for task in leaving:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        for lease in gone:
            lease.end()
        await asyncio.gather(*tasks)
        assert next(turns) >= 50 * 20
        assert told.most_held <= CAP

    run(scenario)


def test_chunks_get_smaller_the_more_connections_convert() -> None:
    async def scenario() -> None:
        told = Told()
        memory = DownConversionMemory(MemoryBudget(8 * MIB), 512 * 1024, told)
        leases = [memory.lease() for _ in range(1000)]
        sizes = []
        for lease in leases:
            lease.begin()
            lease.begin()  # counts once
            sizes.append(memory.chunks.chunk_size)
        assert (sizes[0], sizes[-1]) == (512 * 1024, LEAST_CHUNK_BYTES)
        assert sizes == sorted(sizes, reverse=True)
        for number, size in enumerate(sizes, 1):
            assert size == LEAST_CHUNK_BYTES or number * chunk_memory_bytes(size) <= 8 * MIB
        for lease in leases:
            lease.end()
            lease.end()
        assert memory.chunks.chunk_size == 512 * 1024

    asyncio.run(scenario())


# Behind an endpoint


def test_chunks_of_compressed_batches_when_they_are_sent_then_are_converted_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, and not the first alone. Chunks that cannot grow are converted in the loop."""
    offsets = range(0, 60, 3)
    put_segment(tmp_path / "packed-0", 0, [batch(o, 3, codec=kf.Codec.GZIP, size=400_000) for o in offsets])
    put_segment(tmp_path / "plain-0", 0, [batch(o, 3, size=20_000) for o in offsets])
    threads: list[str] = []
    made = Converter.convert

    def noted(*args: Any) -> int:
        threads.append(threading.current_thread().name.split("_")[0])
        return made(*args)

    monkeypatch.setattr(Converter, "convert", noted)

    async def main() -> None:
        async with serving(tmp_path, chunk_bytes=1) as here:
            for topic, name in (("packed", "conversion"), ("plain", "MainThread")):
                threads.clear()
                found = await ask(here, fetch(Wanted(topic, 0, 0, 8 * MIB)), OLD)
                assert len(read(found[topic, 0])) > 50
                assert len(threads) > 5
                assert set(threads) == {name}

    asyncio.run(main())


def test_consumer_that_reads_slowly_holds_one_chunk_and_others_are_served(tmp_path: Path) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 4000, size=4000))
    chunk = 64 * 1024

    async def main() -> None:
        async with serving(tmp_path, chunk_bytes=chunk, max_downconversion_bytes=4 * MIB) as here:
            with await here.client(4096) as slow:
                await slow.send(fetch(Wanted("t", 0, 0, 16 * MIB)), OLD)
                await slow.read(1000)
                # The sockets' buffers are full once it holds a chunk that nobody takes.
                await here.told.until(lambda told: told.held > 0)
                assert here.told.most_held <= chunk_memory_bytes(chunk) + 8192
                found = await ask(here, fetch(Wanted("t", 0, 3000)), OLD)
                assert read(found["t", 0])[0] == 3000
            await here.told.until(lambda told: told.held == 0)

    asyncio.run(main())


def test_conversions_wait_for_their_turn_when_the_cap_is_reached_and_all_get_all(tmp_path: Path) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 2000, size=4000))
    request = fetch(Wanted("t", 0, 0, 8 * MIB))

    async def main() -> None:
        async with serving(tmp_path, chunk_bytes=64 * 1024, max_downconversion_bytes=1) as here:
            held = here.endpoint.server.service.memory.lease()
            await held.acquire(1)
            with await here.client() as first, await here.client() as second:
                for client in (first, second):
                    await client.send(request, OLD)
                await here.told.until(lambda told: told.waiting == 2)
                assert read((await ask(here, fetch(Wanted("t")), 12))["t", 0])[0] == 0  # it needs no memory
                held.end()
                for answer in await asyncio.gather(*(c.answer(request, OLD) for c in (first, second))):
                    found = partitions(answer)["t", 0]
                    assert (found.error_code, read(found)) == (0, list(range(len(read(found)))))
                    assert len(read(found)) > 1900
            assert here.told.most_held <= chunk_memory_bytes(64 * 1024)
            assert here.told.errors == []

    asyncio.run(main())


def test_batches_that_are_larger_than_the_cap_are_converted_one_after_another(tmp_path: Path) -> None:
    put_segment(tmp_path / "t-0", 0, [batch(offset, size=MIB) for offset in range(4)])

    async def main() -> None:
        async with serving(tmp_path, max_downconversion_bytes=1) as here:
            found = await asyncio.gather(*(ask(here, fetch(Wanted("t")), OLD) for _ in range(8)))
            assert [read(one["t", 0]) for one in found] == [[0]] * 8
            found = await asyncio.gather(
                *(ask(here, fetch(Wanted("t", 0, 0, 5 * MIB)), version) for version in (0, 1, 2, 3))
            )
            assert [read(one["t", 0]) for one in found] == [[0, 1, 2, 3]] * 4

    asyncio.run(main())


def test_client_that_goes_while_it_waits_or_holds_leaves_nothing_behind(tmp_path: Path) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 4000, size=4000))
    request = fetch(Wanted("t", 0, 0, 16 * MIB))

    async def main() -> None:
        async with serving(tmp_path, chunk_bytes=64 * 1024, max_downconversion_bytes=1) as here:
            slow = await here.client(4096)
            await slow.send(request, OLD)
            await slow.read(1000)
            await here.told.until(lambda told: told.held > 0)
            slow.socket.close()
            await here.told.until(lambda told: told.connections == 0)
            assert here.told.held == 0

            held = here.endpoint.server.service.memory.lease()
            await held.acquire(1)
            clients = [await here.client() for _ in range(4)]
            for client in clients:
                await client.send(request, OLD)
            await here.told.until(lambda told: told.waiting == 4)
            for client in clients:
                client.socket.close()
            held.end()
            await here.told.until(lambda told: told.connections == 0)
            assert (here.told.held, here.told.waiting) == (0, 0)

    asyncio.run(main())
