"""Parts of Fetch responses are merged into one, in whatever pieces and turns they come."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import errors
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.schemas.fields.codecs import UnsignedVarInt32

from _kafkafmt.server.fetching import decode_fetch_request
from endpoints.raw_client import frame
from kafkafmt.gateway.errors import UpstreamError
from kafkafmt.gateway.hints import unknown_tags
from kafkafmt.gateway.split_fetch import MergedFetch, Wanted
from kafkafmt.server.heads import read_varint
from kernels.wire_messages import encoded

SIZE_BYTES = 4
CORRELATION_ID = 77
HOST = "broker-of-the-cluster"
VERSIONS = (4, 7, 11, 12, 13, 15, 16, 18)
RECORDS = st.lists(st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=3), max_size=2)


class Written:
    """Takes what a response writes, as the responses of a client do."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_ended = False
        self.error: Exception | None = None

    def is_next(self, _: Any) -> bool:
        return True

    def write(self, _: Any, data: memoryview) -> None:
        self.data += data

    def end(self) -> None:
        self.is_ended = True

    def fail(self, error: Exception) -> None:
        self.error = error


class Connection:
    """Gives a part its response in pieces, while it is not paused."""

    def __init__(self, data: bytes, piece: int) -> None:
        self.part: Any = None
        self._data, self._piece = data, piece
        self._position = 0
        self._is_paused = False

    @property
    def is_done(self) -> bool:
        return self._position >= len(self._data)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    def step(self) -> None:
        """Give the next piece, as a connection does after a read."""
        if self._is_paused or self.is_done:
            return
        if self._position == 0:
            self.part.begin(len(self._data))
        data = memoryview(self._data)[self._position : self._position + self._piece]
        self._position += len(data)
        self.part.take(data)
        if self.is_done:
            self.part.end(None)


def request(version: int, topics: int, partitions: int) -> Any:
    topic = FetchRequest.FetchTopic
    message = FetchRequest(
        topics=[
            topic(
                topic=f"topic-{number}",
                topic_id=uuid.UUID(int=number + 1),
                partitions=[
                    topic.FetchPartition(partition=index, partition_max_bytes=1)
                    for index in range(partitions)
                ],
            )
            for number in range(topics)
        ],
        forgotten_topics_data=[],
    )
    decoded = decode_fetch_request(frame(message, version, CORRELATION_ID)[SIZE_BYTES:])
    assert decoded is not None
    return decoded


def response(
    version: int,
    broker: int,
    records: list[list[bytes | None]] | None,
    error_code: int = 0,
    throttle_time_ms: int | None = None,
) -> bytes:
    """The response of a broker. records: by topic and partition; None: null instead of topics."""
    topic = FetchResponse.FetchableTopicResponse
    message = FetchResponse(
        throttle_time_ms=broker if throttle_time_ms is None else throttle_time_ms,
        error_code=error_code,
        session_id=0,
        responses=records
        and [
            topic(
                topic=f"topic-{number}",
                topic_id=uuid.UUID(int=number + 1),
                partitions=[
                    topic.PartitionData(partition_index=100 * broker + index, high_watermark=9, records=one)
                    for index, one in enumerate(partitions)
                ],
            )
            for number, partitions in enumerate(records)
        ],
        node_endpoints=[FetchResponse.NodeEndpoint(node_id=2, host=HOST, port=9092)] if broker % 2 else [],
    )
    return bytes(encoded(message, version, 5))


def merged(
    version: int, responses: list[bytes], pieces: list[int], turns: list[int]
) -> tuple[bytes, list[bool]]:
    """Return the response merged of these, and whether it has records."""
    written, asked, has_records = Written(), request(version, 1, 1), []
    response = MergedFetch(written, asked, lambda _: None, has_records.append)  # type: ignore[arg-type]
    connections = [Connection(data, pieces[number % len(pieces)]) for number, data in enumerate(responses)]
    wanted = [Wanted(topic, one) for topic in asked.topics for one in topic.partitions]
    for connection in connections:
        connection.part = response.add(connection, wanted)  # type: ignore[arg-type]
    response.expect_parts()
    for turn in turns:
        connections[turn % len(connections)].step()
    while not written.is_ended:
        before = len(written.data), [one._position for one in connections]
        for connection in connections:
            connection.step()
        assert written.error is None
        assert written.is_ended or before != (len(written.data), [one._position for one in connections])
    assert all(one.is_done for one in connections)
    assert written.data[:SIZE_BYTES] == (len(written.data) - SIZE_BYTES).to_bytes(SIZE_BYTES, "big")
    return bytes(written.data[SIZE_BYTES:]), has_records


@pytest.mark.parametrize("version", VERSIONS)
@given(
    brokers=st.lists(RECORDS, min_size=2, max_size=4),
    pieces=st.lists(st.integers(1, 400), min_size=1, max_size=4),
    turns=st.lists(st.integers(0, 3), max_size=30),
)
def test_parts_when_they_come_in_any_turn_then_all_topics_are_in_one_response(
    version: int, brokers: list[list[list[bytes | None]]], pieces: list[int], turns: list[int]
) -> None:
    parts = [response(version, number + 1, records) for number, records in enumerate(brokers)]

    data, has_records = merged(version, parts, pieces, turns)

    found = FetchResponse.decode(data, version=version, header=True)
    expected = [FetchResponse.decode(part, version=version, header=True).responses for part in parts]
    assert found.header.correlation_id == CORRELATION_ID
    assert found.responses == [topic for topics in expected for topic in topics]
    assert (found.session_id, found.error_code, found.throttle_time_ms) == (0, 0, len(brokers))
    assert not found.node_endpoints
    assert HOST.encode() not in data
    assert has_records == [any(one for records in brokers for partitions in records for one in partitions)]


@pytest.mark.parametrize("version", VERSIONS)
def test_part_when_its_broker_refuses_it_then_its_partitions_have_the_error(version: int) -> None:
    parts = [
        response(version, 1, [[b"records"]]),
        response(version, 2, [], error_code=56 if version > 6 else 0),
    ]

    data, _ = merged(version, parts, [10], [])

    found = FetchResponse.decode(data, version=version, header=True)
    codes = [one.error_code for topic in found.responses for one in topic.partitions]
    assert codes == ([0, 56] if version > 6 else [0])


@pytest.mark.parametrize("version", [11, 16])
def test_part_when_its_connection_ends_before_it_then_its_partitions_are_not_led(version: int) -> None:
    written, asked, found = Written(), request(version, 1, 2), []
    response_ = MergedFetch(written, asked, found.extend, lambda _: None)  # type: ignore[arg-type]
    wanted = [Wanted(topic, one) for topic in asked.topics for one in topic.partitions]
    first = Connection(response(version, 1, [[b"records"]]), 1000)
    first.part = response_.add(first, wanted[:1])  # type: ignore[arg-type]
    second = response_.add(Connection(b"", 1), wanted[1:])  # type: ignore[arg-type]
    response_.expect_parts()

    first.step()
    second.end(errors.KafkaConnectionError("gone"))
    first.step()

    decoded = FetchResponse.decode(bytes(written.data[SIZE_BYTES:]), version=version, header=True)
    assert [one.error_code for topic in decoded.responses for one in topic.partitions] == [0, 6]
    assert [code for _, _, code in found] == [6]
    assert written.is_ended


@pytest.mark.parametrize("version", VERSIONS)
def test_parts_when_they_have_numbers_that_no_broker_sends_then_the_response_has_others(version: int) -> None:
    parts = [response(version, number, None, throttle_time_ms=-5) for number in (1, 2)]

    data, _ = merged(version, parts, [10], [])

    found = FetchResponse.decode(data, version=version, header=True)
    assert (found.responses, found.throttle_time_ms) == ([], 0)


def test_parts_when_they_are_too_large_together_then_the_response_fails() -> None:
    written, asked = Written(), request(11, 1, 1)
    response_ = MergedFetch(written, asked, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    wanted = [Wanted(topic, one) for topic in asked.topics for one in topic.partitions]
    parts = [response_.add(Connection(b"", 1), wanted) for _ in range(3)]  # type: ignore[arg-type]
    response_.expect_parts()

    for part in parts:
        part.begin(2**31 - 1)
        part.take(memoryview(response(11, 1, [])))

    assert isinstance(written.error, UpstreamError)
    assert not written.data


@pytest.mark.parametrize("version", [11, 16])
def test_parts_when_their_counts_of_topics_are_too_many_together_then_the_response_fails(
    version: int,
) -> None:
    head = response(version, 0, [])[: 14 if version == 11 else 15]  # up to the count of topics
    most = (2**31 - 1).to_bytes(4, "big") if version == 11 else UnsignedVarInt32.encode(2**31)
    written, asked = Written(), request(version, 1, 1)
    response_ = MergedFetch(written, asked, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    wanted = [Wanted(topic, one) for topic in asked.topics for one in topic.partitions]
    parts = [response_.add(Connection(b"", 1), wanted) for _ in range(3)]  # type: ignore[arg-type]
    response_.expect_parts()

    for part in parts:
        part.begin(1000)
        part.take(memoryview(head + most))

    assert isinstance(written.error, UpstreamError)
    assert "topics" in str(written.error)
    assert not written.data


@pytest.mark.parametrize("version", [11, 16])
def test_part_when_it_ends_within_its_head_then_its_partitions_are_not_led(version: int) -> None:
    parts = [response(version, 1, [[b"records"]]), response(version, 2, [])[:8]]

    data, _ = merged(version, parts, [1000], [])

    found = FetchResponse.decode(data, version=version, header=True)
    assert [one.error_code for topic in found.responses for one in topic.partitions] == [0, 6]


def assert_fails(version: int, parts: list[bytes]) -> None:
    """The response that is merged of these parts is not ended."""
    written, asked = Written(), request(version, 1, 2)
    response_ = MergedFetch(written, asked, lambda _: None, lambda _: None)  # type: ignore[arg-type]
    wanted = [Wanted(topic, one) for topic in asked.topics for one in topic.partitions]
    connections = [Connection(data, 1000) for data in parts]
    for connection in connections:
        connection.part = response_.add(connection, wanted[:1])  # type: ignore[arg-type]
    response_.expect_parts()

    for connection in connections * 2:
        connection.step()

    assert isinstance(written.error, UpstreamError)
    assert not written.is_ended


@pytest.mark.parametrize("version", [11, 16])
def test_part_when_it_is_longer_or_shorter_than_its_topics_then_the_response_fails(version: int) -> None:
    damaged = response(version, 2, []) + b"more" if version == 11 else response(version, 2, [])[:-1]
    assert_fails(version, [response(version, 4, [[b"records"]]), damaged])


@pytest.mark.parametrize("version", VERSIONS)
def test_part_when_it_ends_before_its_last_topic_then_the_response_fails(version: int) -> None:
    """Also if the other part has tags, so that the bytes that are left would be enough."""
    whole = response(version, 2, [[b"records", None], [b"more"]])
    topics = whole[: whole.rindex(b"more") + 4]
    for stop in range(len(response(version, 2, [])), len(topics)):
        assert_fails(version, [topics[:stop], response(version, 5, [[b"records"]])])


@given(size=st.integers(3, 40_000))
def test_unknown_tags_when_made_of_a_size_then_they_have_it_and_are_skipped(size: int) -> None:
    tags = unknown_tags(size)

    assert len(tags) == size
    count, position = read_varint(tags, 0)
    for _ in range(count):
        tag, position = read_varint(tags, position)
        length, position = read_varint(tags, position)
        position += length
        assert tag > 100
    assert position == size
