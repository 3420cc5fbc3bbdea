"""Fetch requests for kafka-python's connections, encoded and decoded natively.

A connection asks three objects: the request, its header, and the class of its response. Here one object is all three.
The kernel `client/fetch` knows the fields of each version. A response becomes the objects that kafka-python's fetcher
reads, and its records stay in the bytes that were received.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol
from uuid import UUID

import kafka.errors as kafka_errors

from _kafkafmt.client import fetch
from _kafkafmt.client.messages import RequestHeader
from _kafkafmt.wire.status import MalformedResponseError

if TYPE_CHECKING:
    from kafka.structs import TopicPartition
    from typing_extensions import Buffer

    from _kafkafmt.client.fetch import FetchEncoder, FetchSession

_CORRELATION_ID_BYTES = 4
_TOPIC = itemgetter(0)


class _Frame(Protocol):
    def read(self) -> Buffer: ...


class _ResponseHeader(NamedTuple):
    correlation_id: int


class _Request:
    """A request that kafka-python's connection sends, and the decoder of its response.

    min_version, max_version: the connection sets `API_VERSION` to the newest version among these that its broker knows.
    """

    API_KEY: ClassVar[int]
    name: ClassVar[str]
    min_version: ClassVar[int]
    max_version: ClassVar[int]

    def __init__(self, min_version: int, max_version: int) -> None:
        self.API_VERSION: Any = None
        self._min_version, self._max_version = min_version, max_version

    # As a request

    def with_header(self, correlation_id: int, client_id: str | None) -> None:
        self.correlation_id = correlation_id
        self._client_id = None if client_id is None else client_id.encode()

    @property
    def header(self) -> _Request:
        return self

    def expect_response(self) -> bool:
        return True

    def encode(self, *, framed: bool, header: bool) -> bytes:
        """Return the request with its size and its header, which the connection always asks for."""
        return self._encoded(RequestHeader(self.API_VERSION, self.correlation_id, self._client_id))

    def _encoded(self, header: RequestHeader) -> bytes:
        raise NotImplementedError

    # As the header of a request, and as the class of its response

    def get_response_class(self) -> _Request:
        return self

    def parse_header(self, frame: _Frame) -> _ResponseHeader:
        self._response = memoryview(frame.read())
        return _ResponseHeader(int.from_bytes(self._response[:_CORRELATION_ID_BYTES], "big"))

    def decode(self, _frame: _Frame) -> Any:
        """Decode the response whose header was parsed last. Raises KafkaProtocolError: the connection is closed."""
        try:
            return self._decoded(self._response)
        except (MalformedResponseError, UnicodeDecodeError) as error:
            raise kafka_errors.KafkaProtocolError(str(error)) from None

    def _decoded(self, response: memoryview) -> Any:
        raise NotImplementedError


# Fetch


class FetchPartition(NamedTuple):
    """A partition of a request. A session leaves out what is equal in the request before (KIP-227)."""

    partition: int
    fetch_offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    max_bytes: int


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class EpochEndOffset(NamedTuple):
    epoch: int
    end_offset: int


class LeaderIdAndEpoch(NamedTuple):
    leader_id: int
    leader_epoch: int


@dataclass(slots=True)
class FetchedPartition:
    """What a broker answered for one partition. records: a view of the response; None to drop them."""

    partition_index: int
    error_code: int
    high_watermark: int
    aborted_transactions: Sequence[AbortedTransaction]
    preferred_read_replica: int
    records: memoryview | None
    diverging_epoch: EpochEndOffset
    current_leader: LeaderIdAndEpoch


@dataclass(slots=True)
class FetchedTopic:
    """topic: empty in a response that has ids in place of names."""

    topic: str
    topic_id: UUID | None
    partitions: list[FetchedPartition]


@dataclass(slots=True)
class FetchResponse:
    API_VERSION: int
    throttle_time_ms: int
    error_code: int
    session_id: int
    responses: list[FetchedTopic]


class FetchRequest(_Request):
    """A fetch of `partitions`; `forgotten` ones leave the session.

    topic_ids: the ids of all topics, if they may be fetched by id; else empty.
    """

    API_KEY = 1
    name = "FetchRequest"
    # Later versions add nothing that kafka-python's fetcher reads.
    min_version, max_version = fetch.OLDEST_VERSION, fetch.TOPIC_IDS_VERSION

    def __init__(
        self,
        encoder: FetchEncoder,
        session: FetchSession,
        partitions: Mapping[TopicPartition, FetchPartition],
        forgotten: Collection[TopicPartition],
        topic_ids: Mapping[str, UUID],
        *,
        min_version: int,
    ) -> None:
        super().__init__(min_version, fetch.TOPIC_IDS_VERSION if topic_ids else fetch.TOPIC_IDS_VERSION - 1)
        self._encoder = encoder
        self._session = session
        self._partitions = partitions
        self._forgotten = forgotten
        self._topic_ids = topic_ids

    def _encoded(self, header: RequestHeader) -> bytes:
        numbers: dict[str, int] = {}
        rows = [
            (numbers.setdefault(partition.topic, len(numbers)), *wanted)
            for partition, wanted in self._partitions.items()
        ]
        forgotten = [
            (numbers.setdefault(partition.topic, len(numbers)), partition.partition)
            for partition in self._forgotten
        ]
        if len(numbers) > 1:
            rows.sort(key=_TOPIC)
            forgotten.sort(key=_TOPIC)
        if header.version < fetch.TOPIC_IDS_VERSION:
            topics = [topic.encode() for topic in numbers]
        else:
            topics = [self._topic_ids[topic].bytes for topic in numbers]
        return self._encoder.encode(header, self._session, topics, rows, forgotten)

    def _decoded(self, response: memoryview) -> FetchResponse:
        decoded = fetch.decode_fetch_response(response, self.API_VERSION)
        if self.API_VERSION < fetch.TOPIC_IDS_VERSION:
            topics = [FetchedTopic(topic.decode(), None, []) for topic in decoded.topics]
        else:
            topics = [FetchedTopic("", UUID(bytes=topic), []) for topic in decoded.topics]
        for number, partition in _fetched(response, decoded):
            topics[number].partitions.append(partition)
        return FetchResponse(
            self.API_VERSION, decoded.throttle_time_ms, decoded.error_code, decoded.session_id, topics
        )


def _fetched(response: memoryview, decoded: fetch.FetchResponse) -> Iterator[tuple[int, FetchedPartition]]:
    """Yield the number of its topic, and the answer, of each partition."""
    aborted = [AbortedTransaction(*one) for one in decoded.aborted.tolist()]
    for (
        high_watermark,
        _last_stable_offset,
        _log_start_offset,
        diverging_end_offset,
        position,
        size,
        topic,
        partition,
        diverging_epoch,
        leader_id,
        leader_epoch,
        preferred_read_replica,
        first,
        count,
        error_code,
        _reserved,
    ) in decoded.partitions.tolist():
        yield (
            topic,
            FetchedPartition(
                partition,
                error_code,
                high_watermark,
                aborted[first : first + max(count, 0)],
                preferred_read_replica,
                response[position : position + max(size, 0)],
                EpochEndOffset(diverging_epoch, diverging_end_offset),
                LeaderIdAndEpoch(leader_id, leader_epoch),
            ),
        )
