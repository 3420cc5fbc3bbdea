"""A request as handlers receive it: decoded by kafka-python, with its client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kafkafmt.server.metrics import ClientEvents

if TYPE_CHECKING:
    from kafkafmt.server.request_memory import RequestLease

# A message of kafka-python's `kafka.protocol`, which encodes itself at its version; or a response already encoded.
Message: TypeAlias = Any


_NOT_RECORDED = ClientEvents()


class AnswerMemory(Protocol):
    """The memory of a response until it is sent."""

    @property
    def held(self) -> int:
        """Return the bytes that are held beyond the connection's own."""

    @property
    def is_wanted(self) -> bool:
        """Do others wait for what is held here?"""

    def keep(self, size: int) -> None:
        """Hold `size` bytes from now on."""


@dataclass
class Request:
    """One request. `body` is kafka-python's message; client_host is the address that it came from.

    size: of its frame in bytes, if it came in one. memory: of the request and its answer; None: it is not counted.
    answer_memory: counts the encoded answer instead of `memory`, if another process has made it.
    frame: the bytes of the request, if its handler decodes it itself; `body` is None then.
    client: records what its client does.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Message
    client_host: str
    size: int = 0
    memory: RequestLease | None = None
    answer_memory: AnswerMemory | None = None
    frame: memoryview | None = None
    client: ClientEvents = _NOT_RECORDED

    def forget_body(self) -> None:
        """Release the body and the memory for it, before the answer waits for other clients."""
        self.body = self.frame = None
        if self.memory is not None:
            self.memory.keep(0)


# Answers a request with kafka-python's response message of the request's version.
Handler: TypeAlias = Callable[[Request], Awaitable[Message]]
