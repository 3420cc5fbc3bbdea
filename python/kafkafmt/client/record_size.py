"""The size of a record before it is appended, which `max_request_size` limits."""

from __future__ import annotations

from kafka.record.default_records import DefaultRecordBatchBuilder

from kafkafmt.client.errors import RecordTooLargeError

# An upper bound of the bytes around key, value and headers of a record in a batch of its own (61 + 21 + varints).
MAX_OVERHEAD = 128
_MAX_HEADER_OVERHEAD = 10  # two varints


def most_bytes_of_headers(headers: list[tuple[str, bytes]]) -> int:
    """Return the most bytes that headers can take. Raises TypeError unless they are a list of (str, bytes) tuples."""
    if not isinstance(headers, list):
        raise TypeError("headers must be list-type")
    size = 0
    for item in headers:
        if not (
            isinstance(item, tuple)
            and len(item) == 2
            and isinstance(item[0], str)
            and isinstance(item[1], bytes)
        ):
            raise TypeError("All headers items must be (str, bytes) tuples")
        size += 4 * len(item[0]) + len(item[1]) + _MAX_HEADER_OVERHEAD
    return size


def ensure_fits(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes]],
    max_request_size: int,
) -> None:
    """Raise RecordTooLargeError for a record above `max_request_size`."""
    size = DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, headers)
    if size > max_request_size:
        raise RecordTooLargeError(
            f"{topic}: a record of {size} bytes before compression: expected at most {max_request_size} "
            "(max_request_size)"
        )
