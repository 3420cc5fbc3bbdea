"""Frames of Kafka's wire protocol: which APIs are served at which versions, requests in and responses out.

The messages are those of kafka-python's `kafka.protocol`, which is generated from Kafka's own schemas. A request is
decoded through a `Frame`, which holds kafka-python's decoder to the frame's bounds: decoding takes time and memory
in proportion to the frame, whatever it says. The records of a fetch response are not encoded at all: the response is
cut where they belong, so that they can go from file to socket.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from kafka.protocol.admin import (
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.api_header import RequestHeader
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from kafka.protocol.schemas.fields.codecs import Int32, UnsignedVarInt32
from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer

from kafkafmt.serve.request import Message, Request

_REQUESTS = {
    request.API_KEY: request
    for request in (
        ProduceRequest,
        FetchRequest,
        ListOffsetsRequest,
        MetadataRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        FindCoordinatorRequest,
        JoinGroupRequest,
        HeartbeatRequest,
        LeaveGroupRequest,
        SyncGroupRequest,
        DescribeGroupsRequest,
        ListGroupsRequest,
        SaslHandshakeRequest,
        ApiVersionsRequest,
        CreateTopicsRequest,
        InitProducerIdRequest,
        OffsetForLeaderEpochRequest,
        DescribeConfigsRequest,
        SaslAuthenticateRequest,
        DeleteGroupsRequest,
        OffsetDeleteRequest,
        DescribeClusterRequest,
    )
}
# By API key. The oldest versions are in: kafka-python keeps their layouts, which Kafka 4.0 no longer takes.
SUPPORTED: dict[int, range] = {key: range(request.max_version + 1) for key, request in _REQUESTS.items()}
# Those that only an endpoint serves that allows to produce.
_WRITING = {ApiKey.CreateTopics, ApiKey.InitProducerId}

# Of a request's frame, its API key and version.
HEAD_BYTES = 4
# Most responses are smaller.
_FIRST_BUFFER_BYTES = 1024
# That many structs of kafka-python take some milliseconds to encode.
_MANY_STRUCTS = 1000

# What stands for a partition's records while a fetch response is encoded. No message holds it by chance.
_RECORDS_MARK = os.urandom(16)


class RequestError(Exception):
    """A request that cannot be answered: the connection that it came over is closed, as Kafka does."""


class MalformedRequestError(RequestError):
    """The bytes of a request are not what its API and version say."""


class UnsupportedRequestError(RequestError):
    """A request of an API, or of a version of it, that is not served."""


def served_apis(*, allow_produce: bool) -> dict[int, range]:
    """The APIs that an endpoint serves, and their versions."""
    return {key: versions for key, versions in SUPPORTED.items() if allow_produce or key not in _WRITING}


def api_name(api_key: int) -> str:
    """Kafka's name of an API, such as `Fetch`; the number where it has none."""
    try:
        name: str = ApiKey(api_key).name
    except ValueError:
        return f"API {api_key}"
    return name


def request_class_of(head: bytes) -> tuple[Any, int, bool]:
    """The class and version of the request whose frame begins so, and whether that version is known.

    One that is not known is an ApiVersions request. Raises MalformedRequestError and UnsupportedRequestError.
    """
    if len(head) < HEAD_BYTES:
        raise MalformedRequestError(f"a request of {len(head)} bytes: no room for API and version")
    api_key, version = struct.unpack_from(">hh", head)
    name = f"{api_name(api_key)} v{version}"
    request_class = _REQUESTS.get(api_key)
    if request_class is None:
        raise UnsupportedRequestError(f"{name}: this API is not served")
    known = version in SUPPORTED[api_key]
    if not known and not (request_class is ApiVersionsRequest and version > 0):
        raise UnsupportedRequestError(f"{name}: served are versions 0 to {SUPPORTED[api_key][-1]}")
    return request_class, version, known


def decode_request(frame: bytes | bytearray | memoryview, client_host: str) -> Request:
    """The request in a frame, without its size field. A `Frame` is not copied.

    Bytes behind the body are passed over, as by a broker: librdkafka leaves some there (librdkafka#5049). An
    ApiVersions request of a later version than is known comes with the version it has and an empty body of version 0,
    for the answer that KIP-511 wants. Raises MalformedRequestError and UnsupportedRequestError.
    """
    data = frame if isinstance(frame, Frame) else Frame(frame)
    request_class, version, known = request_class_of(data)
    name = f"{api_name(request_class.API_KEY)} v{version}"
    flexible = known and request_class.flexible_version_q(version)
    try:
        # KIP-482, "Request and Response Headers": the client ID is no compact string even in a flexible header.
        header, position = _decode(
            RequestHeader, 2 if flexible else 1, data, 0, compact=False, tagged=flexible
        )
        if known:
            body, _ = _decode(request_class, version, data, position, compact=flexible, tagged=flexible)
            for rule in _nullness(request_class, version):
                rule.check(body)
        else:
            body = request_class(version=0)
    except (ValueError, AssertionError, struct.error) as error:
        found = str(error) or "a tagged field's struct has tagged fields itself"
        raise MalformedRequestError(f"{name} of {len(data)} bytes: {found}") from error
    key = request_class.API_KEY
    return Request(key, version, header.correlation_id, header.client_id, body, client_host, len(data))


class _EncodeBuffer(EncodeBuffer):  # type: ignore[misc]
    """A buffer that grows where it is, by an eighth: kafka-python's own is doubled and copied."""

    def ensure(self, needed: int) -> None:
        missing = self.pos + needed - len(self.buf)
        if missing > 0:
            self.buf.extend(bytes(max(missing, len(self.buf) // 8)))


def encode_response(correlation_id: int, message: Message) -> bytearray:
    """A response as a whole frame, size field and header included."""
    message.with_header(correlation_id)
    version = message.API_VERSION
    flexible = message.flexible_version_q(version)
    # Not by `message.encode`: that keeps a buffer a thread, of the size of the largest response that ever was.
    out = _EncodeBuffer(_FIRST_BUFFER_BYTES)
    out.pos = Int32.size
    message.encode_header_into(out, flexible=flexible)
    message._struct.compiled_encode_into(version, compact=flexible, tagged=flexible)(message, out)
    encoded: bytearray = out.buf
    del encoded[out.pos :]
    struct.pack_into(">i", encoded, 0, len(encoded) - Int32.size)
    return encoded


async def encode_response_by_turns(correlation_id: int, message: Message) -> bytearray:
    """`encode_response`, in a thread where it takes long, so that others have their turns meanwhile."""
    structs = _structs(message, message._struct, message.API_VERSION)
    if next(islice(structs, _MANY_STRUCTS, None), None) is None:
        return encode_response(correlation_id, message)
    return await asyncio.to_thread(encode_response, correlation_id, message)


def _structs(message: Message, schema: Any, version: int) -> Iterator[Message]:
    """A message, or a part of it, and the parts of that."""
    yield message
    for field in schema.untagged_fields(version):
        if field.is_struct_array():
            for element in getattr(message, field.name) or ():
                yield from _structs(element, field.array_of, version)


def encode_fetch_response(correlation_id: int, message: Message, sizes: Sequence[int | None]) -> list[bytes]:
    """The frame of a fetch response, cut where records go: one piece more than there are sizes.

    `sizes` are those of the records of all partitions in bytes, in the message's order; None: null records. The
    records' size fields are in the pieces, the records are not; the frame's size field counts both.
    """
    partitions = [partition for topic in message.responses for partition in topic.partitions]
    for partition in partitions:
        partition.records = _RECORDS_MARK
    encoded = bytes(encode_response(correlation_id, message))
    compact = message.flexible_version_q(message.API_VERSION)
    mark_size_length = len(_records_size(len(_RECORDS_MARK), compact))

    pieces = []
    start = Int32.size
    for partition, size in zip(partitions, sizes, strict=True):
        mark = encoded.index(_RECORDS_MARK, start)
        pieces.append(encoded[start : mark - mark_size_length] + _records_size(size, compact))
        start = mark + len(_RECORDS_MARK)
        partition.records = None
    pieces.append(encoded[start:])
    frame_size = sum(map(len, pieces)) + sum(filter(None, sizes))
    pieces[0] = Int32.encode(frame_size) + pieces[0]
    return pieces


def _records_size(size: int | None, compact: bool) -> bytes:
    """The size field in front of records: of four bytes, or a varint of one more than the size (KIP-482)."""
    encoded: bytes
    if compact:
        encoded = UnsignedVarInt32.encode(0 if size is None else size + 1)
    else:
        encoded = Int32.encode(-1 if size is None else size)
    return encoded


class Frame(bytes):
    """A frame that kafka-python's generated decoders read: they check neither where strings and bytes end nor how
    long a varint is, and copy all that follows for each struct that has tagged fields.

    They take single bytes for varints, slices for all else of variable length, and unpack the rest from the buffer,
    where `struct` checks bounds.
    """

    # A varint of 32 bits continues for four bytes at most.
    CONTINUATIONS = 4
    TAGGED_COPIES_BYTES = 64 * 1024 * 1024

    continuations = 0
    copied_bytes = 0

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int):
            if key >= len(self):
                raise ValueError("it ends early")
            value = bytes.__getitem__(self, key)
            self.continuations = self.continuations + 1 if value >= 0x80 else 0
            if self.continuations > self.CONTINUATIONS:
                raise ValueError(f"the varint that ends behind byte {key} is too long")
            return value
        if key.stop is None:
            self.copied_bytes += len(self) - key.start
            if self.copied_bytes > self.TAGGED_COPIES_BYTES:
                raise ValueError(f"too many tagged fields, up to byte {key.start}")
        elif key.stop > len(self):
            raise ValueError(f"{key.stop - key.start} bytes at byte {key.start} reach behind its end")
        return bytes.__getitem__(self, key)


def _decode(
    message: Any, version: int, data: Frame, position: int, *, compact: bool, tagged: bool
) -> tuple[Any, int]:
    """Message and the position behind it, which `message.decode` does not tell."""
    decode = message._struct.compiled_decode_from(version, compact=compact, tagged=tagged, data_class=message)
    decoded: tuple[Any, int] = decode(data, position)
    return decoded


class _Nullness(NamedTuple):
    """What may not be null of a field whose type could say that it is."""

    field: str
    nullable: bool
    strings: bool
    within: tuple[_Nullness, ...]

    def check(self, message: Message) -> None:
        value = getattr(message, self.field)
        if value is None:
            if not self.nullable:
                raise ValueError(f"{self.field} is null")
        elif self.strings:
            if None in value:
                raise ValueError(f"an element of {self.field} is null")
        elif self.within:
            for element in value:
                for rule in self.within:
                    rule.check(element)


@cache
def _nullness(request_class: Any, version: int) -> tuple[_Nullness, ...]:
    return tuple(_nullness_of(request_class._struct, version))


def _nullness_of(schema: Any, version: int) -> Iterator[_Nullness]:
    for field in schema.untagged_fields(version):
        nullable = field.nullable_for_version_q(version)
        if field.is_struct_array():
            yield _Nullness(field.name, nullable, False, tuple(_nullness_of(field.array_of, version)))
        elif field.is_array():
            yield _Nullness(field.name, nullable, field.array_of.type_str == "string", ())
        elif field.type_str in {"string", "bytes"} and not nullable:
            yield _Nullness(field.name, nullable, False, ())
