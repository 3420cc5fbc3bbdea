"""Frames of Kafka's wire protocol: the supported APIs and versions, decoding of requests, encoding of responses.

The messages are those of kafka-python's `kafka.protocol`, which is generated from Kafka's own schemas. A request is
decoded through a `Frame`, which keeps kafka-python's decoder within the frame's bounds: decoding takes time and memory
in proportion to the frame, whatever it contains. The records of a fetch response are not encoded: the response is cut
at their places, so that they can go from file to socket.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_header import RequestHeader, ResponseClassRegistry, ResponseHeader
from kafka.protocol.api_key import ApiKey
from kafka.protocol.schemas.fields.codecs import Int32, UnsignedVarInt32
from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer

from _kafkafmt.server import fetching
from kafkafmt.server.errors import MalformedRequestError, UnsupportedRequestError
from kafkafmt.server.request import Message, Request

# By API key. This includes the oldest versions, which Kafka 4.0 has dropped: kafka-python keeps their layouts.
_SERVED = {
    request.API_KEY: request
    for request in (
        producer.ProduceRequest,
        consumer.FetchRequest,
        consumer.ListOffsetsRequest,
        metadata.MetadataRequest,
        consumer.OffsetCommitRequest,
        consumer.OffsetFetchRequest,
        metadata.FindCoordinatorRequest,
        consumer.JoinGroupRequest,
        consumer.HeartbeatRequest,
        consumer.LeaveGroupRequest,
        consumer.SyncGroupRequest,
        admin.DescribeGroupsRequest,
        admin.ListGroupsRequest,
        sasl.SaslHandshakeRequest,
        metadata.ApiVersionsRequest,
        admin.CreateTopicsRequest,
        producer.InitProducerIdRequest,
        consumer.OffsetForLeaderEpochRequest,
        admin.DescribeConfigsRequest,
        admin.AlterConfigsRequest,
        sasl.SaslAuthenticateRequest,
        admin.DeleteGroupsRequest,
        admin.IncrementalAlterConfigsRequest,
        consumer.OffsetDeleteRequest,
        admin.DescribeClusterRequest,
    )
}
# Requests that are decoded only where they are translated for other brokers.
_TRANSLATED = {
    request.API_KEY: request
    for request in (
        admin.DeleteTopicsRequest,
        admin.DescribeAclsRequest,
        admin.CreateAclsRequest,
        admin.DeleteAclsRequest,
        admin.AlterReplicaLogDirsRequest,
        admin.DescribeLogDirsRequest,
        admin.DeleteRecordsRequest,
        admin.DescribeProducersRequest,
        producer.WriteTxnMarkersRequest,
        admin.DescribeTransactionsRequest,
        admin.ListTransactionsRequest,
    )
}
_REQUESTS = {**_SERVED, **_TRANSLATED}
# The APIs that are served from a log directory, and their versions.
SUPPORTED: dict[int, range] = {key: range(request.max_version + 1) for key, request in _SERVED.items()}

# The bytes of the API key and version at the start of a request.
HEAD_BYTES = 4
# Most responses are smaller.
_FIRST_BUFFER_BYTES = 1024
# Encoding this many structs of kafka-python takes some milliseconds.
_MANY_STRUCTS = 1000

# A placeholder for a partition's records while a fetch response is encoded. It is random: no message contains it.
_RECORDS_MARK = os.urandom(16)


def api_name(api_key: int) -> str:
    """Return Kafka's name of an API, such as `Fetch`; for an unknown key `API <number>`."""
    try:
        name: str = ApiKey(api_key).name
    except ValueError:
        return f"API {api_key}"
    return name


def api_of(head: bytes) -> tuple[int, int]:
    """Return the API and the version of a request from the start of its frame. Raises MalformedRequestError."""
    if len(head) < HEAD_BYTES:
        raise MalformedRequestError(f"a request of {len(head)} bytes: no room for API and version")
    api_key, version = struct.unpack_from(">hh", head)
    return int(api_key), int(version)


def request_class_of(head: bytes) -> tuple[Any, int, bool]:
    """Return the class and version of a request from the start of its frame, and whether that version is known.

    Only for ApiVersions may it be unknown. Raises MalformedRequestError and UnsupportedRequestError.
    """
    api_key, version = api_of(head)
    request_class = _REQUESTS.get(api_key)
    if request_class is None:
        raise UnsupportedRequestError(f"{api_name(api_key)} v{version}: this API is not served")
    versions = range(request_class.max_version + 1)
    known = version in versions
    if not known and not (request_class is metadata.ApiVersionsRequest and version > 0):
        name = f"{api_name(api_key)} v{version}"
        raise UnsupportedRequestError(f"{name}: expected versions 0 to {versions[-1]}")
    return request_class, version, known


def decode_request(frame: bytes | bytearray | memoryview, client_host: str) -> Request:
    """Decode a request from a frame without its size field. A `Frame` is not copied.

    Bytes after the body are ignored, as by a broker: librdkafka leaves some there (librdkafka#5049). An ApiVersions
    request of an unknown later version keeps its version and gets an empty body of version 0, for the answer that
    KIP-511 prescribes. Raises MalformedRequestError and UnsupportedRequestError.
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


def decode_fetch_request(frame: Frame, client_host: str) -> Request | None:
    """Decode a Fetch request by the kernel. Its body has kafka-python's names.

    Returns None for a frame that the kernel does not understand: `decode_request` decodes it, or raises.
    """
    body = fetching.decode_fetch_request(frame)
    if body is None:
        return None
    key, found = int(ApiKey.Fetch), body.correlation_id
    return Request(key, body.version, found, body.client_id, body, client_host, len(frame))


class _EncodeBuffer(EncodeBuffer):  # type: ignore[misc]
    """A buffer that grows in place, by an eighth. kafka-python's own buffer is doubled and copied."""

    def ensure(self, needed: int) -> None:
        missing = self.pos + needed - len(self.buf)
        if missing > 0:
            self.buf.extend(bytes(max(missing, len(self.buf) // 8)))


def encode_response(correlation_id: int, message: Message) -> bytearray:
    """Encode a response as a whole frame, with its size field and header."""
    message.with_header(correlation_id)
    encoded = _encode(message, Int32.size)
    struct.pack_into(">i", encoded, 0, len(encoded) - Int32.size)
    return encoded


def encode_request(request: Request) -> bytearray:
    """Encode a request as a frame without its size field, as `decode_request` takes it."""
    request.body.with_header(request.correlation_id, request.client_id)
    return _encode(request.body, 0)


def encode_request_frame(message: Message, correlation_id: int, client_id: str | None) -> bytearray:
    """Encode a request of kafka-python as a whole frame, with its size field and header."""
    message.with_header(correlation_id, client_id)
    encoded = _encode(message, Int32.size)
    struct.pack_into(">i", encoded, 0, len(encoded) - Int32.size)
    return encoded


def response_class_of(api_key: int, version: int) -> Any:
    """Return kafka-python's class of the responses of an API: that of all versions."""
    found = ResponseClassRegistry.get_response_class(
        RequestHeader(request_api_key=api_key, request_api_version=version)
    )
    return found[None]


def decode_response(frame: bytes | memoryview, api_key: int, version: int) -> Message:
    """Decode a response from a frame without its size field. Raises MalformedRequestError."""
    data = Frame(frame)
    response_class = response_class_of(api_key, version)
    # The header of ApiVersions is never flexible, so that brokers of any age can answer (KIP-511).
    flexible = response_class.flexible_version_q(version)
    position = Int32.size
    try:
        if flexible and api_key != ApiKey.ApiVersions:
            _, position = _decode(ResponseHeader, 1, data, 0, compact=False, tagged=True)
        decoded, _ = _decode(response_class, version, data, position, compact=flexible, tagged=flexible)
    except (ValueError, AssertionError, struct.error) as error:
        raise MalformedRequestError(f"response to {api_name(api_key)} v{version}: {error}") from error
    return decoded


def _encode(message: Message, start: int) -> bytearray:
    """Encode a message that has its header, after `start` zero bytes.

    `message.encode` is not used: each thread would keep a buffer of the size of its largest message.
    """
    version = message.API_VERSION
    flexible = message.flexible_version_q(version)
    out = _EncodeBuffer(_FIRST_BUFFER_BYTES)
    out.pos = start
    message.encode_header_into(out, flexible=flexible)
    message._struct.compiled_encode_into(version, compact=flexible, tagged=flexible)(message, out)
    encoded: bytearray = out.buf
    del encoded[out.pos :]
    return encoded


async def encode_response_yielding(correlation_id: int, message: Message) -> bytes | bytearray:
    """Call `encode_response`; in a thread if it takes long, so that other tasks can run meanwhile.

    A response that another process has encoded is returned unchanged.
    """
    if isinstance(message, (bytes, bytearray)):
        return message
    if next(islice(all_structs(message), _MANY_STRUCTS, None), None) is None:
        return encode_response(correlation_id, message)
    return await asyncio.to_thread(encode_response, correlation_id, message)


def all_structs(message: Message) -> Iterator[Message]:
    """Yield a message and all structs in its arrays, recursively."""
    return _structs(message, message._struct, message.API_VERSION)


def _structs(message: Message, schema: Any, version: int) -> Iterator[Message]:
    yield message
    for field in schema.untagged_fields(version):
        if field.is_struct_array():
            for element in getattr(message, field.name) or ():
                yield from _structs(element, field.array_of, version)


def encode_fetch_response(correlation_id: int, message: Message, sizes: Sequence[int | None]) -> list[bytes]:
    """Encode a fetch response as a frame that is cut where records belong: one piece more than there are sizes.

    sizes: the bytes of records of all partitions, in the message's order; None: null records. The pieces contain the
    size fields of the records, but not the records; the frame's size field counts both.
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
    """Encode the size field before records: four bytes, or a varint of one more than the size (KIP-482)."""
    encoded: bytes
    if compact:
        encoded = UnsignedVarInt32.encode(0 if size is None else size + 1)
    else:
        encoded = Int32.encode(-1 if size is None else size)
    return encoded


class Frame(bytes):
    """A frame for kafka-python's generated decoders, with the checks that they lack. Raises ValueError.

    The decoders do not check the ends of strings and bytes, or the length of a varint. For each struct with tagged
    fields they copy the rest of the frame. They index single bytes for varints, slice for everything else of variable
    length, and unpack the rest from the buffer, where `struct` checks bounds.
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
                raise ValueError(f"the varint that continues after byte {key} is too long")
            return value
        if key.stop is None:
            self.copied_bytes += len(self) - key.start
            if self.copied_bytes > self.TAGGED_COPIES_BYTES:
                raise ValueError(f"too many tagged fields, up to byte {key.start}")
        elif key.stop > len(self):
            raise ValueError(f"{key.stop - key.start} bytes at byte {key.start} reach beyond its end")
        return bytes.__getitem__(self, key)


def _decode(
    message: Any, version: int, data: Frame, position: int, *, compact: bool, tagged: bool
) -> tuple[Any, int]:
    """Return the message and the position after it, which `message.decode` does not return."""
    decode = message._struct.compiled_decode_from(version, compact=compact, tagged=tagged, data_class=message)
    decoded: tuple[Any, int] = decode(data, position)
    return decoded


class _Nullness(NamedTuple):
    """A check for null. strings: the field is an array of strings, none of them null. within: of its structs."""

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
