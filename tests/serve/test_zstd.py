"""zstd for consumers that do not support it (KIP-110): it is refused, or sent with another codec."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import UnsupportedCompressionTypeError

import kafkafmt as kf
from endpoints.endpoint_here import SECONDS, Here, serving
from endpoints.fetched import ask, read
from endpoints.requests import MIB, Wanted, fetch
from log.samples import batch, batches, put_segment


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


def test_zstd_compressed_anew_for_many_partitions_stays_within_the_cap(tmp_path: Path) -> None:
    numbers = range(20)
    for number in numbers:
        put_segment(tmp_path / f"t-{number}", 0, [batch(0, 20, size=2000, codec=kf.Codec.ZSTD)])

    async def scenario(here: Here) -> None:
        found = await ask(here, fetch(*(Wanted("t", number) for number in numbers)), 4)
        assert all(read(found["t", number]) == list(range(20)) for number in numbers)
        assert here.told.most_held <= 50_000
        await here.told.until(lambda told: told.held == 0)

    run(tmp_path, scenario, zstd_fallback=kf.Codec.NONE, max_downconversion_bytes=1)


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
