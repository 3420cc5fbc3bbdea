"""Partitions whose records old consumers cannot get do not hold up others (KIP-283, "Ensuring Consumer Progress")."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import (
    CorruptRecordError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    UnknownError,
    UnsupportedVersionError,
)

from endpoints.endpoint_here import SECONDS, connect, serving
from endpoints.fetched import FOREVER_MS, partitions, read
from endpoints.requests import Wanted, fetch
from gateway.gateway_here import gateway_to
from kafkafmt import Codec
from kafkafmt.gateway.cluster import Address
from kafkafmt.gateway.endpoint import Gateway
from kafkafmt.gateway.fetch_notes import FetchNote, FetchNotes
from kafkafmt.gateway.options import GatewayOptions
from kafkafmt.log.topic_configs import TopicConfig, set_topic_config
from kafkafmt.server.topics_file import TopicsFile
from log.samples import batch, batches, marker, put_segment, unreadable

ENABLE = "message.downconversion.enable"
OFF = TopicsFile(Path("topics"), {"off": {ENABLE: "false"}})
ERROR = {1: UnknownError.errno, 3: UnsupportedVersionError.errno}
LIMIT = 5000
Ask = Callable[..., Awaitable[dict[tuple[str, int], Any]]]


def run(directory: Path, scenario: Callable[[Ask, Gateway], Awaitable[None]], **options: Any) -> None:
    """Run a scenario with one client of a gateway to an endpoint."""

    async def main() -> None:
        async with serving(directory) as here, gateway_to(here.endpoint.address, **options) as (gateway, _):
            with await connect(gateway.address) as client:

                async def ask(*wanted: Wanted, version: int, **limits: Any) -> dict[tuple[str, int], Any]:
                    request = fetch(*wanted, **{"max_bytes": LIMIT, **limits})
                    return partitions(await client.ask(request, version))

                await asyncio.wait_for(scenario(ask, gateway), SECONDS)

    asyncio.run(main())


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_record_larger_than_the_limit_when_a_refused_partition_is_before_it_then_comes(
    tmp_path: Path, version: int, codec: Codec
) -> None:
    put_segment(tmp_path / "off-0", 0, [batch(0, 3, size=400, codec=codec)])
    put_segment(tmp_path / "big-0", 0, [batch(0, 1, size=9000)])

    async def scenario(ask: Ask, _: Gateway) -> None:
        wanted = Wanted("off", 0, 0, 1000), Wanted("big", 0, 0, 1000)
        error_code = ERROR[version] if codec == Codec.NONE else UnknownError.errno
        for _ in range(2):
            found = await ask(*wanted, version=version, max_wait_ms=FOREVER_MS)
            assert [found[topic, 0].error_code for topic in ("off", "big")] == [error_code, 0]
            assert read(found["big", 0]) == [0]
        at_end = Wanted("big", 0, 1, 1000)
        found = await ask(wanted[0], at_end, version=version, max_wait_ms=FOREVER_MS)
        assert [found[topic, 0].error_code for topic in ("off", "big")] == [error_code, 0]
        found = await ask(wanted[0]._replace(offset=9), at_end, version=version)
        assert found["off", 0].error_code == OffsetOutOfRangeError.errno

    run(tmp_path, scenario, topics_file=OFF if codec == Codec.NONE else None)


def test_refused_partition_when_its_topic_is_converted_again_then_the_next_fetch_has_its_records(
    tmp_path: Path,
) -> None:
    put_segment(tmp_path / "off-0", 0, [batch(0, 3)])

    async def scenario(ask: Ask, gateway: Gateway) -> None:
        for _ in range(2):
            found = await ask(Wanted("off"), version=3)
            assert found["off", 0].error_code == UnsupportedVersionError.errno
        await gateway.reload(GatewayOptions(servers=(Address(*gateway.address),)))
        assert read((await ask(Wanted("off"), version=3))["off", 0]) == [0, 1, 2]

    run(tmp_path, scenario, topics_file=OFF)


def test_refused_partition_when_only_a_later_batch_is_too_new_then_a_smaller_limit_gets_the_batches_before_it(
    tmp_path: Path,
) -> None:
    old = batches(0, 6, 3, magic=1)
    put_segment(tmp_path / "off-0", 0, [*old, batch(6, 3)])

    async def scenario(ask: Ask, _: Gateway) -> None:
        found = await ask(Wanted("off"), version=3)
        assert found["off", 0].error_code == UnsupportedVersionError.errno
        found = await ask(Wanted("off", 0, 0, len(b"".join(old))), version=3)
        assert read(found["off", 0]) == list(range(6))

    run(tmp_path, scenario, topics_file=OFF)


def test_damaged_partition_when_its_log_is_repaired_then_the_next_fetch_has_its_records(
    tmp_path: Path,
) -> None:
    data = batch(0, 3)
    path = put_segment(tmp_path / "t-0", 0, [unreadable(data)])

    async def scenario(ask: Ask, _: Gateway) -> None:
        found = await ask(Wanted("t"), version=3)
        assert found["t", 0].error_code == CorruptRecordError.errno
        path.write_bytes(data)
        assert read((await ask(Wanted("t"), version=3))["t", 0]) == [0, 1, 2]

    run(tmp_path, scenario)


def test_refused_partition_when_the_cluster_cannot_be_reached_then_is_still_refused_and_others_have_an_error(
    tmp_path: Path,
) -> None:
    put_segment(tmp_path / "off-0", 0, [batch(0, 3)])
    put_segment(tmp_path / "t-0", 0, [batch(0, 3)])
    set_topic_config(tmp_path, "off", TopicConfig(1, {ENABLE: "false"}))

    async def main() -> None:
        async with serving(tmp_path) as here, gateway_to(here.endpoint.address) as (gateway, _):
            with await connect(gateway.address) as client:
                refused = UnsupportedVersionError.errno
                for others in ([0], [NotLeaderForPartitionError.errno]):
                    answer = await client.ask(fetch(Wanted("off"), Wanted("t")), 3)
                    assert [one.error_code for one in partitions(answer).values()] == [refused, *others]
                    gateway._policy.forget_answers()
                    here.endpoint.drain()
                    await here.serving

    asyncio.run(asyncio.wait_for(main(), SECONDS))


@pytest.mark.parametrize("version", [1, 3])
def test_markers_when_another_partition_has_an_error_then_are_passed_over(
    tmp_path: Path, version: int
) -> None:
    put_segment(tmp_path / "off-0", 0, [batch(0, 3)])
    data = [marker(0, 1, commit=True), batch(1, 2)]
    put_segment(tmp_path / "t-0", 0, data)

    async def scenario(ask: Ask, _: Gateway) -> None:
        for other in (Wanted("off", 0, 9), Wanted("off"), Wanted("off")):
            found = await ask(Wanted("t", 0, 0, len(data[0])), other, version=version)
            assert found["off", 0].error_code
            assert read(found["t", 0]) == [1, 2]

    run(tmp_path, scenario, topics_file=OFF)


@pytest.mark.parametrize("version", [1, 3])
def test_markers_when_another_partition_has_records_in_each_fetch_then_are_passed_over(
    tmp_path: Path, version: int
) -> None:
    data = [marker(0, 1, commit=True), marker(1, 1, commit=True), batch(2, 2)]
    put_segment(tmp_path / "t-0", 0, data)
    put_segment(tmp_path / "u-0", 0, batches(0, 9))

    async def scenario(ask: Ask, _: Gateway) -> None:
        at_markers = Wanted("t", 0, 0, len(data[0]))
        found = [await ask(at_markers, Wanted("u", 0, offset), version=version) for offset in range(4)]
        assert [read(one["t", 0]) for one in found] == [[], [], [2, 3], [2, 3]]
        assert [read(one["u", 0])[0] for one in found] == [0, 1, 2, 3]

    run(tmp_path, scenario)


def test_markers_that_were_passed_over_when_the_log_is_created_again_then_its_records_are_read(
    tmp_path: Path,
) -> None:
    data = marker(0, 1, commit=True)
    put_segment(tmp_path / "t-0", 0, [data, marker(1, 1, commit=True), batch(2, 2)])
    put_segment(tmp_path / "u-0", 0, batches(0, 9))

    async def scenario(ask: Ask, _: Gateway) -> None:
        wanted = Wanted("t", 0, 0, len(data)), Wanted("u")
        for _ in range(2):
            assert read((await ask(*wanted, version=3))["t", 0]) == []
        put_segment(tmp_path / "t-0", 0, [batch(0)])
        found = await ask(*wanted, version=3)
        assert found["t", 0].error_code == 0
        assert read(found["t", 0]) == [0]

    run(tmp_path, scenario)


def test_markers_that_were_passed_over_when_the_partition_has_an_error_then_are_read_again(
    tmp_path: Path,
) -> None:
    data = [marker(number, 1, commit=True) for number in range(3)]
    put_segment(tmp_path / "t-0", 0, [*data, batch(3)])
    put_segment(tmp_path / "u-0", 0, batches(0, 9))

    async def scenario(ask: Ask, gateway: Gateway) -> None:
        wanted = Wanted("t", 0, 0, len(data[0])), Wanted("u")
        found = [await ask(*wanted, version=3) for _ in range(2)]
        assert [read(one["t", 0]) for one in found] == [[], []]
        (tmp_path / "t-0").rename(tmp_path / "kept")
        assert (await ask(*wanted, version=3))["t", 0].error_code
        (tmp_path / "kept").rename(tmp_path / "t-0")
        found = [await ask(*wanted, version=3) for _ in range(4)]
        assert [read(one["t", 0]) for one in found] == [[], [], [], [3]]

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", [1, 3])
def test_markers_when_it_takes_long_to_pass_over_them_then_the_next_fetch_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr("kafkafmt.gateway.fetching._PASSING_S", 0)
    data = [marker(number, 1, commit=True) for number in range(3)]
    put_segment(tmp_path / "t-0", 0, [*data, batch(3)])

    async def scenario(ask: Ask, _: Gateway) -> None:
        at_markers = Wanted("t", 0, 0, len(data[0]))
        found = [await ask(at_markers, version=version, max_wait_ms=0) for _ in range(4)]
        assert [read(one["t", 0]) for one in found] == [[], [], [], [3]]

    run(tmp_path, scenario)


def test_note_when_ten_seconds_are_over_then_is_forgotten() -> None:
    now = 0.0
    notes = FetchNotes(clock=lambda: now)
    notes.add([FetchNote("t", 0, 5, 0, 35), FetchNote("u", 0, 5, 0, 35)])
    assert notes.value("t", 0, 5, 0) == 35
    assert [notes.value("t", *place) for place in ((0, 6, 0), (0, 5, 1), (1, 5, 0))] == [None] * 3
    now = 9.0
    notes.add([FetchNote("u", 0, 6, 0, 35)])
    now = 10.0
    assert notes.value("t", 0, 5, 0) is None
    assert notes.value("u", 0, 6, 0) == 35
    assert notes
    now = 19.0
    assert not notes
    now = 18.0
    assert [notes.forget("u", 0) for _ in range(2)] == [True, False]
    assert notes.value("u", 0, 6, 0) is None
