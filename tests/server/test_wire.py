"""Frames of the wire protocol: every API at every version, the oldest layouts byte for byte, and hostile frames."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import FetchRequest, FetchResponse, JoinGroupRequest, ListOffsetsResponse
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest, MetadataResponse

from kafkafmt.server.errors import MalformedRequestError, RequestError, UnsupportedRequestError
from kafkafmt.server.wire import SUPPORTED, api_name, decode_request, encode_fetch_response, encode_response
from server.messages import CLIENT_ID, CORRELATION_ID, filled, frame, request_class, response_class

MIB = 1024 * 1024
VERSIONS = [
    pytest.param(api_key, version, id=f"{api_name(api_key)}-v{version}")
    for api_key, versions in SUPPORTED.items()
    for version in versions
]
FETCH_VERSIONS = SUPPORTED[ApiKey.Fetch]


def header(api_key: int, version: int, *, flexible: bool = False) -> bytes:
    """A request header without client ID."""
    return struct.pack(">hhih", api_key, version, CORRELATION_ID, -1) + (b"\x00" if flexible else b"")


def uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_request_of_every_version_is_decoded_as_it_was_encoded(api_key: int, version: int) -> None:
    sent = frame(filled(request_class(api_key), version))

    request = decode_request(memoryview(sent), "10.0.0.1")

    assert (request.api_key, request.version) == (api_key, version)
    assert (request.correlation_id, request.client_id) == (CORRELATION_ID, CLIENT_ID)
    assert request.client_host == "10.0.0.1"
    assert frame(request.body) == sent


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_response_of_every_version_is_read_by_a_client(api_key: int, version: int) -> None:
    response = filled(response_class(api_key), version)
    if api_key == ApiKey.ApiVersions:
        response.error_code = 0  # with an error it is read at version 0 (KIP-511)

    sent = encode_response(CORRELATION_ID, response)

    assert struct.unpack_from(">ii", sent) == (len(sent) - 4, CORRELATION_ID)
    received = response_class(api_key).decode(sent, version=version, header=True, framed=True)
    assert received.header.correlation_id == CORRELATION_ID
    assert received.to_dict() == response.to_dict()
    assert encode_response(CORRELATION_ID, received) == sent


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_request_cut_anywhere_is_malformed(api_key: int, version: int) -> None:
    sent = frame(filled(request_class(api_key), version))
    for end in range(len(sent)):
        with pytest.raises(MalformedRequestError):
            decode_request(sent[:end], "")


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_request_with_bytes_behind_it_is_taken_without_them(api_key: int, version: int) -> None:
    sent = frame(filled(request_class(api_key), version))
    for behind in (b"\x00", b"\x00" * 3, b"\xff" * 40):
        assert frame(decode_request(sent + behind, "").body) == sent


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_request_with_bytes_replaced_is_decoded_or_refused(data: st.DataObject) -> None:
    api_key, version = data.draw(st.sampled_from([param.values for param in VERSIONS]))
    sent = bytearray(frame(filled(request_class(api_key), version)))
    for position in data.draw(st.lists(st.integers(0, len(sent) - 1), min_size=1, max_size=4)):
        sent[position] = data.draw(st.sampled_from([0x00, 0x01, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    try:
        request = decode_request(sent, "")
    except RequestError:
        return
    assert request.version in SUPPORTED[request.api_key] or request.api_key == ApiKey.ApiVersions


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_frame_of_any_bytes_is_decoded_or_refused(body: bytes) -> None:
    for api_key, versions in SUPPORTED.items():
        flexible = request_class(api_key).flexible_version_q(versions[-1])
        with suppress(MalformedRequestError):
            decode_request(header(api_key, versions[-1], flexible=flexible) + body, "")


# Layouts as they were before Kafka had schemas in JSON, from "A Guide To The Kafka Protocol".
OLDEST_REQUESTS = {
    "Metadata-v0": ("0003 0000 0000004d ffff", "00000001 0001 74"),
    "Fetch-v0": (
        "0001 0000 0000004d ffff",
        "ffffffff 00000064 00000001 00000001 0001 74 00000001 00000000 0000000000000005 00100000",
    ),
    "ListOffsets-v0": (
        "0002 0000 0000004d ffff",
        "ffffffff 00000001 0001 74 00000001 00000000 fffffffffffffffe 00000001",
    ),
    "JoinGroup-v0": ("000b 0000 0000004d ffff", "0001 67 00007530 0000 0001 63 00000001 0001 72 00000000"),
    "OffsetCommit-v0": (
        "0008 0000 0000004d ffff",
        "0001 67 00000001 0001 74 00000001 00000000 0000000000000005 0000",
    ),
}


@pytest.mark.parametrize("name", OLDEST_REQUESTS)
def test_request_of_the_oldest_layout_is_understood(name: str) -> None:
    request = decode_request(bytes.fromhex("".join(OLDEST_REQUESTS[name])), "")
    assert f"{api_name(request.api_key)}-v{request.version}" == name
    body = request.body
    if name == "JoinGroup-v0":
        assert (body.group_id, body.session_timeout_ms, body.member_id) == ("g", 30_000, "")
        assert [protocol.name for protocol in body.protocols] == ["r"]
    else:
        (topic,) = body.topics
        assert (topic.topic if name == "Fetch-v0" else topic.name) == "t"
    if name == "Fetch-v0":
        (partition,) = topic.partitions
        assert (body.max_wait_ms, body.min_bytes) == (100, 1)
        assert (partition.fetch_offset, partition.partition_max_bytes) == (5, MIB)
    elif name == "ListOffsets-v0":
        (partition,) = topic.partitions
        assert (partition.timestamp, partition.max_num_offsets) == (-2, 1)
    elif name == "OffsetCommit-v0":
        (partition,) = topic.partitions
        assert (partition.committed_offset, partition.committed_metadata) == (5, "")


def test_responses_of_the_oldest_layout() -> None:
    metadata = MetadataResponse(
        version=0,
        brokers=[MetadataResponse.MetadataResponseBroker(version=0, node_id=0, host="h", port=9092)],
        topics=[MetadataResponse.MetadataResponseTopic(version=0, error_code=3, name="t", partitions=[])],
        controller_id=0,
    )
    assert encode_response(CORRELATION_ID, metadata).hex() == (
        "00000020" "0000004d" "00000001" "00000000" "000168" "00002384" "00000001" "0003" "000174" "00000000"
    )  # fmt: skip

    partition = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    listed = ListOffsetsResponse(
        version=0,
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(
                version=0,
                name="t",
                partitions=[partition(version=0, partition_index=1, error_code=0, old_style_offsets=[9, 5])],
            )
        ],
    )
    assert encode_response(CORRELATION_ID, listed).hex() == (
        "00000029" "0000004d" "00000001" "000174" "00000001" "00000001" "0000" "00000002"
        "0000000000000009" "0000000000000005"
    )  # fmt: skip


def fetch_response(version: int, records: list[bytes | None]) -> Any:
    """Two topics, the first with one partition, the second with all others."""
    topic_class = FetchResponse.FetchableTopicResponse
    aborted_transaction = topic_class.PartitionData.AbortedTransaction
    partitions = [
        topic_class.PartitionData(
            version=version,
            partition_index=index,
            error_code=0,
            high_watermark=1 << 33,
            aborted_transactions=[aborted_transaction(producer_id=1, first_offset=2)],
            records=taken,
        )
        for index, taken in enumerate(records)
    ]
    topics = [
        topic_class(version=version, topic="one", partitions=partitions[:1]),
        topic_class(version=version, topic="all others", partitions=partitions[1:]),
    ]
    return FetchResponse(version=version, session_id=3, responses=topics)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_pieces_of_a_fetch_response_with_the_records_between_are_what_kafka_python_encodes(
    version: int,
) -> None:
    records = [b"", None, b"a" * 126, b"b" * 127, b"c" * 128, None, b"d" * 20_000, b"e" * 3_000_000, b""]
    sizes = [None if taken is None else len(taken) for taken in records]

    pieces = encode_fetch_response(CORRELATION_ID, fetch_response(version, [None] * len(records)), sizes)

    assert len(pieces) == len(sizes) + 1
    whole = b"".join(part for pair in zip(pieces, [*records, b""], strict=True) for part in pair if part)
    assert whole == encode_response(CORRELATION_ID, fetch_response(version, records))


@pytest.mark.parametrize("version", [FETCH_VERSIONS[0], FETCH_VERSIONS[-1]])
def test_fetch_response_without_partitions_is_one_piece(version: int) -> None:
    response = FetchResponse(version=version, responses=[])
    assert encode_fetch_response(CORRELATION_ID, response, []) == [encode_response(CORRELATION_ID, response)]


def test_fetch_response_with_more_sizes_than_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        encode_fetch_response(CORRELATION_ID, fetch_response(4, [b"", b""]), [1, 2, 3])


def test_api_versions_request_of_a_later_version_comes_without_its_body() -> None:
    later = SUPPORTED[ApiKey.ApiVersions][-1] + 1
    request = decode_request(header(ApiKey.ApiVersions, later) + b"\x00 of a layout yet unknown", "")
    assert (request.version, request.correlation_id) == (later, CORRELATION_ID)
    assert request.body == ApiVersionsRequest(version=0)


@pytest.mark.parametrize(
    ("api_key", "version", "message"),
    [
        (ApiKey.Fetch, 19, "Fetch v19: expected versions 0 to 18"),
        (ApiKey.Fetch, -1, "Fetch v-1: expected versions 0 to 18"),
        (ApiKey.ApiVersions, -1, "ApiVersions v-1: expected versions"),
        (ApiKey.ElectLeaders, 0, "ElectLeaders v0: this API is not served"),
        (999, 0, "API 999 v0: this API is not served"),
        (-1, 0, "API -1 v0: this API is not served"),
    ],
)
def test_request_of_what_is_not_served_says_so(api_key: int, version: int, message: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=message):
        decode_request(header(api_key, version), "")


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        pytest.param(b"\x00\x01\x00", "3 bytes: no room for API and version", id="nothing"),
        pytest.param(header(ApiKey.Metadata, 0)[:9], "Metadata v0 of 9 bytes: ", id="half a header"),
        pytest.param(
            header(ApiKey.Metadata, 12, flexible=True) + b"\x80" * MIB,
            "varint .* too long",
            id="endless varint",
        ),
        pytest.param(
            header(ApiKey.Metadata, 12) + b"\xff" * MIB,
            "Metadata v12 of .*",
            id="endless varint in the header",
        ),
        pytest.param(
            header(ApiKey.Metadata, 0) + struct.pack(">ih", 1, 5) + b"abcd",
            "5 bytes at byte 16 reach beyond its end",
            id="string behind the end",
        ),
        pytest.param(
            header(ApiKey.Metadata, 0) + struct.pack(">ih2s", 1, 2, b"\xff\xff"),
            "'utf-8' codec",
            id="not UTF-8",
        ),
        pytest.param(header(ApiKey.Metadata, 0) + b"\xff" * 4, "topics is null", id="null array"),
        pytest.param(
            header(ApiKey.Metadata, 0) + struct.pack(">ih", 1, -1), "name is null", id="null string"
        ),
        pytest.param(
            header(ApiKey.DescribeGroups, 0) + struct.pack(">ih", 1, -1),
            "an element of groups is null",
            id="null element",
        ),
        pytest.param(
            header(ApiKey.Metadata, 0) + struct.pack(">i", 2**31 - 1) + b"\x00\x00" * 1000,
            "requires a buffer of",
            id="more elements than bytes",
        ),
        pytest.param(
            header(ApiKey.OffsetFetch, 8, flexible=True) + uvarint(MIB) + b"\x01\x01\x00" * 1000,
            "it ends early",
            id="more compact elements than bytes",
        ),
        pytest.param(
            header(ApiKey.Metadata, 9, flexible=True) + uvarint(MIB // 4) + b"\x01\x01\x05\x00" * (MIB // 4),
            "too many tagged fields",
            id="a tagged field in each of many structs",
        ),
        pytest.param(
            header(ApiKey.ApiVersions, 3, flexible=True) + b"\x01\x01" + uvarint(2**32 - 1),
            "requires a buffer of",
            id="more tagged fields than bytes",
        ),
    ],
)
def test_malformed_request_says_what_was_found(sent: bytes, message: str) -> None:
    with pytest.raises(MalformedRequestError, match=message):
        decode_request(sent, "")


def test_tagged_fields_that_are_not_known_are_passed_over() -> None:
    tags = b"\x02\x07\x03abc\x64\x00"
    names = MetadataRequest(version=12, topics=None, allow_auto_topic_creation=False).encode()
    sent = header(ApiKey.Metadata, 12) + tags + names[:-1] + tags
    assert decode_request(sent, "").body.topics is None


def test_null_is_taken_where_it_may_be() -> None:
    assert decode_request(header(ApiKey.Metadata, 1) + b"\xff" * 4, "").body.topics is None
    produce = header(ApiKey.Produce, 0) + struct.pack(">hiih1siii", 1, 100, 1, 1, b"t", 1, 0, -1)
    (partition,) = decode_request(produce, "").body.topic_data[0].partition_data
    assert partition.records is None


def test_group_metadata_of_any_bytes_is_taken() -> None:
    request = JoinGroupRequest(
        version=6,
        group_id="g",
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
        member_id="",
        protocol_type="consumer",
        protocols=[
            JoinGroupRequest.JoinGroupRequestProtocol(version=6, name="r", metadata=b"\xff" * 100_000)
        ],
    )
    assert decode_request(frame(request), "").body.protocols[0].metadata == b"\xff" * 100_000


def test_fetch_request_of_a_follower_with_a_tagged_field_in_each_partition_is_taken() -> None:
    topic_class = FetchRequest.FetchTopic
    partition = topic_class.FetchPartition
    request = FetchRequest(
        version=18,
        max_wait_ms=1,
        min_bytes=1,
        topics=[
            topic_class(
                version=18,
                partitions=[partition(version=18, partition=index, high_watermark=5) for index in range(500)],
            )
        ],
    )
    taken = decode_request(frame(request), "").body.topics[0].partitions
    assert [each.high_watermark for each in taken] == [5] * 500
