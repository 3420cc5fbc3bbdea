"""An endpoint on a loop of its own, for tests that talk to it over sockets."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.endpoint import Endpoint
from kafkafmt.serve.groups import GroupCoordinator, OffsetStore
from kafkafmt.serve.options import ServeOptions
from kafkafmt.server.listener import listen
from kafkafmt.server.node import Node

if TYPE_CHECKING:
    from typing_extensions import Self

HOST = "127.0.0.1"
SECONDS = 60


class Served:
    """A directory that is served at `address`; `options` are those of ServeOptions. A context manager."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self._listener = listen(HOST, 0)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._options = ServeOptions(directory, **options)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="endpoint")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._drain)
        self._thread.join(SECONDS)
        self._listener.close()
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        options = self._options
        store = OffsetStore(options.state, options.groups)
        catalog = Catalog(options.directory)
        node = Node.advertised(options, self._listener, catalog.cluster_id)
        self._coordinator = GroupCoordinator(store, catalog, node, options.groups)
        handlers = self._coordinator.handlers()
        self._endpoint = Endpoint(options, self._listener, handlers=handlers)
        self._coordinator.begin_sessions()
        self._loop.call_soon(self._started.set)
        await self._endpoint.serve()
        await store.close()

    def _drain(self) -> None:
        self._coordinator.close()
        self._endpoint.drain()
