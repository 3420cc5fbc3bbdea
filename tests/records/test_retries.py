"""Which errors of stores are transient. The texts are those of PyArrow's file systems."""

from __future__ import annotations

import pytest

from kafkafmt.records.retries import is_transient


@pytest.mark.parametrize(
    "error",
    [
        OSError("AWS Error SLOW_DOWN during GetObject operation: SlowDown"),
        OSError("AWS Error UNKNOWN (HTTP status 503) during HeadObject operation: No response body."),
        OSError("AWS Error UNKNOWN (HTTP status 429) during HeadObject operation: No response body."),
        OSError("AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 28, Timeout was reached"),
        OSError("google::cloud::Status(UNAVAILABLE: Permanent error)"),
        OSError("GetProperties failed. Azure Error: [ServerBusy] 503 The server is busy."),
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError("timed out"),
    ],
    ids=str,
)
def test_error_when_a_later_attempt_may_succeed_then_is_transient(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        OSError("AWS Error ACCESS_DENIED during GetObject operation: timeout-topic: Access Denied"),
        OSError("AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation: The bucket does not exist"),
        OSError("AWS Error UNKNOWN (HTTP status 301) during HeadObject operation: No response body."),
        OSError(
            "AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 60, SSL peer certificate"
        ),
        OSError("google::cloud::Status(PERMISSION_DENIED: Permanent error)"),
        OSError(
            "GetProperties failed. Azure Error: [AuthenticationFailed] 403 Server failed to authenticate."
        ),
        FileNotFoundError(2, "No such file or directory"),
        PermissionError(13, "Permission denied"),
    ],
    ids=str,
)
def test_error_when_it_would_come_again_then_is_final(error: Exception) -> None:
    assert not is_transient(error)
