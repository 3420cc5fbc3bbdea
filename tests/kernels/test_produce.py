"""Produce requests and responses: the bytes of kafka-python's encoder, at every version."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from _kafkafmt.client.messages import RequestHeader
from _kafkafmt.client.produce import (
    PRODUCE_DTYPE,
    TOPIC_IDS_VERSION,
    ProduceEncoder,
    decode_produce_response,
)
from _kafkafmt.wire.status import MalformedResponseError
from kernels.wire_messages import (
    CORRELATION_ID,
    ENDPOINTS,
    INT16,
    INT32,
    NULLABLE_TEXT,
    PRODUCE_VERSIONS,
    PRODUCED,
    PRODUCED_RECORDS,
    TOPIC_ID,
    by_topic,
    encoded,
    failure_of,
    produce_request,
    produce_request_by_kernel,
    produce_response,
    produce_sample,
    produced_by_kafka_python,
    produced_by_kernel,
)


def as_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(
    topics=by_topic(PRODUCED_RECORDS),
    correlation_id=CORRELATION_ID,
    client_id=NULLABLE_TEXT,
    transactional_id=NULLABLE_TEXT,
    acks=INT16,
    timeout_ms=INT32,
)
def test_request_when_its_pieces_stand_around_the_records_then_it_is_kafka_pythons(
    version, topics, correlation_id, client_id, transactional_id, acks, timeout_ms
):
    request = produce_request(transactional_id, acks, timeout_ms, topics)
    header = (correlation_id, as_bytes(client_id))
    settings = (as_bytes(transactional_id), acks, timeout_ms)
    found = produce_request_by_kernel(version, header, settings, topics)
    assert found == encoded(request, version, correlation_id, client_id)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_request_when_lengths_take_more_bytes_then_it_is_kafka_pythons(version):
    topics = [
        ("t" * length, TOPIC_ID, [(index, bytes(length)) for index in range(200)])
        for length in (1, 126, 127, 128, 249, 16383, 16384)
    ]
    found = produce_request_by_kernel(version, (1, b"me"), (None, -1, 30000), topics)
    assert found == encoded(produce_request(None, -1, 30000, topics), version, 1)


def test_request_when_rows_of_a_topic_are_apart_then_it_has_the_topic_twice():
    encoder, header = ProduceEncoder(None, 1, 0), RequestHeader(3, 0, None)
    apart = encoder.encode(header, [b"a", b"b"], [(0, 0, 1), (1, 0, 1), (0, 1, 1)])
    thrice = encoder.encode(header, [b"a", b"b", b"a"], [(0, 0, 1), (1, 0, 1), (2, 1, 1)])
    assert apart == thrice


def test_request_when_rows_are_bytes_then_it_is_that_of_tuples():
    encoder, header = ProduceEncoder(None, 1, 0), RequestHeader(9, 0, None)
    rows = [(0, 0, 1), (0, 7, 300)]
    assert encoder.encode(header, [b"a"], np.array(rows, PRODUCE_DTYPE).tobytes()) == encoder.encode(
        header, [b"a"], rows
    )
    with pytest.raises(ValueError, match="expected a multiple of 12 bytes, found 11"):
        encoder.encode(header, [b"a"], bytes(11))


@pytest.mark.parametrize(
    ("version", "topics", "rows", "message"),
    [
        (2, [b"a"], [(0, 0, 1)], "Produce version: expected 3 to 13, found 2"),
        (14, [b"a"], [(0, 0, 1)], "Produce version: expected 3 to 13, found 14"),
        (9, [b"a"], [(1, 0, 1)], "topic of row 0: expected 0 to 0, found 1"),
        (9, [b"a"], [(0, 0, 1), (-1, 0, 1)], "topic of row 1: expected 0 to 0, found -1"),
        (9, [b"a"], [(0, 0, -1)], "records of row 0: expected 0 bytes or more, found -1"),
        (9, [b"a"], [(0, 0, 2**31 - 1), (0, 1, 1)], "expected less than 2 GiB"),
        (13, [b"a"], [(0, 0, 1)], "topic id: expected 16 bytes, found 1"),
        (9, [bytes(2**15)], [(0, 0, 1)], "topic: expected at most 32767 bytes, found 32768"),
    ],
)
def test_request_when_an_argument_is_wrong_then_value_error(version, topics, rows, message):
    with pytest.raises(ValueError, match=message):
        ProduceEncoder(None, -1, 0).encode(RequestHeader(version, 0, None), topics, rows)


@pytest.mark.parametrize("topics", [["text"], [None], [bytearray(b"a")]])
def test_request_when_a_topic_is_not_bytes_then_type_error(topics):
    with pytest.raises(TypeError):
        ProduceEncoder(None, -1, 0).encode(RequestHeader(9, 0, None), topics, [(0, 0, 1)])


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@given(topics=by_topic(PRODUCED), throttle_time_ms=INT32, endpoints=ENDPOINTS, correlation_id=CORRELATION_ID)
def test_response_when_decoded_then_it_is_what_kafka_python_reads(
    version, topics, throttle_time_ms, endpoints, correlation_id
):
    data = encoded(produce_response(topics, throttle_time_ms, endpoints), version, correlation_id)
    assert produced_by_kernel(data, version) == produced_by_kafka_python(data, version)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_response_when_a_tagged_field_is_unknown_then_it_is_skipped(version):
    data = produce_sample(version)
    expected = produced_by_kernel(data, version)
    assert expected == produced_by_kafka_python(data, version)
    if version < 9:
        return
    tagged = b"\x01\x63\x03abc"  # one field, of tag 99
    assert produced_by_kernel(data[:4] + tagged + data[5:], version) == expected
    empty = encoded(produce_response([]), version, 9)
    assert produced_by_kernel(empty[:-1] + tagged, version)[2:] == ([], [])


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_response_when_truncated_then_an_error_has_the_position(version):
    data = produce_sample(version)
    for size in range(len(data)):
        with pytest.raises(MalformedResponseError, match="Produce response: ") as raised:
            decode_produce_response(data[:size], version)
        assert 0 <= raised.value.position <= size


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_response_when_it_goes_on_then_an_error_has_the_position(version):
    data = produce_sample(version)
    with pytest.raises(MalformedResponseError, match="bytes left after the last field") as raised:
        decode_produce_response(data + b"\0", version)
    assert raised.value.position == len(data)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("flip", [0x01, 0x7F, 0x80, 0xFF])
def test_response_when_a_byte_is_flipped_then_rows_within_it_or_an_error_with_the_position(version, flip):
    data = bytearray(produce_sample(version))
    for at in range(len(data)):
        data[at] ^= flip
        failure = failure_of(produced_by_kernel, bytes(data), version)
        assert failure is None or 0 <= failure.position <= len(data)
        data[at] ^= flip


def lengths(version: int) -> list[tuple[int, int]]:
    """The place of each count and length in a response of one topic `t`, with how many bytes it takes."""
    if version < 9:
        places = [(4, 4), (8, 2), (11, 4)]
        return places if version < 8 else [*places, (15 + 30, 4), (15 + 34 + 4, 2), (15 + 34 + 7, 2)]
    topic = 6 if version < TOPIC_IDS_VERSION else 6 + 16 - 2
    head = [(5, 1)] if version >= TOPIC_IDS_VERSION else [(5, 1), (6, 1)]
    partitions = topic + 2
    fixed = partitions + 1 + 30
    return [*head, (partitions, 1), (fixed, 1), (fixed + 5, 1), (fixed + 8, 1)]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("value", [0xFF, 0x80, 0x7F, 0x40])
def test_response_when_a_length_is_impossible_then_an_error_has_the_position(version, value):
    topics = [("t", TOPIC_ID, [(0, 0, 0, 0, 0, [(0, "e")], "m", None)])]
    data = bytearray(encoded(produce_response(topics), version, 0))
    for at, size in lengths(version):
        kept = data[at : at + size]
        data[at : at + size] = bytes([value]) * size
        with pytest.raises(MalformedResponseError) as raised:
            decode_produce_response(data, version)
        assert 0 <= raised.value.position <= len(data)
        data[at : at + size] = kept


def test_response_when_the_version_is_unknown_then_value_error():
    with pytest.raises(ValueError, match="Produce version: expected 3 to 13, found 2"):
        decode_produce_response(b"", 2)
