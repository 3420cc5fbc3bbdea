"""What the connections of a server share, and what of it each kind of server brings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kafkafmt.memory import MemoryBudget
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.down_conversion_memory import DownConversionMemory, Lease
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.options import ServerOptions
from kafkafmt.server.request import Handler, Request
from kafkafmt.server.request_memory import REQUEST_COPIES, RequestMemory
from kafkafmt.server.stream import Stream

if TYPE_CHECKING:
    from kafkafmt.convert.fetch_response import FetchResponse


class FetchHandler(Protocol):
    """Answers Fetch, whose records are not encoded, but sent as stored, or converted while they are sent."""

    async def answer(self, request: Request, lease: Lease) -> tuple[FetchResponse, list[int]]:
        """Return the response and its error codes. lease: the connection's, for what is converted beforehand."""


class Session(Protocol):
    """What a server keeps for one client, if it passes requests on to other servers."""

    @property
    def is_busy(self) -> bool:
        """Whether responses are on their way."""

    @property
    def idle_seconds(self) -> float:
        """The time since the last response on its way was written; 0 while there are some."""

    @property
    def fetching(self) -> FetchHandler:
        """What answers Fetch requests that do not pass."""

    @property
    def undecoded(self) -> frozenset[int]:
        """The API keys whose handlers decode the frames of requests themselves."""

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers of the requests that do not pass, by API key; not those of Fetch and SASL."""

    async def passes(self, api_key: int, version: int) -> bool:
        """Return whether a request is passed on unchanged. Raises RequestError."""

    def keeps_order(self, api_key: int) -> bool:
        """Return whether the handler of a request writes the response in its turn, after those on their way."""

    async def pass_on(self, frame: memoryview) -> None:
        """Pass a request on. Its response is sent to the client when it comes. Raises RequestError."""

    async def wait_sent(self) -> None:
        """Wait until nothing of the requests that were passed on is in memory. Raises RequestError."""

    async def wait_idle(self) -> None:
        """Wait until the responses of all requests that were passed on are sent."""

    def close(self) -> None:
        """Send no more."""


@dataclass(frozen=True)
class Service:
    """What the connections of a server share.

    handlers: by API key, except for Fetch and SASL.
    open_session: opens the session of a client, whose requests may pass; called with a function that ends the client's
        connection for a reason. None: the server answers all requests itself.
    accept: called with the session of a client, its user, and the password if it is known, when SASL has authenticated
        the client. Raises AuthenticationError.
    """

    options: ServerOptions
    handlers: Mapping[int, Handler]
    fetching: FetchHandler | None
    work: BatchWork
    memory: DownConversionMemory
    metrics: Metrics
    request_memory: RequestMemory
    open_session: Callable[[Stream, Callable[[Exception], None]], Session] | None = None
    accept: Callable[[Any, str, str | None], Awaitable[None]] | None = None

    @classmethod
    def within(
        cls,
        options: ServerOptions,
        handlers: Mapping[int, Handler],
        fetching: FetchHandler | None,
        work: BatchWork,
        metrics: Metrics,
    ) -> Service:
        """Return a service whose requests and conversions are within the memory limits of the options."""
        chunks, requests = options.max_downconversion_bytes, options.max_produce_memory_bytes
        return cls(
            options,
            handlers,
            fetching,
            work,
            DownConversionMemory(MemoryBudget(chunks, "serve.chunks"), options.chunk_bytes, metrics),
            metrics,
            RequestMemory(
                MemoryBudget(requests, "serve.requests"),
                metrics,
                max_bytes=max(requests, REQUEST_COPIES * options.largest_request_bytes),
                seconds=options.request_timeout,
            ),
        )
