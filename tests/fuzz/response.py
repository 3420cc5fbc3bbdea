"""Target: what a broker answers a producer or a consumer, decoded natively.

Input: a byte that chooses Produce or Fetch and its version, then the response, without the size of its frame. Whatever
the bytes are:

- decoding gives rows that lie within the response, or raises the error that has a position within it;
- where kafka-python decodes the response too, both read the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kernels.wire_messages import (
    FETCH_VERSIONS,
    PRODUCE_VERSIONS,
    failure_of,
    fetched_by_kafka_python,
    fetched_by_kernel,
    produced_by_kafka_python,
    produced_by_kernel,
)

OPTIONS_LENGTH = 1
Reader = Callable[[bytes, int], Any]
CASES: list[tuple[Reader, Reader, int]] = [
    *((produced_by_kernel, produced_by_kafka_python, version) for version in PRODUCE_VERSIONS),
    *((fetched_by_kernel, fetched_by_kafka_python, version) for version in FETCH_VERSIONS),
]


def check(data: bytes) -> None:
    ours, theirs, version = CASES[data[0] % len(CASES) if data else 0]
    response = data[OPTIONS_LENGTH:]
    failure = failure_of(ours, response, version)
    assert failure is None or 0 <= failure.position <= len(response)
    if failure is not None:
        return
    try:
        found = ours(response, version)
    except UnicodeDecodeError:
        return
    try:
        expected = theirs(response, version)
    except (ValueError, struct.error, IndexError, MemoryError, AssertionError):
        return  # kafka-python asserts that the structs of tagged fields have no tags
    assert found == expected
