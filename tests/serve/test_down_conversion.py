"""Down-conversion of an endpoint (KIP-283): sizes that it promises, compressed answers, and Kafka's metrics."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import kafkafmt as kf
from endpoints.endpoint_here import SECONDS, Here, serving
from endpoints.endpoint_process import HOST
from endpoints.fetched import FOREVER_MS, OLD, ask, read
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.raw_client import RawClient
from endpoints.requests import MIB, Wanted, fetch
from endpoints.scraping import metric, scrape
from kafkafmt import Codec
from log.samples import batch, batches, put_segment

OLDEST = 0  # a version of Fetch, of format v0
METRICS = ("--metrics", f"{HOST}:0")
REQUEST = "kafka_network_requestmetrics_{}_{}"
CONVERTED = "kafka_server_brokertopicmetrics_fetchmessageconversions_total"


def run(directory: Path, scenario: Callable[[Here], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with serving(directory, **options) as here:
            await asyncio.wait_for(scenario(here), SECONDS)

    asyncio.run(main())


def converted(data: list[bytes], version: int) -> bytes:
    to_magic = 1 if version >= 2 else 0
    return bytes(kf.MemoryRecords(b"".join(data)).down_convert(to_magic).records.buffer)


@pytest.mark.parametrize("version", [OLDEST, OLD])
@pytest.mark.parametrize("data", [batches(0, 300), batches(0, 3000, 100, size=30)], ids=["shrinks", "grows"])
def test_kip_283_determining_total_response_size_when_uncompressed_then_responses_are_neither_padded_nor_cut(
    tmp_path: Path, data: list[bytes], version: int
) -> None:
    put_segment(tmp_path / "t-0", 0, data)
    limit = 10_000
    (last,) = kf.MemoryRecords(data[-1]).batches()

    async def scenario(here: Here) -> None:
        got, start = b"", 0
        while start < last.next_offset:
            found = (await ask(here, fetch(Wanted("t", 0, start, limit)), version))["t", 0]
            sizes = [one.size_in_bytes for one in kf.MemoryRecords(found.records).batches()]
            assert sum(sizes) == len(found.records) <= limit
            got += found.records
            start = read(found)[-1] + 1
        assert got == converted(data, version)

    run(tmp_path, scenario)


def test_fetch_when_the_exact_size_is_below_its_least_bytes_then_is_answered_as_by_the_stored_size(
    tmp_path: Path,
) -> None:
    """Kafka compares `min_bytes` with what is stored: a response of whole batches may be smaller."""
    put_segment(tmp_path / "t-0", 0, batches(0, 300))

    async def scenario(here: Here) -> None:
        wanted = fetch(Wanted("t", 0, 0, 10_000), min_bytes=10_000, max_bytes=10_000, max_wait_ms=FOREVER_MS)
        found = (await ask(here, wanted, OLD))["t", 0]
        assert 7_000 < len(found.records) < 10_000

    run(tmp_path, scenario)
    run(tmp_path, scenario_of_codec, downconversion_codec=Codec.GZIP)


async def scenario_of_codec(here: Here) -> None:
    wanted = fetch(Wanted("t", 0, 0, 10_000), min_bytes=10_000, max_bytes=10_000, max_wait_ms=FOREVER_MS)
    found = (await ask(here, wanted, OLD))["t", 0]
    assert read(found)[0] == 0


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4], ids=str)
@pytest.mark.parametrize("version", [OLDEST, OLD])
def test_kip_283_compression_when_a_codec_is_set_then_wrappers_of_all_partitions_have_it_and_nothing_is_padded(
    tmp_path: Path, version: int, codec: Codec
) -> None:
    plain, packed = batches(0, 600, 20, size=200), batches(0, 600, 20, size=200, codec=Codec.ZSTD)
    put_segment(tmp_path / "plain-0", 0, plain)
    put_segment(tmp_path / "packed-0", 0, packed)

    async def scenario(here: Here) -> None:
        starts, got = {"plain": 0, "packed": 0}, {"plain": [], "packed": []}
        while min(starts.values()) < 600:
            wanted = fetch(*(Wanted(topic, 0, start) for topic, start in starts.items()))
            for (topic, _), found in (await ask(here, wanted, version)).items():
                assert found.error_code == 0
                wrappers = list(kf.MemoryRecords(found.records or b"").batches())
                assert {one.codec for one in wrappers} <= {codec}
                assert {one.magic for one in wrappers} <= {int(version >= 2)}
                assert sum(one.size_in_bytes for one in wrappers) == len(found.records or b"")
                assert len(found.records or b"") < 20_000  # of 64 KiB that are stored
                got[topic] += (offsets := read(found, starts[topic]))
                starts[topic] = offsets[-1] + 1 if offsets else starts[topic]
        assert got == {"plain": list(range(600)), "packed": list(range(600))}
        await here.told.until(lambda told: told.held == 0)

    run(tmp_path, scenario, downconversion_codec=codec, chunk_bytes=64 * 1024)


def test_memory_when_many_partitions_are_compressed_then_one_chunk_of_them_is_held(tmp_path: Path) -> None:
    """Values that do not compress, so that a chunk takes as much memory as it can."""
    values = [os.urandom(1000) for _ in range(60)]
    for number in range(20):
        builder = kf.RecordBatchBuilder(batch_size=MIB)
        for value in values:
            builder.append(0, None, value)
        put_segment(tmp_path / f"t-{number}", 0, [builder.build()])
    limit = 128 * 1024

    async def scenario(here: Here) -> None:
        wanted = fetch(*(Wanted("t", number) for number in range(20)))
        found = await ask(here, wanted, OLDEST)
        assert {tuple(read(one)) for one in found.values()} == {tuple(range(60))}
        found = await ask(here, wanted, OLD)  # its consumers rotate partitions
        assert [read(one) for one in found.values()] == [list(range(60))] * 2 + [[]] * 18
        assert 0 < here.told.most_held <= limit
        await here.told.until(lambda told: told.held == 0)

    run(
        tmp_path,
        scenario,
        downconversion_codec=Codec.GZIP,
        chunk_bytes=64 * 1024,
        max_downconversion_bytes=limit,
    )


def test_new_consumer_when_a_codec_is_set_then_gets_what_is_stored(tmp_path: Path) -> None:
    data = batches(0, 60, 20)
    put_segment(tmp_path / "t-0", 0, data)

    async def scenario(here: Here) -> None:
        assert (await ask(here, fetch(Wanted("t")), 11))["t", 0].records == b"".join(data)

    run(tmp_path, scenario, downconversion_codec=Codec.LZ4)


@pytest.mark.full
@pytest.mark.parametrize("codec", [None, Codec.GZIP, Codec.ZSTD], ids=str)
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_kip_188_metrics_when_the_only_batch_is_converted_while_planning_then_have_its_time_and_memory(
    tmp_path: Path, workers: int, codec: Codec | None
) -> None:
    """FetchMessageConversionsPerSec, TemporaryMemoryBytes and MessageConversionsTimeMs, whose names KIP-188 defines.

    KIP-283 converts the first batch before the response is sent, to know its size.
    """
    options = ("--zstd-fallback", "lz4") if codec == Codec.ZSTD else ()
    data = batch(0, 50, codec=codec or Codec.NONE)
    put_segment(tmp_path / "logs" / "orders-0", 0, [data])
    fallback = "lz4" if codec == Codec.ZSTD else None
    stats = kf.MemoryRecords(data).down_convert(1, zstd_fallback=fallback).stats
    with LoggedEndpoint(tmp_path / "logs", *METRICS, *options, "--workers", workers) as served:
        address = served.event("metrics are served")["address"]
        for _ in range(4):
            with RawClient((served.host, served.port)) as client:
                client.ask(fetch(Wanted("orders")), OLD)
                client.ask(fetch(Wanted("orders")), OLD)  # the first one is counted before this one is read
        while metric(address, CONVERTED, topic="orders") < 8 * 50:
            pass
        assert metric(address, CONVERTED, topic="orders") == 8 * 50
        for name in ("temporarymemorybytes", "messageconversionstimems"):
            assert metric(address, REQUEST.format(name, "count"), request="Fetch") == 8
        memory = metric(address, REQUEST.format("temporarymemorybytes", "sum"), request="Fetch")
        assert memory == 8 * stats.temporary_memory_bytes
        # The time is not 0 although nothing is converted while the response is sent.
        assert metric(address, REQUEST.format("messageconversionstimems", "sum"), request="Fetch") > 0
        assert any(sample.name == CONVERTED for sample in scrape(address))


def test_kip_188_metrics_when_answers_are_compressed_then_count_their_records(tmp_path: Path) -> None:
    put_segment(tmp_path / "logs" / "orders-0", 0, batches(0, 100, 20))
    options = ("--downconversion-codec", "gzip")
    with LoggedEndpoint(tmp_path / "logs", *METRICS, *options) as served:
        address = served.event("metrics are served")["address"]
        with RawClient((served.host, served.port)) as client:
            client.ask(fetch(Wanted("orders", 0, 0, MIB)), OLD)
        while metric(address, CONVERTED, topic="orders") < 100:
            pass
        assert metric(address, REQUEST.format("messageconversionstimems", "count"), request="Fetch") == 1
        assert metric(address, "kafkafmt_fetch_sent_bytes_total", way="zero_copy") == 0
