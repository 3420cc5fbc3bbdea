"""Addresses of leaders are hidden in responses that pass, and nothing else changes, in whatever pieces they come."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import KafkaProtocolError
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.producer import ProduceResponse

from _kafkafmt.client.fetch_walk import ShareResponseWalk
from kafkafmt.gateway import hints
from kafkafmt.gateway.hints import HintedFetch, HintedProduce, HintedShare
from kernels.wire_messages import encoded

HOST = "broker-of-the-cluster"


class Written:
    """Takes what a response writes, as the responses of a client do."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.error: Exception | None = None

    def is_next(self, _: Any) -> bool:
        return True

    def write(self, _: Any, data: memoryview) -> None:
        self.data += data

    def end(self) -> None:
        pass

    def fail(self, error: Exception) -> None:
        self.error = error


def passed(response: Any, data: bytes, pieces: list[int]) -> bytes:
    response.begin(len(data))
    position = 0
    while position < len(data):
        size = pieces[position % len(pieces)]
        response.take(memoryview(data)[position : position + size])
        position += size
    response.end(None)
    written = response._responses
    assert written.error is None
    assert written.data[:4] == len(data).to_bytes(4, "big")
    return bytes(written.data[4:])


def fetch_response(version: int, records: list[list[bytes | None]], *, hints: bool) -> bytes:
    topic, partition = (
        FetchResponse.FetchableTopicResponse,
        FetchResponse.FetchableTopicResponse.PartitionData,
    )
    message = FetchResponse(
        responses=[
            topic(
                topic_id=uuid.UUID(int=number + 1),
                partitions=[
                    partition(
                        partition_index=index,
                        error_code=6 if hints else 0,
                        current_leader=partition.LeaderIdAndEpoch(leader_id=2, leader_epoch=7)
                        if hints
                        else None,
                        records=one,
                    )
                    for index, one in enumerate(partitions)
                ],
            )
            for number, partitions in enumerate(records)
        ],
        node_endpoints=[FetchResponse.NodeEndpoint(node_id=2, host=HOST, port=9092)] if hints else [],
    )
    return bytes(encoded(message, version, 5))


@pytest.mark.parametrize("version", [16, 17, 18])
@pytest.mark.parametrize("hints", [True, False])
@given(
    records=st.lists(st.lists(st.none() | st.binary(max_size=3000), max_size=4), max_size=3),
    pieces=st.lists(st.integers(1, 5000), min_size=1, max_size=5),
)
def test_fetch_response_when_it_passes_then_only_addresses_are_hidden(
    version: int, hints: bool, records: Any, pieces: list[int]
) -> None:
    data = fetch_response(version, records, hints=hints)
    errors: list[tuple[bytes, int, int]] = []

    found = passed(HintedFetch(Written(), None, version, errors.extend), data, pieces)  # type: ignore[arg-type]

    assert len(found) == len(data)
    changed = [number for number, (one, other) in enumerate(zip(found, data, strict=True)) if one != other]
    assert len(changed) == (1 if hints else 0)
    before = FetchResponse.decode(data, version=version, header=True)
    after = FetchResponse.decode(found, version=version, header=True)
    assert not after.node_endpoints
    assert after.responses == before.responses
    assert errors == [
        (topic.topic_id.bytes, one.partition_index, one.error_code)
        for topic in before.responses
        for one in topic.partitions
        if one.error_code
    ]


def test_end_of_a_fetch_response_when_it_is_very_long_then_is_not_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = fetch_response(17, [[bytes(3000)]], hints=True)
    monkeypatch.setattr(hints, "_MOST_HELD_BYTES", 1000)
    passed(HintedFetch(Written(), None, 17, list), data, [1])  # type: ignore[arg-type]
    monkeypatch.setattr(hints, "_MOST_HELD_BYTES", 10)
    response = HintedFetch(Written(), None, 17, list)  # type: ignore[arg-type]
    response.begin(1 << 30)
    response.take(memoryview(data))
    with pytest.raises(KafkaProtocolError, match="expected 10 bytes at most without records"):
        response.take(memoryview(bytes(1)))


def test_produce_response_when_it_is_very_long_then_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "_MOST_HELD_BYTES", 10)
    response = HintedProduce(Written(), None, 12, list)  # type: ignore[arg-type]
    response.begin(1 << 30)
    response.take(memoryview(bytes(10)))
    with pytest.raises(KafkaProtocolError, match="expected 10 bytes at most without records"):
        response.take(memoryview(bytes(1)))


@pytest.mark.parametrize("version", [10, 12, 13])
@pytest.mark.parametrize("hints", [True, False])
def test_produce_response_when_it_passes_then_only_addresses_are_hidden(version: int, hints: bool) -> None:
    topic = ProduceResponse.TopicProduceResponse
    partition = topic.PartitionProduceResponse
    message = ProduceResponse(
        responses=[
            topic(
                name="topic",
                topic_id=uuid.UUID(int=1),
                partition_responses=[
                    partition(
                        index=0,
                        error_code=6,
                        current_leader=partition.LeaderIdAndEpoch(leader_id=2, leader_epoch=7),
                    )
                ],
            )
        ],
        node_endpoints=[ProduceResponse.NodeEndpoint(node_id=2, host=HOST, port=9092)] if hints else [],
    )
    data = bytes(encoded(message, version, 5))
    errors: list[tuple[bytes, int, int]] = []

    found = passed(HintedProduce(Written(), None, version, errors.extend), data, [7, 30])  # type: ignore[arg-type]

    after = ProduceResponse.decode(found, version=version, header=True)
    assert errors == [(b"topic" if version < 13 else uuid.UUID(int=1).bytes, 0, 6)]
    assert len(found) == len(data)
    assert not after.node_endpoints
    assert after.responses[0].partition_responses[0].current_leader.leader_id == 2


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value % 0x80 | 0x80)
        value //= 0x80
    return bytes((*encoded, value))


def text(value: str | None) -> bytes:
    return b"\0" if value is None else varint(len(value) + 1) + value.encode()


def share_response(
    version: int, records: list[list[bytes | None]], *, is_fetch: bool, hints: bool
) -> tuple[bytes, bytes]:
    """A response to ShareFetch or ShareAcknowledge as Kafka's schema has it, and its end: endpoints and tags."""
    data = bytearray(struct.pack(">i", 5) + b"\0" + struct.pack(">ih", 0, 0) + text("a message"))
    if is_fetch or version > 1:
        data += struct.pack(">i", 30_000)
    data += varint(len(records) + 1)
    for number, partitions in enumerate(records):
        data += uuid.UUID(int=number + 1).bytes + varint(len(partitions) + 1)
        for index, one in enumerate(partitions):
            data += struct.pack(">ih", index, 6 if hints else 0) + text(None)
            if is_fetch:
                data += struct.pack(">h", 0) + text("of the acknowledgement")
            data += struct.pack(">ii", 2, 7) + b"\0"
            if is_fetch:
                data += b"\0" if one is None else varint(len(one) + 1) + one
                data += varint(3) + 2 * (struct.pack(">qqh", 0, 1, 1) + b"\0")
            data += b"\0"
        data += b"\0"
    endpoint = struct.pack(">i", 2) + text(HOST) + struct.pack(">i", 9092) + text(None) + b"\0"
    end = (varint(2) + endpoint if hints else varint(1)) + b"\0"
    return bytes(data), end


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_fetch", [True, False])
@pytest.mark.parametrize("hints", [True, False])
@given(
    records=st.lists(st.lists(st.none() | st.binary(max_size=300), max_size=3), max_size=3),
    pieces=st.lists(st.integers(1, 500), min_size=1, max_size=5),
)
def test_share_response_when_it_passes_then_it_has_no_endpoints(
    version: int, is_fetch: bool, hints: bool, records: Any, pieces: list[int]
) -> None:
    data, end = share_response(version, records, is_fetch=is_fetch, hints=hints)
    errors: list[tuple[bytes, int, int]] = []
    walk = ShareResponseWalk(version, is_fetch)

    found = passed(HintedShare(Written(), None, walk, errors.extend), data + end, pieces)  # type: ignore[arg-type]

    assert found[: len(data)] == data
    assert len(found) == len(data) + len(end)
    if hints:
        # An empty array, and one tagged field that takes the rest.
        tags = found[len(data) + 1 :]
        assert found[len(data) :].startswith(b"\1\1\x7f")
        assert len(tags) == 3 + tags[2]
        assert HOST.encode() not in found
    else:
        assert found[len(data) :] == end
    assert errors == [
        (uuid.UUID(int=number + 1).bytes, index, 6)
        for number, partitions in enumerate(records if hints else [])
        for index, _ in enumerate(partitions)
    ]
