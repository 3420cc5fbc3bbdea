"""Produce and Fetch as kafka-python encodes and decodes them, and both decoders' results in one plain form.

The plain form of a response is nested tuples: what the version has not is -1, or empty.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from _kafkafmt.client import fetch, produce
from _kafkafmt.client.messages import RequestHeader
from _kafkafmt.wire.status import MalformedResponseError

PRODUCE_VERSIONS = range(produce.OLDEST_VERSION, produce.NEWEST_VERSION + 1)
FETCH_VERSIONS = range(fetch.OLDEST_VERSION, fetch.NEWEST_VERSION + 1)
FETCH_SESSIONS_VERSION = 7

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
NULLABLE_TEXT = st.none() | TEXT
TOPIC_NAME = TEXT.filter(bool)
RECORDS = st.binary(max_size=300)
CORRELATION_ID = st.integers(0, 2**31 - 1)


def by_topic(of_partition: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[str, UUID, list[Any]]]]:
    """Topics with one partition or more."""
    topic = st.tuples(TOPIC_NAME, st.uuids(), st.lists(of_partition, min_size=1, max_size=5))
    return st.lists(topic, max_size=5)


def encoded(message: Any, version: int, correlation_id: int, client_id: str | None = "me") -> bytes:
    """A request with its size, a response without."""
    message.API_VERSION = version
    if message.is_request():
        message.with_header(correlation_id=correlation_id, client_id=client_id)
        return message.encode(framed=True, header=True)
    message.with_header(correlation_id=correlation_id)
    return message.encode(header=True)


# Requests

PRODUCED_RECORDS = st.tuples(INT32, RECORDS)


def produce_request(transactional_id: str | None, acks: int, timeout_ms: int, topics: Any) -> ProduceRequest:
    topic = ProduceRequest.TopicProduceData
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            topic(
                name=name,
                topic_id=topic_id,
                partition_data=[
                    topic.PartitionProduceData(index=index, records=data) for index, data in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
    )


FETCHED_PARTITION = st.tuples(INT32, INT64, INT32, INT32, INT32)


def fetch_request(
    settings: dict[str, Any], session: tuple[int, int], topics: Any, forgotten: Any
) -> FetchRequest:
    topic = FetchRequest.FetchTopic
    return FetchRequest(
        **settings,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            topic(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    topic.FetchPartition(
                        partition=partition,
                        fetch_offset=offset,
                        current_leader_epoch=leader_epoch,
                        last_fetched_epoch=fetched_epoch,
                        partition_max_bytes=max_bytes,
                    )
                    for partition, offset, leader_epoch, fetched_epoch, max_bytes in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=name, topic_id=topic_id, partitions=partitions)
            for name, topic_id, partitions in forgotten
        ],
    )


def produce_request_by_kernel(
    version: int, header: tuple[int, bytes | None], settings: tuple[bytes | None, int, int], topics: Any
) -> bytes:
    """The kernel's pieces with the records between them. header: correlation id and client id."""
    rows = [
        (number, index, len(data))
        for number, (_, _, partitions) in enumerate(topics)
        for index, data in partitions
    ]
    names = _names(topics, version >= produce.TOPIC_IDS_VERSION)
    pieces = produce.ProduceEncoder(*settings).encode(RequestHeader(version, *header), names, rows)
    records = [data for _, _, partitions in topics for _, data in partitions]
    assert len(pieces) == len(records) + 1
    return b"".join(part for pair in zip(pieces, [*records, b""], strict=True) for part in pair)


def fetch_request_by_kernel(
    version: int,
    header: tuple[int, bytes | None],
    settings: dict[str, Any],
    session: tuple[int, int],
    topics: Any,
    forgotten: Any,
) -> bytes:
    rows = [(number, *one) for number, (_, _, partitions) in enumerate(topics) for one in partitions]
    forgotten_rows = [
        (number, one)
        for number, (_, _, partitions) in enumerate(forgotten, len(topics))
        for one in partitions
    ]
    encoder = fetch.FetchEncoder(**{**settings, "rack_id": settings["rack_id"].encode()})
    return encoder.encode(
        RequestHeader(version, *header),
        fetch.FetchSession(*session),
        _names([*topics, *forgotten], version >= fetch.TOPIC_IDS_VERSION),
        rows,
        forgotten_rows,
    )


def _names(topics: Any, are_ids: bool) -> list[bytes]:
    return [topic_id.bytes if are_ids else name.encode() for name, topic_id, _ in topics]


# Responses

LEADER = st.none() | st.tuples(INT32, INT32)
ENDPOINTS = st.lists(st.tuples(INT32, TEXT, INT32, NULLABLE_TEXT), max_size=3)
PRODUCED = st.tuples(
    INT32,
    INT16,
    INT64,
    INT64,
    INT64,
    st.lists(st.tuples(INT32, NULLABLE_TEXT), max_size=3),
    NULLABLE_TEXT,
    LEADER,
)


def produce_response(topics: Any, throttle_time_ms: int = 0, endpoints: Any = ()) -> ProduceResponse:
    topic = ProduceResponse.TopicProduceResponse
    partition = topic.PartitionProduceResponse
    return ProduceResponse(
        responses=[
            topic(
                name=name,
                topic_id=topic_id,
                partition_responses=[
                    partition(
                        index=index,
                        error_code=error_code,
                        base_offset=base_offset,
                        log_append_time_ms=append_time,
                        log_start_offset=start,
                        record_errors=[
                            partition.BatchIndexAndErrorMessage(
                                batch_index=number, batch_index_error_message=text
                            )
                            for number, text in errors
                        ],
                        error_message=message,
                        current_leader=_leader(partition.LeaderIdAndEpoch, leader),
                    )
                    for index, error_code, base_offset, append_time, start, errors, message, leader in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
        throttle_time_ms=throttle_time_ms,
        node_endpoints=_endpoints(ProduceResponse, endpoints),
    )


FETCHED = st.tuples(
    st.tuples(INT32, INT16, INT64, INT64, INT64),
    st.none() | st.lists(st.tuples(INT64, INT64), max_size=3),
    INT32,
    st.none() | RECORDS,
    st.none() | st.tuples(INT32, INT64),
    LEADER,
    st.none() | st.tuples(INT64, INT32),
)


def fetch_response(
    topics: Any, throttle_time_ms: int = 0, error_code: int = 0, session_id: int = 0, endpoints: Any = ()
) -> FetchResponse:
    topic = FetchResponse.FetchableTopicResponse
    partition = topic.PartitionData
    return FetchResponse(
        throttle_time_ms=throttle_time_ms,
        error_code=error_code,
        session_id=session_id,
        responses=[
            topic(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    partition(
                        partition_index=numbers[0],
                        error_code=numbers[1],
                        high_watermark=numbers[2],
                        last_stable_offset=numbers[3],
                        log_start_offset=numbers[4],
                        aborted_transactions=None
                        if aborted is None
                        else [
                            partition.AbortedTransaction(producer_id=a, first_offset=b) for a, b in aborted
                        ],
                        preferred_read_replica=replica,
                        records=records,
                        diverging_epoch=None
                        if diverging is None
                        else partition.EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]),
                        current_leader=_leader(partition.LeaderIdAndEpoch, leader),
                        snapshot_id=None
                        if snapshot is None
                        else partition.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1]),
                    )
                    for numbers, aborted, replica, records, diverging, leader, snapshot in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
        node_endpoints=_endpoints(FetchResponse, endpoints),
    )


def _leader(made: Callable[..., Any], leader: tuple[int, int] | None) -> Any:
    return None if leader is None else made(leader_id=leader[0], leader_epoch=leader[1])


def _endpoints(response: Any, endpoints: Any) -> list[Any]:
    return [
        response.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
        for node_id, host, port, rack in endpoints
    ]


# A response with all that its version can have

TOPIC_ID = UUID(int=2**100 + 1)
_OTHER_ID = UUID(int=7)
_ENDPOINTS = [(4, "host", 9092, None), (5, "", 0, "rack")]
_PRODUCED = [
    (
        "topic",
        TOPIC_ID,
        [(0, 0, 5, -1, 0, [], None, None), (1, 87, -1, -1, 3, [(2, "bad"), (3, None)], "all", (4, 5))],
    ),
    ("other", _OTHER_ID, [(2**31 - 1, -1, 2**63 - 1, 6, 7, [], "", (1, 2))]),
]
_FETCHED = [
    (
        "topic",
        TOPIC_ID,
        [
            ((0, 0, 5, 4, 0), [(1, 2), (3, 4)], -1, b"records", None, None, None),
            ((1, 74, -1, -1, -1), None, 2, None, (3, 4), (5, 6), (7, 8)),
        ],
    ),
    ("other", _OTHER_ID, [((2**31 - 1, -1, 2**63 - 1, 6, 7), [], 3, b"", (1, 2), None, None)]),
]


def produce_sample(version: int) -> bytes:
    return encoded(produce_response(_PRODUCED, 8, _ENDPOINTS), version, 9)


def fetch_sample(version: int) -> bytes:
    return encoded(fetch_response(_FETCHED, 8, 9, 10, _ENDPOINTS), version, 11)


# Both decoders, in the plain form


def produced_by_kafka_python(data: bytes, version: int) -> Any:
    found = ProduceResponse.decode(data, version=version, header=True)
    return (
        found.header.correlation_id,
        found.throttle_time_ms,
        [
            (
                _topic(topic.name, topic.topic_id, version >= produce.TOPIC_IDS_VERSION),
                [
                    (
                        one.index,
                        one.error_code,
                        one.base_offset,
                        one.log_append_time_ms,
                        _or_unknown(one.log_start_offset),
                        [(e.batch_index, e.batch_index_error_message) for e in one.record_errors or ()],
                        one.error_message,
                        _pair(one.current_leader, "leader_id", "leader_epoch"),
                    )
                    for one in topic.partition_responses
                ],
            )
            for topic in found.responses
        ],
        _plain_endpoints(found),
    )


def produced_by_kernel(data: bytes, version: int) -> Any:
    found = produce.decode_produce_response(data, version)
    errors = [(index, _text(data, at, size)) for at, size, index in found.record_errors.tolist()]
    topics: list[Any] = [(topic, []) for topic in found.topics]
    for row in found.partitions:
        first, count = int(row["first_record_error"]), int(row["record_errors"])
        assert 0 <= first <= first + count <= len(errors)
        topics[row["topic"]][1].append(
            (
                *(int(row[name]) for name in ("partition", "error_code", "base_offset")),
                int(row["log_append_time_ms"]),
                int(row["log_start_offset"]),
                errors[first : first + count],
                _text(data, row["message_position"], row["message_size"]),
                (int(row["leader_id"]), int(row["leader_epoch"])),
            )
        )
    flat = [
        (topic, *row[:5], tuple(row[5]), row[6], *row[7])
        for topic, partitions in topics
        for row in partitions
    ]
    assert produce.produced_partitions(data, version) == (found.throttle_time_ms, flat)
    return found.correlation_id, found.throttle_time_ms, topics, _texts(found.endpoints)


def fetched_by_kafka_python(data: bytes, version: int) -> Any:
    found = FetchResponse.decode(data, version=version, header=True)
    return (
        found.header.correlation_id,
        found.throttle_time_ms or 0,
        found.error_code or 0,
        found.session_id or 0,
        [
            (
                _topic(topic.topic, topic.topic_id, version >= fetch.TOPIC_IDS_VERSION),
                [
                    (
                        one.partition_index,
                        one.error_code,
                        one.high_watermark,
                        _or_unknown(one.last_stable_offset),
                        _or_unknown(one.log_start_offset),
                        [(a.producer_id, a.first_offset) for a in one.aborted_transactions or ()],
                        _or_unknown(one.preferred_read_replica),
                        None if one.records is None else bytes(one.records),
                        _pair(one.diverging_epoch, "epoch", "end_offset"),
                        _pair(one.current_leader, "leader_id", "leader_epoch"),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in found.responses
        ],
        _plain_endpoints(found),
    )


def fetched_by_kernel(data: bytes, version: int) -> Any:
    found = fetch.decode_fetch_response(data, version)
    aborted = found.aborted.tolist()
    topics: list[Any] = [(topic, []) for topic in found.topics]
    for row in found.partitions:
        first, count = int(row["first_aborted"]), max(int(row["aborted"]), 0)
        assert 0 <= first <= first + count <= len(aborted)
        topics[row["topic"]][1].append(
            (
                *(
                    int(row[name])
                    for name in ("partition", "error_code", "high_watermark", "last_stable_offset")
                ),
                int(row["log_start_offset"]),
                aborted[first : first + count],
                int(row["preferred_read_replica"]),
                _bytes(data, row["records_position"], row["records_size"]),
                (int(row["diverging_epoch"]), int(row["diverging_end_offset"])),
                (int(row["leader_id"]), int(row["leader_epoch"])),
            )
        )
    return (
        found.correlation_id,
        found.throttle_time_ms,
        found.error_code,
        found.session_id,
        topics,
        _texts(found.endpoints),
    )


def failure_of(read: Callable[[bytes, int], Any], data: bytes, version: int) -> MalformedResponseError | None:
    """The error of a decoder, if its lengths or counts are at fault. The kernels leave strings undecoded."""
    try:
        read(data, version)
    except MalformedResponseError as error:
        return error
    except UnicodeDecodeError:
        pass
    return None


def _topic(name: str | None, topic_id: UUID | None, is_id: bool) -> bytes:
    # kafka-python reads the UUID of zeros as None.
    return (topic_id or UUID(int=0)).bytes if is_id else (name or "").encode()


def _or_unknown(number: int | None) -> int:
    return -1 if number is None else number


def _pair(struct: Any, first: str, second: str) -> tuple[int, int]:
    return (-1, -1) if struct is None else (getattr(struct, first), getattr(struct, second))


def _plain_endpoints(found: Any) -> list[Any]:
    return [(one.node_id, one.host, one.port, one.rack) for one in found.node_endpoints or ()]


def _texts(endpoints: Any) -> list[Any]:
    return [
        (node_id, host.decode(), port, None if rack is None else rack.decode())
        for node_id, host, port, rack in endpoints
    ]


def _bytes(data: bytes, position: int, size: int) -> bytes | None:
    assert size == -1 or (size >= 0 and 0 <= position <= len(data) - size)
    return None if size < 0 else data[position : position + size]


def _text(data: bytes, position: int, size: int) -> str | None:
    found = _bytes(data, position, size)
    return None if found is None else found.decode()
