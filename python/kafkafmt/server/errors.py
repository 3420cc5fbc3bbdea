"""Errors of requests that are not answered. Their connection is closed, as by Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafmt.server.metrics import Refusal


class RequestError(Exception):
    """A request that cannot be answered."""


class MalformedRequestError(RequestError):
    """The bytes of a request do not match its API and version."""


class UnsupportedRequestError(RequestError):
    """A request of an API or a version that is not served."""


class UnansweredProduceError(RequestError):
    """Records of a producer with `acks` 0 were refused. It waits for no response, so its connection is closed."""


class RefusedError(Exception):
    """The connection is closed because of what the client did."""

    def __init__(self, message: str, reason: Refusal = "request") -> None:
        super().__init__(message)
        self.reason: Refusal = reason
