"""What a message is said to take once it is decoded, held against what it takes."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.producer import ProduceRequest

from endpoints.raw_client import SIZE
from kafkafmt.server.errors import MalformedRequestError
from kafkafmt.server.frames import TooManyElementsError, measure, measure_response
from kafkafmt.server.wire import (
    SUPPORTED,
    Frame,
    api_name,
    decode_request,
    decode_response,
    encode_response,
)
from server.messages import CORRELATION_ID, filled, frame, request_class, response_class

MANY = 400
VERSIONS = [
    pytest.param(api_key, version, id=f"{api_name(api_key)}-v{version}")
    for api_key, versions in SUPPORTED.items()
    for version in {versions[0], versions[-1]}
]
LEAST = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": None,
    "bool": False,
    "float64": 0.0,
    "bitfield": set(),
}


def depth_of(schema: Any, version: int) -> int:
    """How many arrays are within each other."""
    depths = [0]
    for field in schema.untagged_fields(version):
        if field.is_struct_array():
            depths.append(1 + depth_of(field.array_of, version))
        elif field.is_array():
            depths.append(1)
    return max(depths)


def with_many(data_class: Any, schema: Any, version: int, depth: int, value: dict[str, Any]) -> Any:
    """A message whose arrays at `depth` have many elements, one at a lower one, none at a higher one."""
    fields = {}
    for field in schema.untagged_fields(version):
        count = MANY if depth == 1 else int(depth > 1)
        if field.is_struct_array():
            inner = field.array_of
            each = with_many(inner.data_class, inner, version, depth - 1, value)
            fields[field.name] = [each] * count
        elif field.is_array():
            fields[field.name] = [value.get(field.array_of.type_str, 0)] * count
        elif field.is_struct():
            fields[field.name] = with_many(field.data_class, field, version, depth, value)
        else:
            fields[field.name] = value.get(field.type_str, 0)
    return data_class(version=version, **fields)


def decoded_bytes(sent: Frame) -> int:
    return taken_bytes(partial(decode_request, sent, ""))


def taken_bytes(decode: Callable[[], object]) -> int:
    """The lesser of two measurements: other threads of the process, as of clients, may allocate meanwhile."""
    decode()  # what is made once of a layout
    return min(traced_bytes(decode) for _ in range(2))


def traced_bytes(decode: Callable[[], object]) -> int:
    gc.disable()  # a collection would visit all that other tests have left
    tracemalloc.start()
    try:
        decoded = decode()
        return tracemalloc.get_traced_memory()[0] if decoded else 0
    finally:
        tracemalloc.stop()
        gc.enable()


WIDE = LEAST | {
    "int32": 2**30,
    "int64": 2**60,
    "int16": 2**14,
    "string": "naïve ☃ 🎂",
    "bitfield": set(range(31)),
}


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
@pytest.mark.parametrize("value", [LEAST, WIDE], ids=["small", "large"])
def test_measured_size_when_a_request_has_many_elements_then_is_what_decoding_takes_or_more(
    api_key: int, version: int, value: dict[str, Any]
) -> None:
    of = request_class(api_key)
    for depth in range(depth_of(of._struct, version) + 1):
        sent = Frame(frame(with_many(of, of._struct, version, depth, value)))
        told = measure(sent, of, version)
        found = decoded_bytes(sent)
        assert found <= told.decoded_bytes + told.payload_bytes + 4096
        if value is WIDE:  # of small numbers and empty strings Python makes no objects
            assert told.decoded_bytes <= 3 * found + 4096
        assert told.elements >= (MANY if depth else 0)


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_measured_size_when_tagged_fields_are_set_then_is_what_decoding_takes_or_more(
    api_key: int, version: int
) -> None:
    of = request_class(api_key)
    sent = Frame(frame(filled(of, version)))
    told = measure(sent, of, version)
    assert decoded_bytes(sent) <= told.decoded_bytes + told.payload_bytes + 4096


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
@pytest.mark.parametrize("value", [LEAST, WIDE], ids=["small", "large"])
def test_measured_size_when_a_response_has_many_elements_then_is_what_decoding_takes_or_more(
    api_key: int, version: int, value: dict[str, Any]
) -> None:
    of = response_class(api_key)
    for depth in range(depth_of(of._struct, version) + 1):
        response = with_many(of, of._struct, version, depth, value)
        answer = bytes(encode_response(CORRELATION_ID, response))[SIZE.size :]
        told = measure_response(answer, of, version)
        found = taken_bytes(partial(decode_response, answer, api_key, version))
        assert found <= told.decoded_bytes + told.payload_bytes + 4096
        if value is WIDE:
            assert told.decoded_bytes <= 3 * found + 4096
        assert told.elements >= (MANY if depth else 0)


def test_unknown_tagged_fields_when_structs_have_some_then_are_counted() -> None:
    topic = b"\x01\x01\x01\x63\x00"  # no name, no partitions, and one tagged field of no bytes
    head = b"\x00\x01\x00\x0c\x00\x00\x00\x01\xff\xff\x00" + bytes(25)
    sent = Frame(head + b"\xdd\x0b" + topic * 1500 + b"\x01\x01\x00")
    told = measure(sent, request_class(ApiKey.Fetch), 12)
    assert told.elements >= 1500
    assert decoded_bytes(sent) <= told.decoded_bytes + 4096


def test_frame_when_it_ends_early_then_is_counted_as_far_as_it_goes() -> None:
    of = request_class(ApiKey.Fetch)
    sent = frame(filled(of, 12))
    sizes = [measure(sent[:end], of, 12).decoded_bytes for end in range(10, len(sent))]
    assert sizes == sorted(sizes)


def produce(*sizes: int, version: int = 9) -> Frame:
    topic = ProduceRequest.TopicProduceData
    data = [topic.PartitionProduceData(index=0, records=b"\x7f" * size) for size in sizes]
    body = ProduceRequest(
        version=version,
        acks=1,
        timeout_ms=1,
        transactional_id=None,
        topic_data=[topic(name="t", partition_data=data)],
    )
    return Frame(frame(body))


@pytest.mark.parametrize("version", SUPPORTED[ApiKey.Produce])
def test_produce_when_most_of_it_is_records_then_is_taken(version: int) -> None:
    told = measure(produce(100_000, version=version), ProduceRequest, version, max_bytes=1000)
    assert told.payload_bytes == 100_000


@pytest.mark.parametrize("version", SUPPORTED[ApiKey.Produce])
def test_produce_when_more_than_it_may_is_no_records_then_is_refused(version: int) -> None:
    with pytest.raises(MalformedRequestError, match="expected 1000 at most that are not records"):
        measure(produce(100_000, *[0] * 400, version=version), ProduceRequest, version, max_bytes=1000)


def test_elements_when_there_are_more_than_are_to_be_counted_then_counting_ends() -> None:
    with pytest.raises(TooManyElementsError):
        measure(produce(*[0] * 50), ProduceRequest, 9, max_elements=20)
