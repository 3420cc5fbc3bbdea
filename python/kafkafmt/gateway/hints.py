"""Leader hints in responses (KIP-951). They name the leader of a partition, and the addresses of leaders.

A hint's node ids stay. Clients know from metadata at which address of the gateway they reach each node. So the
addresses are hidden: their field gets a tag that clients do not know, and skip. The response keeps its size.

The error codes of partitions are read as the response passes: a broker reports there that it leads no more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kafka.errors import KafkaProtocolError

from _kafkafmt.client.fetch_walk import FetchResponseWalk, ShareResponseWalk
from _kafkafmt.client.produce import decode_produce_response
from kafkafmt._util.sizes import MIB
from kafkafmt.gateway.passing import PassedResponse, PassedResponses
from kafkafmt.gateway.walking import ResponseWalker
from kafkafmt.server.heads import read_varint

if TYPE_CHECKING:
    from kafkafmt.client.broker_connection import BrokerConnection

# Called with tuples of topic, partition and error code: a topic is its name in UTF-8, or the 16 bytes of its id.
OnErrors = Callable[[Iterable[tuple[bytes, int, int]]], None]

# Of the addresses of leaders, in both responses.
_ENDPOINTS_TAG = 0
# Tags of one byte that Kafka does not use.
_UNKNOWN_TAG, _ANOTHER_UNKNOWN_TAG = 127, 126
_NO_TAGS = b"\0"
_EMPTY_ARRAY = b"\1"
_CONTINUES = 0x80
# The most bytes of a response that are held until it is whole: names, offsets, error codes and addresses.
_MOST_HELD_BYTES = 64 * MIB


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


def append_bounded(held: bytearray, data: memoryview) -> None:
    """Add bytes of a response to those that are held. Raises KafkaProtocolError if they are too many."""
    if len(held) + len(data) > _MOST_HELD_BYTES:
        raise KafkaProtocolError(f"expected {_MOST_HELD_BYTES} bytes at most without records, found more")
    held += data


def unknown_tags(size: int) -> bytes:
    """Return tagged fields that take `size` bytes, 1 or at least 3, and that clients skip."""
    if size == len(_NO_TAGS):
        return _NO_TAGS
    field = _unknown_field(_UNKNOWN_TAG, size - 1)
    if field is not None:
        return b"\1" + field
    # A size of just more than a varint of some bytes can hold: an empty field comes first.
    first = bytes((_ANOTHER_UNKNOWN_TAG, 0))
    second = _unknown_field(_UNKNOWN_TAG, size - 1 - len(first))
    assert second is not None
    return b"\2" + first + second


def _unknown_field(tag: int, size: int) -> bytes | None:
    """Return a field of `size` bytes with its tag and length; None if there is none of this size."""
    for digits in range(1, 6):
        length = size - 1 - digits
        encoded = _varint(max(length, 0))
        if length >= 0 and len(encoded) == digits:
            return bytes((tag,)) + encoded + bytes(length)
    return None


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= _CONTINUES:
        encoded.append(value % _CONTINUES | _CONTINUES)
        value //= _CONTINUES
    encoded.append(value)
    return bytes(encoded)


class _HintedAtEnd(PassedResponse, ABC):
    """A response whose addresses are after its topics. The topics are written as they come, and the rest at the end.

    walk: over the topics. on_errors: called with the errors of partitions.
    """

    def __init__(
        self,
        responses: PassedResponses,
        connection: BrokerConnection,
        walk: FetchResponseWalk | ShareResponseWalk,
        on_errors: OnErrors,
    ) -> None:
        super().__init__(responses, connection)
        self._walk = walk
        self._walker = ResponseWalker(walk)
        self._on_errors = on_errors
        self._end: bytearray | None = None  # what follows the topics
        self._left = 0

    def begin(self, size: int) -> None:
        self._left = size
        super().begin(size)

    def take(self, data: memoryview) -> None:
        self._left -= len(data)
        if self._end is not None:
            append_bounded(self._end, data)
        else:
            end = self._walker.count(data)
            if end:
                super().take(data[:end])
            if self._walker.is_at_end:
                self._end = bytearray(data[end:])
        if not self._left and self._end:
            super().take(memoryview(self._without_addresses(self._end)))

    def end(self, error: Exception | None) -> None:
        if error is None and self._walk.errors:
            self._on_errors(self._walk.errors)
        super().end(error)

    @abstractmethod
    def _without_addresses(self, end: bytearray) -> bytes | bytearray:
        """Return the end of the response without addresses, of the same size."""


class HintedFetch(_HintedAtEnd):
    """A Fetch response. The addresses at its end are a tagged field.

    on_errors: called with the errors of partitions. on_session: called with the session that the broker has opened.
    """

    def __init__(
        self,
        responses: PassedResponses,
        connection: BrokerConnection,
        version: int,
        on_errors: OnErrors,
        on_session: Callable[[int], None] | None = None,
    ) -> None:
        self._fetched = FetchResponseWalk(version)
        super().__init__(responses, connection, self._fetched, on_errors)
        self._on_session = on_session

    def end(self, error: Exception | None) -> None:
        if error is None and self._on_session is not None and self._fetched.session_id:
            self._on_session(self._fetched.session_id)
        super().end(error)

    def _without_addresses(self, end: bytearray) -> bytearray:
        return without_addresses(end)


class HintedProduce(PassedResponse):
    """A Produce response, which is small: it is held until it is whole. on_errors: as of `HintedFetch`."""

    def __init__(
        self,
        responses: PassedResponses,
        connection: BrokerConnection,
        version: int,
        on_errors: OnErrors,
    ) -> None:
        super().__init__(responses, connection)
        self._version = version
        self._on_errors = on_errors
        self._held = bytearray()
        self._left = 0

    def begin(self, size: int) -> None:
        self._left = size
        super().begin(size)

    def take(self, data: memoryview) -> None:
        append_bounded(self._held, data)
        self._left -= len(data)
        if self._left:
            return
        decoded = decode_produce_response(self._held, self._version)
        if decoded.endpoints:
            start = decoded.tags_position
            self._held[start:] = without_addresses(self._held[start:])
        rows = decoded.partitions
        failed = rows[rows["error_code"] != 0]
        if len(failed):
            self._on_errors(
                (decoded.topics[row["topic"]], int(row["partition"]), int(row["error_code"]))
                for row in failed
            )
        super().take(memoryview(self._held))


class HintedShare(_HintedAtEnd):
    """A response to ShareFetch or ShareAcknowledge (KIP-932). The addresses at its end are an array."""

    def _without_addresses(self, end: bytearray) -> bytes | bytearray:
        if end.startswith(_EMPTY_ARRAY):
            return end
        return _EMPTY_ARRAY + unknown_tags(len(end) - len(_EMPTY_ARRAY))
