"""Errors of requests that are not answered. Their connection is closed, as by Kafka."""


class RequestError(Exception):
    """A request that cannot be answered."""


class MalformedRequestError(RequestError):
    """The bytes of a request do not match its API and version."""


class UnsupportedRequestError(RequestError):
    """A request of an API or a version that is not served."""
