"""S3 with timeouts, whose requests are not repeated by the library of AWS: `kafkafmt.records.retries` does that."""

from __future__ import annotations

from typing import Any

from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

_CONNECT_TIMEOUT_SECONDS = 5.0
_REQUEST_TIMEOUT_SECONDS = 10.0


class BoundedS3FileSystem(S3FileSystem):  # type: ignore[misc]
    """An `S3FileSystem` that pickles with its settings. Its own class loses the retry strategy."""

    def __init__(self, settings: dict[str, Any]) -> None:
        # A background upload keeps an error of a part until the stream is closed. Without it, closing the stream
        # publishes the parts that were stored. Delayed open: a small object costs one request.
        super().__init__(
            **settings,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=1),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundedS3FileSystem, super().__reduce__()[1]


def with_timeouts(
    filesystem: S3FileSystem,
    *,
    session_token: str,
    connect_timeout: float = _CONNECT_TIMEOUT_SECONDS,
    request_timeout: float = _REQUEST_TIMEOUT_SECONDS,
) -> S3FileSystem:
    """Return the same file system with timeouts in seconds, and with a session token.

    session_token: of temporary credentials, which URIs of `pyarrow.fs` cannot have; empty for others.
    request_timeout: the longest time without a byte.
    """
    settings = dict(filesystem.__reduce__()[1][0])
    if session_token:  # an empty one would be given without keys, which pyarrow refuses
        settings["session_token"] = session_token
    settings |= {
        "connect_timeout": connect_timeout,
        "request_timeout": request_timeout,
        "background_writes": True,
        "allow_delayed_open": True,
    }
    return BoundedS3FileSystem(settings)
