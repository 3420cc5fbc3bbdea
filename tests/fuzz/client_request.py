"""Target: what a client of ours asks of a broker: Produce and Fetch requests, encoded natively.

Input: a byte that chooses Produce or Fetch and its version, then the numbers and texts of a request, each cut from what
is left of the input. Whatever they are: the kernel's bytes are those of kafka-python's encoder.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kernels.wire_messages import (
    FETCH_SESSIONS_VERSION,
    FETCH_VERSIONS,
    PRODUCE_VERSIONS,
    encoded,
    fetch_request,
    fetch_request_by_kernel,
    produce_request,
    produce_request_by_kernel,
)

OPTIONS_LENGTH = 1
CASES = [("produce", version) for version in PRODUCE_VERSIONS] + [
    ("fetch", version) for version in FETCH_VERSIONS
]
MOST_ELEMENTS = 5  # of an array


class Input:
    """Cuts values from bytes. After the end all are zero or empty."""

    def __init__(self, data: bytes) -> None:
        self._data, self._pos = data, 0

    def take(self, size: int) -> bytes:
        found = self._data[self._pos : self._pos + size]
        self._pos += size
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size).ljust(size, b"\0"), "big", signed=True)

    def numbers(self, *sizes: int) -> tuple[int, ...]:
        return tuple(self.number(size) for size in sizes)

    def count(self) -> int:
        return (self.number(1) & 0x7F) % MOST_ELEMENTS

    def octets(self) -> bytes:
        return self.take(self.number(2) & 0x3FF)

    def text(self) -> str:
        return self.octets().decode("latin-1")

    def nullable_text(self) -> str | None:
        return None if self.number(1) & 1 else self.text()

    def topics(self, partition: Any) -> list[tuple[str, UUID, list[Any]]]:
        """Each has a partition or more."""
        return [
            (
                self.text(),
                UUID(bytes=self.take(16).ljust(16, b"\0")),
                [partition() for _ in range(1 + self.count())],
            )
            for _ in range(self.count())
        ]


def check(data: bytes) -> None:
    kind, version = CASES[data[0] % len(CASES) if data else 0]
    taken = Input(data[OPTIONS_LENGTH:])
    correlation_id, client_id = taken.number(4) & 0x7FFFFFFF, taken.nullable_text()
    header = correlation_id, _octets(client_id)
    if kind == "produce":
        transactional_id, (acks, timeout_ms) = taken.nullable_text(), taken.numbers(2, 4)
        topics = taken.topics(lambda: (taken.number(4), taken.octets()))
        settings = (_octets(transactional_id), acks, timeout_ms)
        found = produce_request_by_kernel(version, header, settings, topics)
        theirs: Any = produce_request(transactional_id, acks, timeout_ms, topics)
    else:
        names = ("max_wait_ms", "min_bytes", "max_bytes", "isolation_level")
        options = {**dict(zip(names, taken.numbers(4, 4, 4, 1), strict=True)), "rack_id": taken.text()}
        session = taken.numbers(4, 4)
        topics = taken.topics(lambda: taken.numbers(4, 8, 4, 4, 4))
        forgotten = taken.topics(lambda: taken.number(4))
        found = fetch_request_by_kernel(version, header, options, session[:2], topics, forgotten)  # type: ignore[arg-type]
        theirs = fetch_request(
            options,
            session,  # type: ignore[arg-type]
            topics,
            forgotten if version >= FETCH_SESSIONS_VERSION else [],
        )
    assert found == encoded(theirs, version, correlation_id, client_id)


def _octets(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
