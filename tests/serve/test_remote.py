"""A log directory on S3, a server on loopback, is served read only, to clients of any age."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pytest

from endpoints.endpoint_here import SECONDS, Client, Here, serving
from endpoints.fetched import NEW, OLD, partitions, read
from endpoints.requests import (
    READ_COMMITTED,
    Wanted,
    fetch,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
)
from file_systems import BUCKET, SlowHandler, far
from kafkafmt.serve.memory_plan import within_memory
from kafkafmt.serve.options import ServeOptions
from kafkafmt.storage import storage_path
from log.samples import batches, put_segment

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

fs = pytest.importorskip("pyarrow.fs")


@pytest.mark.parametrize("version", [OLD, NEW])
def test_fetch_when_the_log_is_on_s3_then_has_its_records(
    s3: FileSystem, s3_options: Mapping[str, str], tmp_path: Path, version: int
) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 10, 5))
    put_segment(tmp_path / "t-0", 10, batches(10, 20, 5))
    fs.copy_files(str(tmp_path), f"{BUCKET}/served", destination_filesystem=s3)
    key, secret = (quote(s3_options[name], safe="") for name in ("access_key", "secret_key"))
    query = urlencode({one: s3_options[one] for one in ("endpoint_override", "scheme", "region")})
    directory: Any = storage_path(f"s3://{key}:{secret}@{BUCKET}/served?{query}")

    async def ask(here: Here, offset: int) -> list[int]:
        with await here.client() as client:
            answer = partitions(await client.ask(fetch(Wanted("t", offset=offset)), version))
            assert answer["t", 0].high_watermark == 20
            return read(answer["t", 0], offset)

    async def main() -> None:
        async with serving(directory) as here:
            for offset in (0, 12):  # a converted record that the promised size cuts off is fetched again
                found = await ask(here, offset)
                assert len(found) >= 5
                assert found == list(range(offset, offset + len(found)))

    asyncio.run(main())


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowHandler:
    """A store that is asked for each listing and for each read again."""
    monkeypatch.setattr("kafkafmt.storage.remote.LISTED_FOR_NS", 1)
    for topic in ("slow", "quick"):
        put_segment(tmp_path / f"{topic}-0", 0, batches(0, 10, 5))
        put_segment(tmp_path / f"{topic}-0", 10, batches(10, 20, 5))
    return SlowHandler()


def without_memory(store: SlowHandler, folder: Path) -> Any:
    directory = far(store, folder)
    directory.storage.read_ahead.max_bytes = 0
    return directory


async def fetched(client: Client, topic: str, version: int) -> list[int]:
    answer = partitions(await client.ask(fetch(Wanted(topic)), version))[topic, 0]
    assert answer.error_code == 0
    return read(answer)


async def while_slow(store: SlowHandler, slow: Any, quick: Any) -> int:
    """Await `quick()` whenever a request of `slow` waits, and release that; the number of these requests."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[threading.Event] = asyncio.Queue()
    store.loop = threading.get_ident()
    store.waits = lambda released: loop.call_soon_threadsafe(waiting.put_nowait, released)
    task, count = asyncio.create_task(slow), 0
    while True:
        waits = asyncio.create_task(waiting.get())
        await asyncio.wait([task, waits], timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not waits.done():
            waits.cancel()
            await asyncio.wait_for(task, SECONDS)
            return count
        assert not task.done()
        await quick()
        assert not task.done()
        waits.result().set()
        count += 1


@pytest.mark.parametrize("version", [OLD, NEW])
def test_fetch_when_the_store_is_slow_then_another_client_gets_its_answer_meanwhile(
    store: SlowHandler, tmp_path: Path, version: int
) -> None:
    async def main() -> None:
        async with serving(without_memory(store, tmp_path)) as here:
            with await here.client() as one, await here.client() as other:

                async def slow() -> None:
                    found = await fetched(one, "slow", version)
                    assert len(found) >= 5
                    assert found == list(range(len(found)))

                async def quick() -> None:
                    assert await fetched(other, "quick", NEW) == list(range(10))

                await quick()
                store.is_slow = lambda path: "slow-0" in path
                assert await while_slow(store, slow(), quick) > 4
                assert store.in_loop == []

    asyncio.run(main())


def test_metadata_when_the_store_is_slow_then_known_topics_are_fetched_meanwhile(
    store: SlowHandler, tmp_path: Path
) -> None:
    async def main() -> None:
        async with serving(far(store, tmp_path)) as here:
            with await here.client() as one, await here.client() as other:

                async def slow() -> None:
                    answer = await one.ask(metadata(), 8)
                    assert [topic.name for topic in answer.topics] == ["new", "quick", "slow"]

                async def quick() -> None:
                    assert await fetched(other, "quick", NEW) == list(range(10))

                put_segment(tmp_path / "new-0", 0, batches(0, 10, 5))
                store.is_slow = lambda path: path == str(tmp_path)
                assert await while_slow(store, slow(), quick) == 1
                assert store.in_loop == []

    asyncio.run(main())


def test_endpoint_when_the_log_is_remote_then_makes_no_request_in_the_event_loop(
    store: SlowHandler, tmp_path: Path
) -> None:
    (tmp_path / "slow-0" / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    asked = [
        (metadata(), 8),
        (metadata(["slow", "none"]), 8),
        (list_offsets(("slow", 0, -1), most=5), 0),
        (list_offsets(("slow", 0, -1), ("quick", 0, -2), isolation=READ_COMMITTED), 4),
        (list_offsets(("slow", 0, 5), leader_epoch=3), 5),
        (offset_for_leader_epoch(("slow", 0, 3), current_leader_epoch=3), 3),
        (fetch(Wanted("slow", leader_epoch=3), Wanted("quick"), isolation=READ_COMMITTED), NEW),
        (fetch(Wanted("slow"), max_wait_ms=100, min_bytes=2**30), OLD),
        (fetch(Wanted("slow", offset=20), max_wait_ms=100), NEW),
    ]

    async def main() -> None:
        async with serving(without_memory(store, tmp_path)) as here:
            store.loop = threading.get_ident()
            with await here.client() as client:
                for request, version in asked:
                    answer = await client.ask(request, version)
                    assert "error_code=0" in str(answer)
                    assert store.in_loop == [], (request, version)

    asyncio.run(main())


def test_memory_when_the_directory_is_remote_then_read_ahead_has_a_part(tmp_path: Path) -> None:
    directory, total = far(SlowHandler(), tmp_path), 256 * 1024 * 1024
    there, here = (within_memory(total, ServeOptions(one)) for one in (directory, tmp_path))
    read_ahead = directory.storage.read_ahead.max_bytes
    assert 16 * 1024 * 1024 <= read_ahead <= 32 * 1024 * 1024
    assert there.max_open_segments is not None
    assert here.max_open_segments is not None
    assert there.max_open_segments < here.max_open_segments
    assert there.max_decompressed_bytes < here.max_decompressed_bytes
