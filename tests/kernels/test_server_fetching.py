"""Fetch on a server: requests and responses as kafka-python has them, at every version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.consumer import FetchResponse as FetchMessage

from _kafkafmt.server.fetching import (
    FetchedPartition,
    decode_fetch_request,
    encode_fetch_response,
    measure_fetch_request,
)
from kafkafmt.server.wire import encode_fetch_response as encode_message
from kernels.wire_messages import (
    CORRELATION_ID,
    FETCHED_PARTITION,
    INT16,
    INT32,
    INT64,
    NULLABLE_TEXT,
    TEXT,
    TOPIC_ID,
    by_topic,
    encoded,
    fetch_request,
)

VERSIONS = range(FetchRequest.max_version + 1)
SIZE_BYTES = 4
TOPIC_ID_VERSION = 13
SETTINGS: dict[str, Any] = {
    "max_wait_ms": 500,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "isolation_level": 1,
    "rack_id": "rack",
}
SAMPLE = [("topic", TOPIC_ID, [(0, 5, 6, 7, 8), (1, 2**40, -1, -1, 2**31 - 1)])]


def request(version: int, topics: Any = SAMPLE, client_id: str | None = "me", **settings: Any) -> bytes:
    message = fetch_request({**SETTINGS, **settings}, (3, 4), topics, topics_forgotten(version))
    return encoded(message, version, 9, client_id)[SIZE_BYTES:]


def topics_forgotten(version: int) -> list[Any]:
    return [("gone", TOPIC_ID, [1, 2])] if version >= 7 else []


def plain(body: Any, version: int) -> Any:
    """What the endpoint reads of a request."""
    topics = [
        (
            topic.topic if version < TOPIC_ID_VERSION else topic.topic_id,
            [
                (one.partition, one.fetch_offset, one.current_leader_epoch, one.partition_max_bytes)
                for one in topic.partitions
            ],
        )
        for topic in body.topics
    ]
    names = ("max_wait_ms", "min_bytes", "max_bytes", "isolation_level", "session_id", "session_epoch")
    return topics, [getattr(body, name) for name in names]


@pytest.mark.parametrize("version", VERSIONS)
@given(
    topics=by_topic(FETCHED_PARTITION),
    max_wait_ms=INT32,
    min_bytes=INT32,
    max_bytes=INT32,
    isolation_level=st.integers(-128, 127),
    rack_id=TEXT,
    client_id=NULLABLE_TEXT,
)
def test_request_when_decoded_then_has_what_kafka_python_finds(version, topics, client_id, **settings):
    frame = request(version, topics, client_id, **settings)

    decoded = decode_fetch_request(frame + b"bytes behind it")

    expected = FetchRequest.decode(frame, version=version, header=True)
    assert decoded is not None
    assert plain(decoded, version) == plain(expected, version)
    assert (decoded.version, decoded.correlation_id, decoded.client_id) == (version, 9, client_id)


@pytest.mark.parametrize("version", VERSIONS)
def test_request_when_it_is_cut_then_is_none(version: int) -> None:
    frame = request(version)
    assert decode_fetch_request(frame) is not None
    for end in range(len(frame)):
        assert decode_fetch_request(frame[:end]) is None
        measure_fetch_request(frame[:end])


@pytest.mark.parametrize("frame", [b"", b"\x00\x00" + request(0)[2:], b"\x00\x01\x00\x13" + request(18)[4:]])
def test_request_when_it_is_no_fetch_or_of_a_later_version_then_is_none(frame: bytes) -> None:
    assert decode_fetch_request(frame) is None


def test_request_when_a_name_is_no_text_then_is_none() -> None:
    frame = request(11)
    assert decode_fetch_request(frame.replace(b"topic", b"t\xff\xff\xffc")) is None
    assert decode_fetch_request(frame.replace(b"\x00\x02me", b"\x00\x02\xff\xff")) is None


def test_topic_id_when_it_is_zero_then_is_none() -> None:
    decoded = decode_fetch_request(request(13).replace(TOPIC_ID.bytes, bytes(16)))
    assert decoded is not None
    assert [topic.topic_id for topic in decoded.topics] == [None]


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_request_when_bytes_are_replaced_then_is_decoded_or_none(version: int, data: st.DataObject) -> None:
    frame = bytearray(request(version))
    for position in data.draw(st.lists(st.integers(0, len(frame) - 1), min_size=1, max_size=4)):
        frame[position] = data.draw(st.integers(0, 255))
    decode_fetch_request(frame)
    size, elements = measure_fetch_request(frame)
    assert size >= 0 <= elements <= len(frame)


@pytest.mark.parametrize("version", [0, 11, 18])
def test_measured_elements_are_topics_and_partitions(version: int) -> None:
    partitions = [(number, 0, -1, -1, 0) for number in range(50)]
    topics = [(f"topic-{number}", TOPIC_ID, partitions) for number in range(20)]
    size, elements = measure_fetch_request(request(version, topics))
    assert elements == 20 * 51
    assert size >= 64 * elements


FETCHED = st.tuples(
    INT32, INT16, INT64, INT64, INT64, st.none() | st.lists(st.tuples(INT64, INT64)), st.integers(0, 2**20)
)


def message_of(version: int, topics: Any) -> Any:
    topic_class = FetchMessage.FetchableTopicResponse
    data = topic_class.PartitionData
    return FetchMessage[version](
        responses=[
            topic_class(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    data(
                        partition_index=index,
                        error_code=error_code,
                        high_watermark=high_watermark,
                        last_stable_offset=stable,
                        log_start_offset=start,
                        aborted_transactions=None
                        if aborted is None
                        else [data.AbortedTransaction(producer_id=a, first_offset=b) for a, b in aborted],
                    )
                    for index, error_code, high_watermark, stable, start, aborted, _ in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ]
    )


@pytest.mark.parametrize("version", VERSIONS)
@given(topics=by_topic(FETCHED), correlation_id=CORRELATION_ID)
def test_response_when_encoded_then_its_pieces_are_kafka_pythons(version, topics, correlation_id):
    named = [
        (
            topic_id.bytes if version >= TOPIC_ID_VERSION else name.encode(),
            [FetchedPartition(*one) for one in ones],
        )
        for name, topic_id, ones in topics
    ]
    sizes = [one[-1] for _, _, partitions in topics for one in partitions]

    pieces = encode_fetch_response(version, correlation_id, named)

    expected = encode_message(correlation_id, message_of(version, topics), sizes)
    assert len(pieces) == 1 + sum(size > 0 for size in sizes)
    joined = [expected[0]]
    for size, piece in zip(sizes, expected[1:], strict=True):
        if size:
            joined.append(piece)
        else:
            joined[-1] += piece
    assert pieces == joined


def test_response_when_it_would_be_too_large_then_is_refused() -> None:
    partitions = [FetchedPartition(number, 0, 0, 0, 0, None, 2**30) for number in range(2)]
    with pytest.raises(OverflowError, match="less than 2 GiB"):
        encode_fetch_response(11, 1, [(b"topic", partitions)])


@pytest.mark.parametrize(
    ("version", "name", "message"),
    [(19, b"topic", "0 to 18"), (-1, b"topic", "0 to 18"), (13, b"topic", "16 bytes")],
)
def test_response_when_version_or_id_is_unknown_then_is_refused(
    version: int, name: bytes, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        encode_fetch_response(version, 1, [(name, [])])


def test_partition_when_its_records_have_a_negative_size_then_is_refused() -> None:
    with pytest.raises(ValueError, match="records_size"):
        FetchedPartition(0, 0, 0, 0, 0, None, -1)
