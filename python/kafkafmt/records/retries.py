"""Requests to a remote store, repeated if they may succeed later.

A request that times out, loses its connection, or gets an error 5xx or one for too many requests is repeated after a
random wait, whose bound doubles each time. Other errors are final: a missing object, missing permission, a wrong
bucket. Attempts and time are bounded.
"""

from __future__ import annotations

import errno
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kafkafmt._util.user_errors import UserError

_Answer = TypeVar("_Answer")

_FIRST_WAIT_SECONDS = 0.25
_MOST_WAIT_SECONDS = 10.0
_AWS = re.compile(r"AWS Error (?P<code>[A-Z_]+)(?: \(HTTP status (?P<status>\d{3})\))? during \w+ operation")
_AWS_TRANSIENT = (
    "INTERNAL_FAILURE",
    "NETWORK_CONNECTION",
    "REQUEST_TIMEOUT",
    "SERVICE_UNAVAILABLE",
    "SLOW_DOWN",
    "THROTTLING",
)
# The codes of curl for a malformed URL and for certificates that are not accepted.
_CURL_FINAL = re.compile(r"curlCode: (?:1|3|51|58|60|77),")
_GOOGLE = re.compile(r"google::cloud::Status\((UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|INTERNAL)\b")
_AZURE = re.compile(r"Azure Error: \[(ServerBusy|InternalError|OperationTimedOut)\]")


class StoreError(UserError, OSError):
    """A store did not carry out a request, although it was repeated. The message is one line and names the URI."""

    def __init__(self, uri: str, message: str) -> None:
        OSError.__init__(self, errno.EIO, message, uri)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.filename, self.strerror)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def is_transient(error: Exception) -> bool:
    """Whether the request that failed may succeed if it is repeated.

    >>> is_transient(OSError("AWS Error SLOW_DOWN during GetObject operation: Please reduce your request rate."))
    True
    >>> is_transient(OSError("AWS Error ACCESS_DENIED during GetObject operation: Access Denied"))
    False
    """
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    text = str(error)
    found = _AWS.search(text)
    if found is None:
        return bool(_GOOGLE.search(text) or _AZURE.search(text))
    if found["status"] is not None:
        return found["status"] in ("408", "429") or found["status"].startswith("5")
    return found["code"] in _AWS_TRANSIENT and not _CURL_FINAL.search(text)


@dataclass(frozen=True)
class Retries:
    """How often a request is repeated, and for how long: no attempt begins after `limit_seconds`."""

    max_attempts: int = 6
    limit_seconds: float = 120.0

    def run(self, request: Callable[[], _Answer], what: str, uri: str) -> _Answer:
        """Return what `request` returns, which is called until it raises no transient error.

        what: the failure of the operation, for errors. Raises StoreError after the last attempt, and the error of the
        request if it is not transient.
        """
        began = time.monotonic()
        for attempt in range(1, self.max_attempts + 1):
            try:
                return request()
            except Exception as error:
                # A StoreError is the result of such attempts already.
                if isinstance(error, StoreError) or not is_transient(error):
                    raise
                wait = random.uniform(0, min(_FIRST_WAIT_SECONDS * 2**attempt, _MOST_WAIT_SECONDS))
                took = time.monotonic() - began
                if attempt == self.max_attempts or took + wait > self.limit_seconds:
                    first = str(error).partition("\n")[0]
                    attempts = "1 attempt" if attempt == 1 else f"{attempt} attempts"
                    raise StoreError(
                        uri, f"{what}: gave up after {attempts} in {took:.1f} s: {first}"
                    ) from error
            time.sleep(wait)
        raise AssertionError("unreachable")


# For file systems that are no remote stores, and for those that repeat requests themselves.
NO_RETRIES = Retries(max_attempts=1)
