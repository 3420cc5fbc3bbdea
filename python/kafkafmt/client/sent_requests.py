"""The requests that a connection has taken, and that are not done."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

# Called with the response without its size field, or with the error that ended the connection or the wait for it.
OnResponse = Callable[["memoryview | None", "Exception | None"], None]
# Called once the system has the bytes of a request, or with the error that ended the connection.
OnSent = Callable[["Exception | None"], None]


def new_memory(size: int) -> memoryview:
    """Return writable memory of a size in bytes."""
    return memoryview(bytearray(size))


class ResponseSink(Protocol):
    """Takes a response while it arrives. Each method may pause the connection."""

    @property
    def memory(self) -> memoryview | None:
        """Memory of the sink for the next bytes; None: bytes come in memory that is valid during `take` only."""

    def begin(self, size: int) -> None:
        """Take the size of the response, which begins with its correlation id."""

    def take(self, data: memoryview) -> None:
        """Take the next bytes. They are valid during the call."""

    def end(self, error: Exception | None) -> None:
        """Take the end: all bytes came, or the error that ended the connection."""


class AnsweredRequest(NamedTuple):
    """A request that waits for its response.

    memory: returns writable memory for a response of that size.
    sink: takes the response instead of `on_response`; `on_response` then gets errors only.
    """

    correlation_id: int
    on_response: OnResponse
    deadline: float
    memory: Callable[[int], memoryview]
    sink: ResponseSink | None = None


class UnansweredRequest(NamedTuple):
    """A request without a response. end: the bytes that the connection has sent once it is sent."""

    end: int
    on_sent: OnSent
    deadline: float
