"""The requests that a connection has taken, and that are not done."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# Called with the response without its size field, or with the error that ended the connection or the wait for it.
OnResponse = Callable[["memoryview | None", "Exception | None"], None]
# Called once the system has the bytes of a request, or with the error that ended the connection.
OnSent = Callable[["Exception | None"], None]


class AnsweredRequest(NamedTuple):
    """A request that waits for its response. memory: returns writable memory for a response of that size."""

    correlation_id: int
    on_response: OnResponse
    deadline: float
    memory: Callable[[int], memoryview]


class UnansweredRequest(NamedTuple):
    """A request without a response. end: the bytes that the connection has sent once it is sent."""

    end: int
    on_sent: OnSent
    deadline: float
