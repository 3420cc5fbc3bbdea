"""What a fetch gets: limits, waiting, formats, transactions and damage, of logs made for each case."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)

import kafkafmt as kf
from endpoints.endpoint_here import SECONDS, Here, serving
from endpoints.fetched import FOREVER_MS, NEW, OLD, ask, read
from endpoints.requests import MIB, READ_COMMITTED, Wanted, fetch
from kafkafmt.log import SegmentWriter
from kafkafmt.log.isolation import LogTransactions, UnreadTransactions
from kafkafmt.log.tail import LogTail
from kafkafmt.log.topic_configs import TopicConfig, set_topic_config
from kafkafmt.server.topics_file import TopicsFile
from log.samples import batch, batches, marker, name, put_segment, transactional


def run(directory: Path, scenario: Callable[[Here], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with serving(directory, **options) as here:
            await scenario(here)

    asyncio.run(main())


def magics(partition: Any) -> set[int]:
    return {one.magic for one in kf.MemoryRecords(partition.records).batches()}


# Limits


@pytest.mark.parametrize("version", [0, 2, OLD, 4, NEW])
def test_first_partition_gets_one_whole_batch_however_large_it_is(tmp_path: Path, version: int) -> None:
    for number in range(3):
        put_segment(tmp_path / f"t-{number}", 0, [batch(0, 3, size=5000), batch(3)])

    async def scenario(here: Here) -> None:
        for limits in ({"max_bytes": 1}, {}):
            wanted = [Wanted("t", number, 0, 1) for number in range(3)]
            found = await ask(here, fetch(*wanted, **limits), version)
            assert read(found["t", 0]) == [0, 1, 2]
            assert all(one.error_code == 0 for one in found.values())
            others = [read(found["t", number]) for number in (1, 2)]
            # Before v3 a response has no limit of its own, and nobody is to fetch the same in vain forever.
            assert others == ([[0, 1, 2]] * 2 if version < 3 else [[], []])

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [1, OLD, NEW])
def test_limits_of_partition_and_response_hold_for_what_follows_the_first_batch(
    tmp_path: Path, version: int
) -> None:
    for number in range(3):
        put_segment(tmp_path / f"t-{number}", 0, batches(0, 100, size=1000))

    async def scenario(here: Here) -> None:
        wanted = [Wanted("t", number, 0, 10_000) for number in range(3)]
        found = await ask(here, fetch(*wanted, max_bytes=25_000), version)
        sizes = [len(found["t", number].records or b"") for number in range(3)]
        assert all(size <= 10_000 for size in sizes)
        assert sizes[:2] == [10_000, 10_000]
        assert sizes[2] == (10_000 if version < 3 else 5_000)
        assert read(found["t", 0]) == list(range(len(read(found["t", 0]))))

    run(tmp_path, scenario)


def test_response_is_never_larger_than_the_endpoint_lets_it_be(tmp_path: Path) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 100, size=1000))
    put_segment(tmp_path / "t-1", 0, batches(0, 100, size=1000))

    async def scenario(here: Here) -> None:
        for version in (0, OLD, NEW):
            found = await ask(here, fetch(Wanted("t", 0), Wanted("t", 1)), version)
            assert sum(len(one.records or b"") for one in found.values()) == 20_000

    run(tmp_path, scenario, max_fetch_bytes=20_000)


# Waiting


@pytest.mark.parametrize("version", [0, OLD, NEW])
@pytest.mark.parametrize("is_rolled", [False, True])
def test_fetch_at_the_end_is_answered_when_the_log_grows(
    tmp_path: Path, version: int, is_rolled: bool
) -> None:
    folder = tmp_path / "t-0"
    path = put_segment(folder, 0, batches(0, 5))

    async def scenario(here: Here) -> None:
        answer = asyncio.create_task(ask(here, fetch(Wanted("t", 0, 5), max_wait_ms=FOREVER_MS), version))
        await here.until_waiting(answer)
        if is_rolled:
            put_segment(folder, 5, [batch(5)])
        else:
            with path.open("ab") as file:
                file.write(batch(5))
        found = await asyncio.wait_for(answer, SECONDS)
        assert read(found["t", 0]) == [5]

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_fetch_waits_for_as_many_bytes_as_it_asks_for_and_holds_nothing_meanwhile(
    tmp_path: Path, version: int
) -> None:
    path = put_segment(tmp_path / "t-0", 0, batches(0, 2))
    wanted = 5 * len(batch(0))

    async def scenario(here: Here) -> None:
        request = fetch(Wanted("t"), max_wait_ms=FOREVER_MS, min_bytes=wanted)
        answer = asyncio.create_task(ask(here, request, version))
        await here.until_waiting(answer)
        assert here.told.held == 0
        for offset in range(2, 6):
            assert not answer.done()
            with path.open("ab") as file:
                file.write(batch(offset))
        found = await asyncio.wait_for(answer, SECONDS)
        assert len(read(found["t", 0])) >= 4

    run(tmp_path, scenario)


def test_fetch_is_answered_when_its_time_is_over_with_what_is_there(tmp_path: Path) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 5))

    async def scenario(here: Here) -> None:
        for version in (0, OLD, NEW):
            found = await ask(here, fetch(Wanted("t"), max_wait_ms=1, min_bytes=MIB), version)
            assert read(found["t", 0]) == list(range(5))
            found = await ask(here, fetch(Wanted("t", 0, 5), max_wait_ms=1), version)
            assert (found["t", 0].records or b"") == b""

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "wanted",
    [
        [Wanted("t"), Wanted("gone")],
        [Wanted("t", 0, 77)],
        [Wanted("rolled", 0, 1)],
        [Wanted("t", 0, 0, 100)],
        [],
    ],
    ids=["error", "out of range", "end of a segment", "limit", "nothing asked for"],
)
def test_fetch_that_no_growth_can_help_is_answered_at_once(tmp_path: Path, wanted: list[Wanted]) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 5))
    put_segment(tmp_path / "rolled-0", 0, batches(0, 2))
    put_segment(tmp_path / "rolled-0", 2, batches(2, 9))

    async def scenario(here: Here) -> None:
        request = fetch(*wanted, max_wait_ms=FOREVER_MS, min_bytes=MIB, max_bytes=150)
        await asyncio.wait_for(ask(here, request, NEW), SECONDS)

    run(tmp_path, scenario)


def test_fetch_that_waits_is_answered_when_the_partition_is_deleted(tmp_path: Path) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 5))
    put_segment(tmp_path / "other-0", 0, [])

    async def scenario(here: Here) -> None:
        answer = asyncio.create_task(ask(here, fetch(Wanted("t", 0, 5), max_wait_ms=FOREVER_MS), NEW))
        await here.until_waiting(answer)
        shutil.rmtree(tmp_path / "t-0")
        found = await asyncio.wait_for(answer, SECONDS)
        assert found["t", 0].error_code == UnknownTopicOrPartitionError.errno
        put_segment(tmp_path / "t-0", 0, batches(0, 3))  # a topic of that name is created anew
        assert read((await ask(here, fetch(Wanted("t")), NEW))["t", 0]) == [0, 1, 2]

    run(tmp_path, scenario)


# Formats


@pytest.mark.parametrize("version", range(5))
def test_format_is_that_of_the_version(tmp_path: Path, version: int) -> None:
    data = [batch(0, 3), batch(3, 2, magic=1), batch(5, 2, magic=0), batch(7, 2, codec=kf.Codec.GZIP)]
    put_segment(tmp_path / "t-0", 0, data)

    async def scenario(here: Here) -> None:
        found = await ask(here, fetch(Wanted("t")), version)
        assert max(magics(found["t", 0])) == (0, 0, 1, 1, 2)[version]
        start = next(iter(read(found["t", 0])))
        assert read(found["t", 0]) == list(range(start, start + len(read(found["t", 0]))))

    run(tmp_path, scenario)


def test_down_conversion_that_is_switched_off_is_refused_for_its_topics_alone(tmp_path: Path) -> None:
    for topic in ("a", "b"):
        put_segment(tmp_path / f"{topic}-0", 0, batches(0, 3))
    refused = UnsupportedVersionError.errno

    async def scenario(here: Here, expected: list[int]) -> None:
        for version in (0, OLD):
            found = await ask(here, fetch(Wanted("a"), Wanted("b")), version)
            assert [found[topic, 0].error_code for topic in ("a", "b")] == expected
            assert [bool(found[topic, 0].records) for topic in ("a", "b")] == [not code for code in expected]
        found = await ask(here, fetch(Wanted("a"), Wanted("b")), NEW)
        assert [one.error_code for one in found.values()] == [0, 0]

    a_off, b_on = (
        TopicsFile(Path("topics"), {topic: {"message.downconversion.enable": value}})
        for topic, value in (("a", "false"), ("b", "true"))
    )
    run(tmp_path, lambda here: scenario(here, [refused] * 2), downconversion_enable=False)
    run(tmp_path, lambda here: scenario(here, [refused, 0]), topics_file=a_off)
    run(tmp_path, lambda here: scenario(here, [refused, 0]), downconversion_enable=False, topics_file=b_on)


@pytest.mark.parametrize("version", [0, OLD])
def test_down_conversion_that_is_switched_off_when_an_old_batch_comes_first_then_is_refused_if_a_newer_one_follows(
    tmp_path: Path, version: int
) -> None:
    data = [batch(0, 3, magic=0), batch(3, 3, magic=0), batch(6, 3)]
    put_segment(tmp_path / "a-0", 0, data)

    async def scenario(here: Here) -> None:
        old = len(data[0]) + len(data[1])
        found = (await ask(here, fetch(Wanted("a", 0, 0, old)), version))["a", 0]
        assert (found.error_code, found.records) == (0, b"".join(data[:2]))
        found = (await ask(here, fetch(Wanted("a")), version))["a", 0]
        assert (found.error_code, found.records or b"") == (UnsupportedVersionError.errno, b"")

    run(tmp_path, scenario, downconversion_enable=False)


@pytest.mark.parametrize(
    ("option", "kept", "given", "expected"),
    [
        (True, None, None, True),
        (False, None, None, False),
        (True, "false", None, False),
        (False, "true", None, True),
        (True, "true", "false", False),
        (False, "false", "TRUE", True),
    ],
)
def test_down_conversion_when_topics_ini_and_topics_file_say_something_then_the_file_is_above(
    tmp_path: Path, option: bool, kept: str | None, given: str | None, expected: bool
) -> None:
    key = "message.downconversion.enable"
    put_segment(tmp_path / "a-0", 0, batches(0, 3))
    if kept is not None:
        set_topic_config(tmp_path, "a", TopicConfig(1, {key: kept}))
    file = None if given is None else TopicsFile(Path("topics"), {"a": {key: given}})

    async def scenario(here: Here) -> None:
        found = (await ask(here, fetch(Wanted("a")), OLD))["a", 0]
        code = 0 if expected else UnsupportedVersionError.errno
        assert (found.error_code, bool(found.records)) == (code, expected)

    run(tmp_path, scenario, downconversion_enable=option, topics_file=file)


def test_down_conversion_when_topics_ini_changes_then_the_next_fetch_goes_by_it(tmp_path: Path) -> None:
    put_segment(tmp_path / "a-0", 0, batches(0, 3))

    async def scenario(here: Here) -> None:
        for value in ("true", "false", "true"):
            set_topic_config(tmp_path, "a", TopicConfig(1, {"message.downconversion.enable": value}))
            found = (await ask(here, fetch(Wanted("a")), OLD))["a", 0]
            assert found.error_code == (0 if value == "true" else UnsupportedVersionError.errno)

    run(tmp_path, scenario)


# Transactions


def test_committed_reads_end_at_the_stable_offset_and_are_told_what_was_aborted(tmp_path: Path) -> None:
    data = [
        transactional(0, 1, 3),
        batch(3, 2),
        marker(5, 1, commit=False),
        batch(6),
        transactional(7, 2),
        batch(8),
    ]
    path = put_segment(tmp_path / "t-0", 0, data)

    async def scenario(here: Here) -> None:
        found = (await ask(here, fetch(Wanted("t"), isolation=READ_COMMITTED), NEW))["t", 0]
        assert (found.last_stable_offset, found.high_watermark) == (7, 9)
        assert read(found) == list(range(7))
        assert [(one.producer_id, one.first_offset) for one in found.aborted_transactions] == [(1, 0)]
        found = (await ask(here, fetch(Wanted("t", 0, 6), isolation=READ_COMMITTED), NEW))["t", 0]
        assert (read(found, 6), found.aborted_transactions) == ([6], [])
        found = (await ask(here, fetch(Wanted("t")), NEW))["t", 0]
        assert (read(found), found.aborted_transactions) == (list(range(9)), None)

        request = fetch(Wanted("t", 0, 7), isolation=READ_COMMITTED, max_wait_ms=FOREVER_MS)
        answer = asyncio.create_task(ask(here, request, NEW))
        await here.until_waiting(answer)
        with path.open("ab") as file:
            file.write(marker(9, 2, commit=True))
        found = (await asyncio.wait_for(answer, SECONDS))["t", 0]
        assert (read(found), found.last_stable_offset) == ([7, 8, 9], 10)

    run(tmp_path, scenario)


# Logs of which nothing is left for old clients


@pytest.mark.parametrize("version", [0, OLD])
@pytest.mark.parametrize("rolled_at", [None, 40, 100])
def test_markers_alone_are_read_past_and_at_the_end_there_is_nothing(
    tmp_path: Path, version: int, rolled_at: int | None
) -> None:
    data = [marker(offset, 1, commit=True) for offset in range(100)] + batches(100, 103)
    folder = tmp_path / "t-0"
    put_segment(folder, 0, data[:rolled_at])
    if rolled_at is not None:
        put_segment(folder, rolled_at, data[rolled_at:])
    put_segment(tmp_path / "only-0", 0, data[:100])

    async def scenario(here: Here) -> None:
        found = (await ask(here, fetch(Wanted("t", 0, 0, 200)), version))["t", 0]
        assert next(iter(read(found))) == 100
        request = fetch(Wanted("only", 0, 0, 200), max_wait_ms=FOREVER_MS)
        answer = asyncio.create_task(ask(here, request, version))
        await here.until_waiting(answer)
        with (tmp_path / "only-0" / name(0)).open("ab") as file:
            file.write(marker(100, 1, commit=True) + batch(101))
        found = (await asyncio.wait_for(answer, SECONDS))["only", 0]
        assert (found.error_code, read(found)) == (0, [101])

    run(tmp_path, scenario)


def test_markers_alone_are_passed_over_once_for_all_fetches(tmp_path: Path) -> None:
    put_segment(tmp_path / "t-0", 0, [marker(offset, 1, commit=True) for offset in range(1000)])

    async def scenario(here: Here) -> None:
        for _ in range(3):
            found = (await ask(here, fetch(Wanted("t", 0, 0, 200)), OLD))["t", 0]
            assert (found.error_code, found.records or b"", found.high_watermark) == (0, b"", 1000)
        partition = here.endpoint.server.service.fetching._catalog.partition("t", 0)
        assert partition is not None
        first = partition.log.find(0)
        assert first is not None
        assert first.segment.passed == {(1, 0): first.end_position}

    run(tmp_path, scenario)


# Damage


@pytest.mark.parametrize("version", [0, OLD, 4, NEW])
@pytest.mark.parametrize("place", [11, -1], ids=["length", "last byte"])
def test_damaged_batch_is_an_error_of_its_partition_behind_all_in_front_of_it(
    tmp_path: Path, version: int, place: int
) -> None:
    data = batches(0, 20)
    with SegmentWriter(tmp_path / "t-0", 0, index_interval_bytes=1) as writer:
        writer.append(b"".join(data))
    damaged = bytearray(b"".join(data))
    damaged[12 * len(data[0]) + place % len(data[0])] ^= 0x40
    writer.path.write_bytes(damaged)
    os.utime(writer.path, (0, 0))
    put_segment(tmp_path / "u-0", 0, batches(0, 2))

    async def scenario(here: Here) -> None:
        start = 0
        while start < 12:
            found = await ask(here, fetch(Wanted("t", 0, start), Wanted("u")), version)
            assert found["t", 0].error_code == 0
            start = read(found["t", 0])[-1] + 1
        assert start == 12
        found = await ask(here, fetch(Wanted("t", 0, 12), Wanted("u")), version)
        assert [one.error_code for one in found.values()] == [CorruptRecordError.errno, 0]
        assert (found["t", 0].records or b"") == b""
        assert read(found["u", 0]) == [0, 1]
        await here.told.until(lambda told: told.errors == [CorruptRecordError.errno])
        found = await ask(here, fetch(Wanted("t", 0, 14)), version)
        assert read(found["t", 0])[0] == 14

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [0, OLD, 4, NEW])
def test_zeros_behind_a_segment_are_never_sent(tmp_path: Path, version: int) -> None:
    """Of a preallocated one that was copied while it was written; there are clients that zeros end."""
    path = put_segment(tmp_path / "t-0", 0, batches(0, 5))
    os.truncate(path, 1 << 20)
    put_segment(tmp_path / "t-0", 5, batches(5, 8))

    async def scenario(here: Here) -> None:
        found = (await ask(here, fetch(Wanted("t")), version))["t", 0]
        whole = sum(one.size_in_bytes for one in kf.MemoryRecords(found.records).batches())
        assert read(found) == list(range(5))
        assert not found.records[whole:].startswith(bytes(12))
        assert version < 4 or whole == len(found.records)
        assert read((await ask(here, fetch(Wanted("t", 0, 5)), version))["t", 0])[0] == 5

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_damaged_end_is_told_once_nobody_can_be_writing_it(tmp_path: Path, version: int) -> None:
    broken = batch(3)[:-1] + b"?"
    path = put_segment(tmp_path / "t-0", 0, [*batches(0, 3), broken])
    being_written = time.time() + 3600  # two seconds later it would be damage
    os.utime(path, (being_written, being_written))

    async def scenario(here: Here) -> None:
        found = (await ask(here, fetch(Wanted("t")), version))["t", 0]
        assert (found.error_code, found.high_watermark, read(found)[:2]) == (0, 3, [0, 1])
        answer = asyncio.create_task(ask(here, fetch(Wanted("t", 0, 3), max_wait_ms=FOREVER_MS), version))
        await here.until_waiting(answer)
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(batch(3)[-1:])
        found = (await asyncio.wait_for(answer, SECONDS))["t", 0]
        assert read(found) == [3]
        with path.open("ab") as file:
            file.write(batch(4)[:-1] + b"?")
        os.utime(path, (0, 0))
        found = (await ask(here, fetch(Wanted("t", 0, 4), max_wait_ms=FOREVER_MS), version))["t", 0]
        assert found.error_code == CorruptRecordError.errno

    run(tmp_path, scenario)


# Logs that lose something


@pytest.mark.parametrize("version", [OLD, NEW])
def test_segment_that_vanishes_between_plan_and_send_is_sent(tmp_path: Path, version: int) -> None:
    folder = tmp_path / "t-0"
    put_segment(folder, 0, batches(0, 40, size=100_000))
    put_segment(folder, 40, batches(40, 42))

    async def scenario(here: Here) -> None:
        request = fetch(Wanted("t", 0, 0, 4 * MIB))
        with await here.client(4096) as client:
            await client.send(request, version)
            await client.read(1000)  # so it is being sent, and far from its end
            (folder / name(0)).unlink()
            found = await ask(here, fetch(Wanted("t")), version)
            assert found["t", 0].error_code == OffsetOutOfRangeError.errno
            assert read((await ask(here, fetch(Wanted("t", 0, 40)), version))["t", 0])[0] == 40
            await client.read(3_000_000)

    run(tmp_path, scenario)


def test_segment_that_is_deleted_while_a_fetch_is_planned_is_out_of_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "t-0"
    put_segment(folder, 0, batches(0, 5))
    put_segment(folder, 5, batches(5, 8))

    async def scenario(here: Here) -> None:
        original = LogTail.find_steps

        def find_steps(self: LogTail, offset: int) -> Any:
            (folder / name(0)).unlink(missing_ok=True)
            return original(self, offset)

        monkeypatch.setattr(LogTail, "find_steps", find_steps)
        found = (await ask(here, fetch(Wanted("t", 0, 2)), NEW))["t", 0]
        assert found.error_code == OffsetOutOfRangeError.errno

    run(tmp_path, scenario)


def test_file_that_loses_its_end_while_it_is_sent_ends_that_connection_alone(tmp_path: Path) -> None:
    path = put_segment(tmp_path / "t-0", 0, batches(0, 40, size=100_000))

    async def scenario(here: Here) -> None:
        with await here.client(4096) as client:
            await client.send(fetch(Wanted("t", 0, 0, 4 * MIB)), NEW)
            await client.read(1000)
            os.truncate(path, 200_000)
            with pytest.raises(ConnectionError):
                await client.read(4 * MIB)
        found = (await ask(here, fetch(Wanted("t", 0, 0, 4 * MIB)), NEW))["t", 0]
        assert (found.error_code, read(found)) == (0, [0])

    run(tmp_path, scenario)


def test_log_whose_transactions_are_read_holds_up_no_other_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_segment(tmp_path / "t-0", 0, [transactional(0, 1), marker(1, 1, commit=False), batch(2)])
    put_segment(tmp_path / "u-0", 0, batches(0, 2))
    may_read, original, reads = threading.Event(), UnreadTransactions.read, []

    def read_later(self: UnreadTransactions) -> LogTransactions:
        reads.append(self)
        assert may_read.wait(SECONDS)
        return original(self)

    async def scenario(here: Here) -> None:
        monkeypatch.setattr(UnreadTransactions, "read", read_later)
        request = fetch(Wanted("t"), isolation=READ_COMMITTED)
        answers = [asyncio.create_task(ask(here, request, NEW)) for _ in range(3)]
        while not reads:
            await asyncio.sleep(0)
        assert read((await ask(here, fetch(Wanted("u")), NEW))["u", 0]) == [0, 1]
        assert read((await ask(here, fetch(Wanted("t")), NEW))["t", 0]) == [0, 1, 2]
        may_read.set()
        for found in await asyncio.gather(*answers):
            assert found["t", 0].last_stable_offset == 3
            assert len(found["t", 0].aborted_transactions) == 1
        assert len(reads) == 1

    run(tmp_path, scenario)
