"""Whether a gateway lives and whether clients should be sent to it: pages for load balancers and Kubernetes.

A gateway is ready if a broker of the cluster answers. With an identity that all clients share, the broker must also
answer Metadata, which it does only after authentication. Each question takes a connection of its own. Its answer is
used for a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as NotInTimeError
from typing import Any

import structlog
from kafka.errors import KafkaError

from kafkafmt.client.io_thread import IoLoop
from kafkafmt.gateway.cluster import ClusterView
from kafkafmt.gateway.cluster_config import cluster_config
from kafkafmt.gateway.errors import UpstreamError
from kafkafmt.gateway.identities import ClientIdentity
from kafkafmt.gateway.options import GatewayOptions
from kafkafmt.gateway.upstreams import Upstreams
from kafkafmt.server.pages import Page, Pages, text_page

_log = structlog.get_logger()

LIVE_PATH, READY_PATH = "/health/live", "/health/ready"
_UNAVAILABLE = "503 Service Unavailable"
# Seconds that an answer is used, that a broker has for its own, and that the event loop has for either.
_USED_SECONDS, _BROKER_SECONDS, _LOOP_SECONDS = 1.0, 5.0, 6.0
# Seconds until a cluster that has not answered is asked again for the log.
_AGAIN_SECONDS = 5.0


class Health:
    """The health of a gateway. Its pages are for threads, which ask the event loop."""

    def __init__(self, options: GatewayOptions) -> None:
        self._loop = asyncio.get_running_loop()
        self._io = IoLoop(self._loop)
        self._asking = asyncio.Lock()
        self._used_until = 0.0
        self._problem: str | None = None
        self._is_draining = False
        self.apply(options)

    def apply(self, options: GatewayOptions) -> None:
        """Use these options from now on. Raises TlsError and OSError for certificates."""
        config = cluster_config(options.client_config)
        self._identity = ClientIdentity(config, options.identities, passes=options.passes_credentials)
        self._servers = options.servers

    def drain(self) -> None:
        """Report from now on that the gateway is not ready."""
        self._is_draining = True

    async def log_cluster(self) -> None:
        """Log that the cluster answers. If it does not at first, log the reason once, and ask until it does.

        Until then clients get errors after which they try again.
        """
        problem = await self._ask_cluster()
        if problem is not None:
            _log.warning("the cluster does not answer yet", error=problem)
        while problem is not None:
            await asyncio.sleep(_AGAIN_SECONDS)
            problem = await self._ask_cluster()
        _log.info("the cluster answers")

    def pages(self) -> Pages:
        """Return the pages by their paths."""
        return {LIVE_PATH: self._live, READY_PATH: self._ready}

    def _live(self) -> Page:
        async def live() -> str | None:
            return None

        return self._page("live", live)

    def _ready(self) -> Page:
        return self._page("ready", self._why_not_ready)

    def _page(self, state: str, ask: Callable[[], Coroutine[Any, Any, str | None]]) -> Page:
        """Return the page of a state. ask: returns the problem if there is one. Called in a thread."""
        try:
            problem = asyncio.run_coroutine_threadsafe(ask(), self._loop).result(_LOOP_SECONDS)
        except (NotInTimeError, RuntimeError):
            problem = f"the event loop does not answer within {_LOOP_SECONDS:g} s"
        return text_page(state) if problem is None else text_page(problem, _UNAVAILABLE)

    async def _why_not_ready(self) -> str | None:
        if self._is_draining:
            return "draining"
        async with self._asking:
            if self._loop.time() >= self._used_until:
                self._problem = await self._ask_cluster()
                self._used_until = self._loop.time() + _USED_SECONDS
            return self._problem

    async def _ask_cluster(self) -> str | None:
        upstreams = Upstreams(self._io, ClusterView(), self._servers, self._identity.first)
        asked = upstreams.refresh([]) if self._identity.is_shared else upstreams.any()
        try:
            await asyncio.wait_for(asked, _BROKER_SECONDS)
        except asyncio.TimeoutError:
            return f"no broker answers within {_BROKER_SECONDS:g} s"
        except (UpstreamError, KafkaError) as error:
            return str(error)
        finally:
            upstreams.close()
        return None
