"""A request as handlers get it: what the wire said, decoded by kafka-python, and who asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

# A message of kafka-python's `kafka.protocol`: it encodes itself at its version.
Message: TypeAlias = Any


@dataclass(frozen=True)
class Request:
    """One request. `body` is kafka-python's message; client_host is the address that it came from.

    size: of its frame, in bytes, where it came in one.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Message
    client_host: str
    size: int = 0


# Answers a request with kafka-python's response message of the request's version.
Handler: TypeAlias = Callable[[Request], Awaitable[Message]]
