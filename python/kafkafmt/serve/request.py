"""A request as handlers get it: what the wire said, decoded by kafka-python, and who asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from kafkafmt.serve.request_memory import RequestLease

# A message of kafka-python's `kafka.protocol`: it encodes itself at its version.
Message: TypeAlias = Any


@dataclass
class Request:
    """One request. `body` is kafka-python's message; client_host is the address that it came from.

    size: of its frame, in bytes, where it came in one. memory: what it and its answer take; None: it is not counted.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Message
    client_host: str
    size: int = 0
    memory: RequestLease | None = None

    def forget_body(self) -> None:
        """Hold nothing of the body, nor memory for it, while the answer waits for other clients."""
        self.body = None
        if self.memory is not None:
            self.memory.keep(0)


# Answers a request with kafka-python's response message of the request's version.
Handler: TypeAlias = Callable[[Request], Awaitable[Message]]
