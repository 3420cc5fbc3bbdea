"""Leader hints in responses (KIP-951). They name the leader of a partition, and the addresses of leaders.

A hint's node ids stay. Clients know from metadata at which address of the gateway they reach each node. So the field
of addresses gets a tag that clients do not know, and skip. The response keeps its size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from _kafkafmt.client.fetch_walk import FetchResponseWalk, ResponseWalkError
from _kafkafmt.client.produce import decode_produce_response
from kafkafmt.gateway.passing import PassedResponse, PassedResponses
from kafkafmt.server.heads import read_varint

if TYPE_CHECKING:
    from kafkafmt.client.broker_connection import BrokerConnection

# The first versions with hints.
FIRST_PRODUCE_VERSION, FIRST_FETCH_VERSION = 10, 16
# Of the addresses of leaders, in both responses.
_ENDPOINTS_TAG = 0
# A tag of one byte that Kafka does not use.
_UNKNOWN_TAG = 127
_FIRST_WINDOW_BYTES = 1024
_THROTTLE_BYTES = 4


def without_addresses(tags: bytearray) -> bytearray:
    """Hide the addresses in the tagged fields at the end of a response, in place. Raises MalformedRequestError."""
    count, position = read_varint(tags, 0)
    for _ in range(count):
        at = position
        tag, position = read_varint(tags, position)
        size, position = read_varint(tags, position)
        if tag == _ENDPOINTS_TAG:
            tags[at] = _UNKNOWN_TAG
            return tags
        position += size
    return tags


class HintedFetch(PassedResponse):
    """A Fetch response. All of it is written as it comes, but for the tagged fields at its end."""

    def __init__(
        self, responses: PassedResponses, connection: BrokerConnection, request_bytes: int, version: int
    ) -> None:
        super().__init__(responses, connection, request_bytes)
        self._walk = FetchResponseWalk(version)
        self._records_left = 0
        self._unwalked = b""
        self._tags: bytearray | None = None
        self._left = 0

    def begin(self, size: int) -> None:
        self._left = size
        super().begin(size)

    def take(self, data: memoryview) -> None:
        self._left -= len(data)
        if self._tags is not None:
            self._tags += data
        else:
            try:
                end = self._walk_over(data)
            except ResponseWalkError as error:
                self.end(error)
                return
            if end:
                super().take(data[:end])
            if self._walk.is_at_end and not self._records_left:
                self._tags = bytearray(data[end:])
        if not self._left and self._tags:
            super().take(memoryview(without_addresses(self._tags)))

    def _walk_over(self, data: memoryview) -> int:
        """Return how many of these bytes are before the tagged fields at the end."""
        position = min(self._records_left, len(data))
        self._records_left -= position
        window = _FIRST_WINDOW_BYTES
        while position < len(data) and not self._walk.is_at_end:
            before = len(self._unwalked)
            unwalked: bytes | memoryview = data[position:]
            if before:  # only the start of what follows can belong to the fields that were cut
                unwalked = self._unwalked + bytes(data[position : position + window])
            walked, records = self._walk.step(unwalked)
            if walked < before:
                is_all = position + window >= len(data)
                self._unwalked = bytes(unwalked[walked:]) if is_all else self._unwalked[walked:]
                if is_all:
                    return len(data)
                window *= 2
                continue
            position += walked - before
            self._unwalked, window = b"", _FIRST_WINDOW_BYTES
            taken = min(records, len(data) - position)
            position += taken
            self._records_left = records - taken
            if not records and not self._walk.is_at_end and (not before or position + window >= len(data)):
                self._unwalked = bytes(data[position:])
                return len(data)
        return position


class HintedProduce(PassedResponse):
    """A Produce response, which is small: it is held until it is whole."""

    def __init__(
        self, responses: PassedResponses, connection: BrokerConnection, request_bytes: int, version: int
    ) -> None:
        super().__init__(responses, connection, request_bytes)
        self._version = version
        self._held = bytearray()
        self._left = 0

    def begin(self, size: int) -> None:
        self._left = size
        super().begin(size)

    def take(self, data: memoryview) -> None:
        self._held += data
        self._left -= len(data)
        if self._left:
            return
        if decode_produce_response(self._held, self._version).endpoints:
            start = _start_of_tags(self._held)
            self._held[start:] = without_addresses(self._held[start:])
        super().take(memoryview(self._held))


def _start_of_tags(response: bytearray) -> int:
    """Return where the tagged fields of a Produce response begin that has only the addresses of leaders in them."""
    for start in range(len(response) - 1, _THROTTLE_BYTES, -1):
        if response[start] == 1 and response[start + 1 : start + 2] == bytes([_ENDPOINTS_TAG]):
            size, position = read_varint(response, start + 2)
            if position + size == len(response):
                return start
    return len(response)
