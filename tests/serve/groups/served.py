"""A coordinator on an event loop, asked as over the wire: frames in, frames out, at any version of an API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.groups import GroupCoordinator, OffsetStore
from kafkafmt.serve.options import GroupOptions
from kafkafmt.server.node import Node
from kafkafmt.server.wire import decode_request, encode_response
from log.samples import batch, put_segment
from server.messages import CORRELATION_ID, frame, response_class

NODE = Node("kafka.example", 9092, "cluster", 7)
QUICK = GroupOptions(min_session_timeout=0.05)


class Served:
    """The coordinator, its store and its topics."""

    def __init__(self, coordinator: GroupCoordinator, store: OffsetStore, catalog: Catalog) -> None:
        self.coordinator, self.store, self.catalog = coordinator, store, catalog

    async def ask(self, request: Any) -> Any:
        """The answer to kafka-python's request message, which says its version."""
        received = decode_request(frame(request), "192.0.2.1")
        response = await self.coordinator.handlers()[received.api_key](received)
        data = memoryview(encode_response(CORRELATION_ID, response))[4:]
        return response_class(received.api_key).decode(data, version=received.version, header=True)

    def asking(self, request: Any) -> asyncio.Task[Any]:
        return asyncio.ensure_future(self.ask(request))


@asynccontextmanager
async def serving(
    folder: Path, *, state: Path | None = None, options: GroupOptions = QUICK
) -> AsyncIterator[Served]:
    """A coordinator for the topics `orders` and `views` of two partitions each, in `folder`."""
    for topic in ("orders", "views"):
        for number in range(2):
            (folder / f"{topic}-{number}").mkdir(parents=True, exist_ok=True)
            put_segment(folder / f"{topic}-{number}", 0, [batch(0)])
    store = OffsetStore(state, options)
    catalog = Catalog(folder)
    coordinator = GroupCoordinator(store, catalog, NODE, options)
    coordinator.begin_sessions()
    try:
        yield Served(coordinator, store, catalog)
    finally:
        coordinator.close()
        await store.close()


def run(scenario: Callable[[Served], Awaitable[None]], folder: Path, **how: Any) -> None:
    async def scene() -> None:
        async with serving(folder, **how) as served:
            await scenario(served)

    asyncio.run(scene())
