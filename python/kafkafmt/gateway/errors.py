"""Why a gateway cannot answer from its cluster. Without a response for the error, it closes the client's connection."""

from __future__ import annotations

from kafkafmt.server.errors import RequestError


class UpstreamError(RequestError):
    """The cluster cannot be reached, or a broker has closed the connection, or its response is malformed."""


class UpstreamTimeoutError(UpstreamError):
    """A broker has not answered in time."""


class UpstreamAuthenticationError(UpstreamError):
    """A broker has refused the credentials of a connection."""


class UnsupportedUpstreamError(RequestError):
    """The broker does not take any version of an API that a request could be translated to."""
