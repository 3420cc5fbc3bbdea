"""Fetch from several brokers: a request is split by leader, and the parts of its response are merged while they come.

A part is not decoded. Its topics are passed on as they are, after those of the part before it. A broker waits until
its turn, so at most one read of each part is held. The size of the merged response is committed once every broker has
begun its part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from kafka import errors
from kafka.protocol.api_key import ApiKey
from kafka.protocol.schemas.fields.codecs import UnsignedVarInt32

from _kafkafmt.client.fetch import NEWEST_VERSION, FetchEncoder, FetchSession
from _kafkafmt.client.fetch_walk import FetchResponseWalk, ResponseWalkError
from _kafkafmt.client.messages import RequestHeader
from _kafkafmt.server.fetching import FetchedPartition, encode_fetch_response
from kafkafmt.gateway.errors import UpstreamError
from kafkafmt.gateway.hints import OnErrors, append_bounded, unknown_tags
from kafkafmt.gateway.passing import SIZE_BYTES
from kafkafmt.gateway.walking import ResponseWalker
from kafkafmt.server.heads import is_flexible

if TYPE_CHECKING:
    from _kafkafmt.server.fetching import FetchRequest, WantedPartition, WantedTopic
    from kafkafmt.client.broker_connection import BrokerConnection
    from kafkafmt.gateway.passing import PassedResponses

_FIRST_WITH_SESSIONS = 7
_NO_SESSION_ID = 0
_NO_SESSION = FetchSession(_NO_SESSION_ID, -1)
_UNKNOWN = -1
_NO_TAGS = b"\0"
# The committed size has room for this many bytes of tags, which must not be 2 bytes in all.
_SPARE_TAGS = 1
# Each of two parts or more has a byte of tags, too.
_LEAST_TAGS = 2 + _SPARE_TAGS
# The size of a response is an int32.
_MOST_BYTES = 2**31 - 1
# So is the count of its topics. Flexible versions write one more.
_MOST_TOPICS = 2**31 - 2
# How long a broker without records delays the records of the others.
_MAX_WAIT_MS = 100


class Wanted(NamedTuple):
    """A partition of a request, with its topic."""

    topic: WantedTopic
    partition: WantedPartition


def encode_part(
    request: FetchRequest, wanted: Sequence[Wanted], share: int, correlation_id: int, *, waits: bool
) -> bytes:
    """Encode the request for some partitions of a request, without a session.

    share: into how many parts it is split. waits: whether the broker waits for records, if it has none.
    """
    topics = list(dict.fromkeys(_name(one.topic) for one in wanted))
    numbers = {topic: number for number, topic in enumerate(topics)}
    encoder = FetchEncoder(
        min(request.max_wait_ms, _MAX_WAIT_MS) if waits else 0,
        request.min_bytes,
        max(request.max_bytes // share, 1),
        request.isolation_level,
        b"",
    )
    client_id = None if request.client_id is None else request.client_id.encode()
    header = RequestHeader(min(request.version, NEWEST_VERSION), correlation_id, client_id)
    rows = [
        (
            numbers[_name(topic)],
            one.partition,
            one.fetch_offset,
            one.current_leader_epoch,
            _UNKNOWN,
            one.partition_max_bytes,
        )
        for topic, one in wanted
    ]
    return encoder.encode(header, _NO_SESSION, topics, sorted(rows, key=lambda row: row[0]), [])


def refused_part(request: FetchRequest, wanted: Sequence[Wanted], error_code: int) -> bytes:
    """Encode a response that has an error code for each partition, without its size."""
    topics: dict[bytes, list[FetchedPartition]] = {}
    for topic, one in wanted:
        refused = FetchedPartition(one.partition, error_code, _UNKNOWN, _UNKNOWN, _UNKNOWN, None, 0)
        topics.setdefault(_name(topic), []).append(refused)
    (frame,) = encode_fetch_response(request.version, request.correlation_id, list(topics.items()))
    return frame[SIZE_BYTES:]


def _name(topic: WantedTopic) -> bytes:
    if topic.topic is not None:
        return topic.topic.encode()
    return (topic.topic_id or UUID(int=0)).bytes


class MergedFetch:
    """The response to a request that was split. on_errors: called with the errors of partitions.

    on_records: called with whether any partition has records, once the response is written.
    """

    def __init__(
        self,
        responses: PassedResponses,
        request: FetchRequest,
        on_errors: OnErrors,
        on_records: Callable[[bool], None],
    ) -> None:
        self.is_begun = False
        self._responses = responses
        self._request = request
        self._is_flexible = is_flexible(ApiKey.Fetch, request.version)
        self._on_errors, self._on_records = on_errors, on_records
        self._parts: list[FetchPart] = []
        self._waiting = -1  # parts that have not begun; unknown while parts are added
        self._current = 0
        self._left_bytes = 0  # of the committed size

    def add(self, connection: BrokerConnection | None, wanted: Sequence[Wanted]) -> FetchPart:
        """Add the part of a broker. connection: None for one that cannot be reached."""
        part = FetchPart(self, connection, wanted, self._request)
        self._parts.append(part)
        return part

    def expect_parts(self) -> None:
        """Begin the response as soon as all parts that were added have begun."""
        self._waiting = sum(part.head is None for part in self._parts)
        self.on_turn()

    def on_turn(self) -> None:
        """Begin the response, if it is the next one and all parts have begun."""
        if self._waiting or self.is_begun or not self._responses.is_next(self):
            return
        self.is_begun = True
        heads = [part.head for part in self._parts if part.head is not None]
        count = sum(max(one.topic_count, 0) for one in heads)  # -1 for null
        if count > _MOST_TOPICS:
            self.fail(UpstreamError(f"Fetch: parts of {count} topics: expected {_MOST_TOPICS} at most"))
            return
        head = self._head(heads, count)
        topics_bytes = sum(part.size for part in self._parts) - sum(one.head_size for one in heads)
        if self._is_flexible:
            topics_bytes += _SPARE_TAGS
        self._left_bytes = topics_bytes
        size = len(head) + topics_bytes
        if size > _MOST_BYTES:
            self.fail(UpstreamError(f"Fetch: parts of {size} bytes: expected {_MOST_BYTES} at most"))
            return
        self._responses.write(None, memoryview(size.to_bytes(SIZE_BYTES, "big") + head))
        self._parts[0].on_turn()

    def part_begun(self) -> None:
        """Note that one more part has begun."""
        if self._waiting > 0:
            self._waiting -= 1
            self.on_turn()

    def write(self, connection: BrokerConnection | None, topics: memoryview) -> None:
        """Write bytes of the topics of the current part."""
        if topics:
            self._left_bytes -= len(topics)
            self._responses.write(connection, topics)

    def part_ended(self) -> None:
        """Begin the next part: all of the current one has come."""
        if not self._parts[self._current].walker.is_at_end:
            self.fail(UpstreamError("Fetch: a part of the response has fewer topics than its head states"))
            return
        self._current += 1
        if self._current < len(self._parts):
            self._parts[self._current].on_turn()
            return
        if self._left_bytes < _LEAST_TAGS if self._is_flexible else self._left_bytes:
            self.fail(UpstreamError("Fetch: a part of the response has fewer topics than its head states"))
            return
        if self._is_flexible:
            self._responses.write(None, memoryview(unknown_tags(self._left_bytes)))
        found = [error for part in self._parts for error in part.walk.errors]
        if found:
            self._on_errors(found)
        self._on_records(any(part.walker.has_records for part in self._parts))
        self._responses.end()

    def fail(self, error: Exception) -> None:
        """Report that a part that has begun cannot be completed."""
        self._responses.fail(error)

    def _head(self, heads: Sequence[FetchResponseWalk], count: int) -> bytes:
        version = self._request.version
        head = self._request.correlation_id.to_bytes(4, "big", signed=True)
        if self._is_flexible:
            head += _NO_TAGS
        head += max(0, *(one.throttle_time_ms for one in heads)).to_bytes(4, "big")
        if version >= _FIRST_WITH_SESSIONS:
            head += errors.NoError.errno.to_bytes(2, "big") + _NO_SESSION_ID.to_bytes(4, "big")
        encoded: bytes = UnsignedVarInt32.encode(count + 1) if self._is_flexible else count.to_bytes(4, "big")
        return head + encoded


class FetchPart:
    """The part of one broker: a `ResponseSink` of its connection.

    head: has the fields before its topics, once they have come. walk: over what was written. size: of the part.
    """

    def __init__(
        self,
        merged: MergedFetch,
        connection: BrokerConnection | None,
        wanted: Sequence[Wanted],
        request: FetchRequest,
    ) -> None:
        self.head: FetchResponseWalk | None = None
        self.walk = FetchResponseWalk(request.version)
        self.walker = ResponseWalker(self.walk)
        self.size = 0
        self._merged = merged
        self._connection = connection
        self._wanted = wanted
        self._request = request
        self._held = bytearray()
        self._skipped = 0  # bytes of the head that were not written
        self._is_current = self._is_refused = self._is_ended = False

    def begin(self, size: int) -> None:
        self.size = size

    @property
    def memory(self) -> None:
        """None: bytes are written to the client, or copied, while they are valid."""
        return None

    def take(self, data: memoryview) -> None:
        if self._is_refused:
            return
        if self._is_current:
            self._write(data)
            return
        append_bounded(self._held, data)
        if self.head is None:
            self._look()
        if self.head is not None and not (self._is_current or self._is_refused):
            assert self._connection is not None
            self._connection.pause()

    def end(self, error: Exception | None) -> None:
        if self._is_refused:
            return
        if self.head is None:  # the response ends within its head, or the broker is gone
            self.refuse(errors.NotLeaderForPartitionError.errno)
        elif error is None:
            self._is_ended = True
            if self._is_current:
                self._merged.part_ended()
        else:
            self._merged.fail(error)

    def refuse(self, error_code: int) -> None:
        """Answer with an error code for each partition. Bytes that the broker still sends are dropped."""
        self._is_refused = self._is_ended = True
        self._held = bytearray(refused_part(self._request, self._wanted, error_code))
        self.size = len(self._held)
        self._look()

    def on_turn(self) -> None:
        """Begin to write: the part is the current one."""
        self._is_current = True
        held, self._held = self._held, bytearray()
        self._write(memoryview(held))
        if self._connection is not None:
            self._connection.resume()
        if self._is_ended:
            self._merged.part_ended()

    def _look(self) -> None:
        """Read the head, if all of it has come."""
        head = FetchResponseWalk(self._request.version)
        head.step(self._held)
        if not head.head_size:
            return
        if head.error_code:
            self.refuse(head.error_code)
            return
        self.head = head
        self._merged.part_begun()

    def _write(self, data: memoryview) -> None:
        """Write what is neither the head nor the fields at the end."""
        assert self.head is not None
        try:
            end = self.walker.count(data)
        except ResponseWalkError as error:
            self._merged.fail(error)
            return
        begin = min(self.head.head_size - self._skipped, end)
        self._skipped += begin
        self._merged.write(self._connection, data[begin:end])
