"""Target: what a gateway splits and passes on: Produce and Fetch requests, and Fetch responses in pieces.

Input: a byte that chooses the kind and the version, and one for the leaders or the sizes of the pieces. Then the frame
of a request, or a response, each without its size. Whatever the bytes are:

- the parts of a request for its leaders have each of its partitions once, with what it asks or with its records;
- a walk over a response that comes in pieces finds the same end, the same errors, and the same records as one over the
  whole response;
- a walk ends in each response that the decoder takes, and has found records if the decoder has.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from _kafkafmt.client.fetch import decode_fetch_response
from _kafkafmt.client.fetch_walk import FetchResponseWalk, ResponseWalkError
from _kafkafmt.server.fetching import FetchRequest, decode_fetch_request
from _kafkafmt.server.producing import ProduceRequest, decode_produce_request
from _kafkafmt.wire.status import MalformedResponseError
from kafkafmt.gateway import split_fetch, split_produce
from kafkafmt.gateway.walking import ResponseWalker
from kernels.wire_messages import FETCH_VERSIONS, PRODUCE_VERSIONS

OPTIONS_LENGTH = 2
RESPONSE = 0x80
LEADERS = 3
SIZE_FIELD = 4


class Options:
    """What the options choose. content: what follows them."""

    def __init__(self, data: bytes) -> None:
        first, self.second = data[:OPTIONS_LENGTH].ljust(OPTIONS_LENGTH, b"\0")
        self.is_response = first >= RESPONSE
        self.version = FETCH_VERSIONS[(first & ~RESPONSE) % len(FETCH_VERSIONS)]
        self.content = data[OPTIONS_LENGTH:]


def check(data: bytes) -> None:
    options = Options(data)
    if options.is_response:
        _check_walks(options.content, options.version, 1 + options.second)
        return
    produced = decode_produce_request(options.content)
    if produced is not None and produced.version in PRODUCE_VERSIONS:  # older ones are converted, not split
        _check_produce_parts(options.content, produced)
    fetched = decode_fetch_request(options.content)
    if fetched is not None:
        _check_fetch_parts(fetched)


def _check_produce_parts(frame: bytes, request: ProduceRequest) -> None:
    found: Counter[Any] = Counter()
    for leader in range(LEADERS):
        rows = [row for row in request.partitions if int(row["partition"]) % LEADERS == leader]
        if rows:
            message = split_produce.encode_part(memoryview(frame), request, rows, leader)
            part = b"".join(message)[SIZE_FIELD:]
            decoded = decode_produce_request(part)
            assert decoded is not None
            settings = (decoded.version, decoded.client_id, decoded.acks, decoded.timeout_ms)
            assert settings == (request.version, request.client_id, request.acks, request.timeout_ms)
            assert decoded.transactional_id == request.transactional_id
            found.update(_produced(part, decoded))
    assert found == Counter(_produced(frame, request))


def _produced(frame: bytes, request: ProduceRequest) -> list[Any]:
    places = [
        (int(row["topic"]), int(row["partition"]), int(row["position"]), max(int(row["size"]), 0))
        for row in request.partitions
    ]
    return [
        (request.topics[topic], partition, frame[start : start + size])
        for topic, partition, start, size in places
    ]


def _check_fetch_parts(request: FetchRequest) -> None:
    wanted = [split_fetch.Wanted(topic, one) for topic in request.topics for one in topic.partitions]
    found: Counter[Any] = Counter()
    for leader in range(LEADERS):
        some = [one for one in wanted if one.partition.partition % LEADERS == leader]
        if some:
            message = split_fetch.encode_part(request, some, LEADERS, leader, waits=False)
            decoded = decode_fetch_request(message[SIZE_FIELD:])
            assert decoded is not None
            assert decoded.client_id == request.client_id
            assert decoded.isolation_level == request.isolation_level
            found.update(_asked(decoded))
    assert found == Counter(_asked(request))


def _asked(request: FetchRequest) -> list[Any]:
    return [
        (
            topic.topic,
            topic.topic_id,
            one.partition,
            one.fetch_offset,
            one.current_leader_epoch,
            one.partition_max_bytes,
        )
        for topic in request.topics
        for one in topic.partitions
    ]


def _walked(data: bytes, version: int, piece: int) -> tuple[int, bool, bool, Any] | None:
    """Return the end of the topics, whether it was reached, and what was found; None after the documented error."""
    walk = FetchResponseWalk(version)
    walker, end = ResponseWalker(walk), 0
    try:
        for start in range(0, len(data), piece):
            end += walker.count(memoryview(data)[start : start + piece])
    except ResponseWalkError:
        return None
    return end, walker.is_at_end, walker.has_records, walk.errors


def _check_walks(data: bytes, version: int, piece: int) -> None:
    whole = _walked(data, version, max(len(data), 1))
    assert _walked(data, version, piece) == whole
    try:
        decoded = decode_fetch_response(data, version)
    except MalformedResponseError:
        return
    assert whole is not None
    _, is_at_end, has_records, _ = whole
    assert is_at_end
    assert has_records == any(int(row["records_size"]) > 0 for row in decoded.partitions)
