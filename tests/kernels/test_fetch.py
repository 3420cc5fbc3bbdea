"""Fetch requests and responses: the bytes of kafka-python's encoder, at every version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _kafkafmt.client.fetch import FetchEncoder, FetchSession, decode_fetch_response
from _kafkafmt.client.messages import RequestHeader
from _kafkafmt.wire.status import MalformedResponseError
from kernels.wire_messages import (
    CORRELATION_ID,
    ENDPOINTS,
    FETCH_SESSIONS_VERSION,
    FETCH_VERSIONS,
    FETCHED,
    FETCHED_PARTITION,
    INT16,
    INT32,
    NULLABLE_TEXT,
    TEXT,
    TOPIC_ID,
    by_topic,
    encoded,
    failure_of,
    fetch_request,
    fetch_request_by_kernel,
    fetch_response,
    fetch_sample,
    fetched_by_kafka_python,
    fetched_by_kernel,
)

SETTINGS = st.fixed_dictionaries(
    {
        "max_wait_ms": INT32,
        "min_bytes": INT32,
        "max_bytes": INT32,
        "isolation_level": st.integers(0, 1),
        "rack_id": TEXT,
    }
)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@given(
    topics=by_topic(FETCHED_PARTITION),
    forgotten=by_topic(INT32),
    settings=SETTINGS,
    session=st.tuples(INT32, INT32),
    correlation_id=CORRELATION_ID,
    client_id=NULLABLE_TEXT,
)
def test_request_when_encoded_then_it_is_kafka_pythons(
    version, topics, forgotten, settings, session, correlation_id, client_id
):
    known = forgotten if version >= FETCH_SESSIONS_VERSION else []
    expected = encoded(fetch_request(settings, session, topics, known), version, correlation_id, client_id)
    header = (correlation_id, None if client_id is None else client_id.encode())
    assert fetch_request_by_kernel(version, header, settings, session, topics, forgotten) == expected


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_request_when_lengths_take_more_bytes_then_it_is_kafka_pythons(version):
    settings = {"max_wait_ms": 1, "min_bytes": 2, "max_bytes": 3, "isolation_level": 1, "rack_id": "r" * 200}
    topics = [
        ("t" * length, TOPIC_ID, [(index, length, 1, 2, 3) for index in range(200)])
        for length in (1, 126, 127, 128, 249, 16383, 16384)
    ]
    found = fetch_request_by_kernel(version, (1, b"me"), settings, (0, 0), topics, [])
    assert found == encoded(fetch_request(settings, (0, 0), topics, []), version, 1)


@pytest.mark.parametrize(
    ("version", "topics", "rows", "forgotten", "message"),
    [
        (18, [b"a"], [], [], "Fetch version: expected 0 to 17, found 18"),
        (12, [b"a"], [(1, 0, 0, 0, 0, 0)], [], "topic of row 0: expected 0 to 0, found 1"),
        (12, [b"a"], [], [(0, 1), (7, 1)], "topic of row 1: expected 0 to 0, found 7"),
        (13, [b"a"], [], [], "topic id: expected 16 bytes, found 1"),
    ],
)
def test_request_when_an_argument_is_wrong_then_value_error(version, topics, rows, forgotten, message):
    encoder = FetchEncoder(max_wait_ms=0, min_bytes=0, max_bytes=0, isolation_level=0, rack_id=b"")
    with pytest.raises(ValueError, match=message):
        encoder.encode(RequestHeader(version, 0, None), FetchSession(0, -1), topics, rows, forgotten)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@given(
    topics=by_topic(FETCHED),
    throttle_time_ms=INT32,
    error_code=INT16,
    session_id=INT32,
    endpoints=ENDPOINTS,
    correlation_id=CORRELATION_ID,
)
def test_response_when_decoded_then_it_is_what_kafka_python_reads(
    version, topics, throttle_time_ms, error_code, session_id, endpoints, correlation_id
):
    message = fetch_response(topics, throttle_time_ms, error_code, session_id, endpoints)
    data = encoded(message, version, correlation_id)
    assert fetched_by_kernel(data, version) == fetched_by_kafka_python(data, version)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_response_when_a_tagged_field_is_unknown_then_it_is_skipped(version):
    data = fetch_sample(version)
    expected = fetched_by_kernel(data, version)
    assert expected == fetched_by_kafka_python(data, version)
    if version < 12:
        return
    tagged = b"\x01\x63\x03abc"  # one field, of tag 99
    assert fetched_by_kernel(data[:4] + tagged + data[5:], version) == expected
    empty = encoded(fetch_response([]), version, 9)
    assert fetched_by_kernel(empty[:-1] + tagged, version)[4:] == ([], [])


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_response_when_truncated_then_an_error_has_the_position(version):
    data = fetch_sample(version)
    for size in range(len(data)):
        with pytest.raises(MalformedResponseError, match="Fetch response: ") as raised:
            decode_fetch_response(data[:size], version)
        assert 0 <= raised.value.position <= size


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_response_when_it_goes_on_then_an_error_has_the_position(version):
    data = fetch_sample(version)
    with pytest.raises(MalformedResponseError, match="bytes left after the last field") as raised:
        decode_fetch_response(data + b"\0", version)
    assert raised.value.position == len(data)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("flip", [0x01, 0x7F, 0x80, 0xFF])
def test_response_when_a_byte_is_flipped_then_rows_within_it_or_an_error_with_the_position(version, flip):
    data = bytearray(fetch_sample(version))
    for at in range(len(data)):
        data[at] ^= flip
        failure = failure_of(fetched_by_kernel, bytes(data), version)
        assert failure is None or 0 <= failure.position <= len(data)
        data[at] ^= flip


# Where the records' size of a response of one topic `t` and one partition begins, and how many bytes it takes.
RECORDS_SIZE_AT_END = {version: 4 if version < 12 else 1 for version in FETCH_VERSIONS}


@pytest.mark.parametrize("version", FETCH_VERSIONS)
@pytest.mark.parametrize("value", [0xFF, 0x80, 0x7F, 0x40])
def test_response_when_the_size_of_records_is_impossible_then_an_error_has_its_position(version, value):
    topics = [("t", TOPIC_ID, [((0, 0, 0, 0, 0), [], -1, b"abc", None, None, None)])]
    data = bytearray(encoded(fetch_response(topics), version, 0))
    size = RECORDS_SIZE_AT_END[version]
    at = bytes(data).index(b"abc") - size
    data[at : at + size] = bytes([value]) * size if value != 0xFF or size == 1 else b"\xff\xff\xff\xfe"
    with pytest.raises(MalformedResponseError) as raised:
        decode_fetch_response(data, version)
    assert at <= raised.value.position <= len(data)


def test_response_when_the_version_is_unknown_then_value_error():
    with pytest.raises(ValueError, match="Fetch version: expected 0 to 17, found 18"):
        decode_fetch_response(b"", 18)
