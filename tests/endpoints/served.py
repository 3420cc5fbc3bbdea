"""A server on a loop of its own, for tests that talk to it over sockets: an endpoint, or a gateway to one."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from endpoints.endpoint_process import EndpointProcess
from kafkafmt.gateway.cluster import Address
from kafkafmt.gateway.endpoint import Gateway
from kafkafmt.gateway.options import GatewayOptions
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.endpoint import Endpoint
from kafkafmt.serve.groups import GroupCoordinator, OffsetStore
from kafkafmt.serve.options import ServeOptions
from kafkafmt.server.listener import Server, listen
from kafkafmt.server.node import Node

if TYPE_CHECKING:
    from typing_extensions import Self

HOST = "127.0.0.1"
SECONDS = 60


class _OnLoop:
    """A server at `address`. A context manager."""

    def __init__(self) -> None:
        self._listener = listen(HOST, 0)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="endpoint", daemon=True)
        self._endpoint: Endpoint | Gateway

    @property
    def server(self) -> Server:
        return self._endpoint.server

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._drain)
        self._thread.join(SECONDS)
        self._listener.close()
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._serve()

    async def _serve(self) -> None:
        raise NotImplementedError

    def _drain(self) -> None:
        self._endpoint.drain()


class Served(_OnLoop):
    """A directory that is served; `options` are those of ServeOptions."""

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__()
        self._options = ServeOptions(directory, **options)

    async def _serve(self) -> None:
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
        super()._drain()


class Gatewayed(_OnLoop):
    """A gateway to a process that serves a directory; `options` are those of GatewayOptions.

    It asks for as much at a time as consumers do, so that they get as much as from the directory itself.
    """

    def __init__(self, directory: Path, **options: Any) -> None:
        super().__init__()
        self._upstream = EndpointProcess(directory)
        self._options = {"max_fetch_bytes": 2**30, **options}

    def __enter__(self) -> Self:
        self._upstream.start()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._upstream.stop()

    async def _serve(self) -> None:
        server = Address(self._upstream.host, self._upstream.port)
        options = GatewayOptions(servers=(server,), **self._options)
        self._endpoint = Gateway(options, self._listener)
        self._loop.call_soon(self._started.set)
        await self._endpoint.serve()
