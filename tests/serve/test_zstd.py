"""zstd for consumers that do not support it (KIP-110): it is refused, or sent with another codec."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import CorruptRecordError, UnsupportedCompressionTypeError

import kafkafmt as kf
from endpoints.endpoint_here import SECONDS, Here, serving
from endpoints.fetched import FOREVER_MS, ask, read
from endpoints.requests import MIB, READ_COMMITTED, Wanted, fetch
from kafkafmt.convert.engine import Converter
from kafkafmt.log.open_segment import OpenSegment
from log.samples import DAY, batch, batches, marker, put_segment, transactional


def run(directory: Path, scenario: Callable[[Here], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with serving(directory, **options) as here:
            await asyncio.wait_for(scenario(here), SECONDS)

    asyncio.run(main())


ZSTD_LOG = [batch(0, 3), batch(3, 2, codec=kf.Codec.ZSTD), batch(5, 2, codec=kf.Codec.ZSTD), batch(7, 2)]


@pytest.mark.parametrize("version", range(12))
def test_zstd_is_refused_where_it_comes_first_to_whom_it_is_unknown(tmp_path: Path, version: int) -> None:
    put_segment(tmp_path / "t-0", 0, ZSTD_LOG)
    put_segment(tmp_path / "u-0", 0, batches(0, 2))

    async def scenario(here: Here) -> None:
        found = await ask(here, fetch(Wanted("t"), Wanted("u")), version)
        known = version >= 10
        assert read(found["t", 0]) == (list(range(9)) if known else [0, 1, 2])
        found = await ask(here, fetch(Wanted("t", 0, 3), Wanted("u")), version)
        code = 0 if known else UnsupportedCompressionTypeError.errno
        assert [one.error_code for one in found.values()] == [code, 0]
        assert read(found["u", 0]) == [0, 1]
        found = await ask(here, fetch(Wanted("t", 0, 7)), version)
        assert read(found["t", 0]) == [7, 8]

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", range(12))
def test_zstd_with_a_fallback_is_compressed_anew_for_whom_it_is_unknown(tmp_path: Path, version: int) -> None:
    put_segment(tmp_path / "t-0", 0, ZSTD_LOG)

    async def scenario(here: Here) -> None:
        got, start = [], 0
        while start < 9:
            found = (await ask(here, fetch(Wanted("t", 0, start)), version))["t", 0]
            assert found.error_code == 0
            codecs = {one.codec for one in kf.MemoryRecords(found.records).batches()}
            assert (kf.Codec.ZSTD in codecs) == (version >= 10 and start < 7)
            new = read(found, start)
            got += new
            start = new[-1] + 1
        assert got == list(range(9))
        await here.told.until(lambda told: told.held == 0)

    run(tmp_path, scenario, zstd_fallback=kf.Codec.LZ4)


@pytest.fixture
def compressed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The base offsets of all batches that are converted, in order."""
    convert, found = Converter.convert, list[int]()

    def noted(self: Converter, run: Any, first: int = 0, stop: int | None = None) -> int:
        following = convert(self, run, first, stop)
        found.extend(run.index["base_offset"][first:following].tolist())
        return following

    monkeypatch.setattr(Converter, "convert", noted)
    return found


@pytest.mark.parametrize(
    ("version", "options"),
    [
        (9, {"zstd_fallback": kf.Codec.NONE}),
        (3, {"downconversion_codec": kf.Codec.GZIP}),
        (1, {"downconversion_codec": kf.Codec.GZIP}),
    ],
    ids=str,
)
def test_many_partitions_when_they_are_compressed_anew_then_few_twice_and_within_the_cap(
    tmp_path: Path, compressed: list[int], version: int, options: dict[str, Any]
) -> None:
    numbers = range(20)
    for number in numbers:
        put_segment(tmp_path / f"t-{number}", 0, [batch(0, 20, size=2000, codec=kf.Codec.ZSTD)])

    async def scenario(here: Here) -> None:
        left, requests = list(numbers), 0
        while left:
            found = await ask(here, fetch(*(Wanted("t", number) for number in left)), version)
            got = [number for number in left if read(found["t", number])]
            assert got[0] == left[0]
            assert all(read(found["t", number]) == list(range(20)) for number in got)
            left = [number for number in left if number not in got]
            requests += 1
        # Before v3 consumers do not rotate partitions, and get a batch of each.
        assert len(compressed) <= len(numbers) + (requests if version >= 3 else len(numbers))
        assert here.told.most_held <= 50_000
        await here.told.until(lambda told: told.held == 0)

    run(tmp_path, scenario, max_downconversion_bytes=1, **options)


@pytest.mark.parametrize(
    ("version", "options"),
    [(9, {"zstd_fallback": kf.Codec.LZ4}), (3, {"downconversion_codec": kf.Codec.LZ4})],
    ids=str,
)
def test_batches_when_a_fetch_waits_for_more_then_are_compressed_anew_once(
    tmp_path: Path, compressed: list[int], version: int, options: dict[str, Any]
) -> None:
    data = [batch(offset, codec=kf.Codec.ZSTD) for offset in range(4)]
    path = put_segment(tmp_path / "t-0", 0, data[:1])
    request = fetch(Wanted("t"), min_bytes=sum(map(len, data)), max_wait_ms=FOREVER_MS)

    async def scenario(here: Here) -> None:
        answer = asyncio.create_task(ask(here, request, version))
        growth = here.endpoint._growth
        for added in data[1:]:
            await here.until_waiting(answer)
            (waiting,) = growth._waiting.values()
            with path.open("ab") as file:
                file.write(added)
            while growth._waiting.get(next(iter(growth._waiting), None)) is waiting:
                await asyncio.sleep(0)
        assert read((await answer)["t", 0]) == list(range(4))
        assert compressed == list(range(4))
        compressed.clear()
        over = fetch(Wanted("t"), min_bytes=MIB, max_wait_ms=1)
        assert read((await ask(here, over, version))["t", 0]) == list(range(4))
        assert compressed == list(range(4))

    run(tmp_path, scenario, **options)


@pytest.mark.parametrize(
    ("version", "options"),
    [(9, {"zstd_fallback": kf.Codec.LZ4}), (3, {"downconversion_codec": kf.Codec.LZ4})],
    ids=str,
)
def test_damaged_batch_when_a_fetch_waits_for_more_then_is_an_error_at_once(
    tmp_path: Path, version: int, options: dict[str, Any]
) -> None:
    data = bytearray(batch(0, codec=kf.Codec.ZSTD))
    data[-1] ^= 1
    put_segment(tmp_path / "t-0", 0, [data, batch(1)])

    async def scenario(here: Here) -> None:
        found = await ask(here, fetch(Wanted("t"), min_bytes=MIB, max_wait_ms=FOREVER_MS), version)
        assert found["t", 0].error_code == CorruptRecordError.errno

    run(tmp_path, scenario, **options)


def test_zstd_with_a_fallback_when_the_limits_are_large_then_no_more_than_a_chunk_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = batches(0, 100, size=1000, codec=kf.Codec.ZSTD)
    put_segment(tmp_path / "t-0", 0, data)
    checked_run_steps, ends = OpenSegment.checked_run_steps, list[int]()

    def noted(self: OpenSegment, position: int, end: int | None = None) -> Any:
        if end is not None:  # otherwise the end of the log is read
            ends.append(end)
        return checked_run_steps(self, position, end)

    async def scenario(here: Here) -> None:
        assert read((await ask(here, fetch(Wanted("t")), 9))["t", 0]) == list(range(10))
        assert set(ends) == {sum(map(len, data[:10]))}

    monkeypatch.setattr(OpenSegment, "checked_run_steps", noted)
    run(tmp_path, scenario, zstd_fallback=kf.Codec.LZ4, chunk_bytes=sum(map(len, data[:10])))


ZSTD_TRANSACTIONS = [
    transactional(0, 1, 3, codec=kf.Codec.ZSTD),
    batch(3, 2, codec=kf.Codec.ZSTD),
    marker(5, 1, commit=False),
    batch(6, 1, codec=kf.Codec.ZSTD),
    transactional(7, 1, 2, codec=kf.Codec.ZSTD),
    marker(9, 1, commit=False),
    transactional(10, 2, codec=kf.Codec.ZSTD),
]


@pytest.mark.parametrize("version", [4, 9])
@pytest.mark.parametrize("max_bytes", [1, 300, MIB])
def test_zstd_with_a_fallback_when_read_committed_then_has_the_aborted_transactions_of_what_is_sent(
    tmp_path: Path, version: int, max_bytes: int
) -> None:
    put_segment(tmp_path / "t-0", 0, ZSTD_TRANSACTIONS)
    first_offsets = {0: 0, 1: 0, 2: 0, 3: None, 4: None, 5: None, 6: None, 7: 7, 8: 7, 9: 7}

    async def scenario(here: Here) -> None:
        start, got, control = 0, [], []
        while start < 10:
            wanted = fetch(Wanted("t", 0, start, max_bytes), isolation=READ_COMMITTED)
            found = (await ask(here, wanted, version))["t", 0]
            assert (found.error_code, found.last_stable_offset) == (0, 10)
            for one in kf.MemoryRecords(found.records).batches():
                assert one.codec == (kf.Codec.NONE if one.is_control else kf.Codec.GZIP)
                assert one.is_transactional == (one.base_offset not in (3, 6))
                control += [one.base_offset] if one.is_control else []
            offsets = read(found, start)
            aborted = {one.first_offset for one in found.aborted_transactions}
            needed = {first_offsets[offset] for offset in offsets} - {None}
            assert needed <= aborted
            got += offsets
            start = offsets[-1] + 1
        assert (got, control) == (list(range(10)), [5, 9])

    run(tmp_path, scenario, zstd_fallback=kf.Codec.GZIP)


def test_zstd_with_a_fallback_when_the_broker_set_the_timestamp_then_the_batch_keeps_it(
    tmp_path: Path,
) -> None:
    stored = batch(
        0, 3, codec=kf.Codec.ZSTD, timestamp_type=kf.TimestampType.LOG_APPEND_TIME, log_append_time=DAY
    )
    put_segment(tmp_path / "t-0", 0, [stored])

    async def scenario(here: Here) -> None:
        found = (await ask(here, fetch(Wanted("t")), 9))["t", 0]
        (sent,) = kf.MemoryRecords(found.records).batches()
        assert (sent.codec, sent.timestamp_type) == (kf.Codec.LZ4, kf.TimestampType.LOG_APPEND_TIME)
        assert [(record.offset, record.timestamp) for record in sent] == [
            (offset, DAY) for offset in range(3)
        ]

    run(tmp_path, scenario, zstd_fallback=kf.Codec.LZ4)


@pytest.mark.parametrize("version", [4, 9])
def test_zstd_with_a_fallback_when_batches_grow_then_the_limits_hold_after_the_first_one(
    tmp_path: Path, version: int
) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 400, 20, size=2000, codec=kf.Codec.ZSTD))

    def read_with(limit: int, max_bytes: int, **options: Any) -> int:
        async def scenario(here: Here) -> None:
            found = await ask(here, fetch(Wanted("t", 0, 0, limit), max_bytes=max_bytes), version)
            data = found["t", 0].records
            assert 20 <= len(read(found["t", 0])) < 400
            whole = [one.size_in_bytes for one in kf.MemoryRecords(data).batches()]
            assert sum(whole) == len(data)
            sizes.append(len(whole))

        sizes: list[int] = []
        run(tmp_path, scenario, zstd_fallback=kf.Codec.NONE, **options)
        return sizes[0]

    assert read_with(100_000, MIB) == read_with(MIB, 100_000) == 2
    assert read_with(MIB, MIB, max_fetch_bytes=100_000) == 2
    assert read_with(MIB, MIB, chunk_bytes=60_000) == 3  # until they take one and a half chunks
    assert read_with(1, 1) == 1


@pytest.mark.parametrize("version", [4, 9])
def test_zstd_with_a_fallback_when_batches_of_other_codecs_follow_then_these_are_sent_as_stored(
    tmp_path: Path, version: int
) -> None:
    codecs = (kf.Codec.ZSTD, kf.Codec.ZSTD, kf.Codec.LZ4, kf.Codec.NONE, kf.Codec.ZSTD)
    data = [batch(2 * number, 2, codec=codec) for number, codec in enumerate(codecs)]
    data.insert(4, batch(8, 2, magic=1, codec=kf.Codec.SNAPPY))
    data[5] = batch(10, 2, codec=kf.Codec.ZSTD)
    put_segment(tmp_path / "t-0", 0, data)

    async def scenario(here: Here) -> None:
        found = {
            start: (await ask(here, fetch(Wanted("t", 0, start)), version))["t", 0] for start in (0, 2, 4)
        }
        assert [read(found[start]) for start in found] == [[0, 1, 2, 3], [2, 3], [4, 5, 6, 7, 8, 9]]
        for start in (0, 2):
            of_one = list(kf.MemoryRecords(found[start].records).batches())
            assert {(one.magic, one.codec) for one in of_one} == {(2, kf.Codec.GZIP)}
            assert found[start].records.endswith(found[2].records)
        assert found[4].records == b"".join(data[2:5])

    run(tmp_path, scenario, zstd_fallback=kf.Codec.GZIP)
