"""Messages of any API and version with something in every field, made from kafka-python's schemas."""

from __future__ import annotations

import uuid
from typing import Any

from kafka.protocol.api_header import RequestHeader
from kafka.protocol.api_message import ApiMessage

CORRELATION_ID, CLIENT_ID = 77, "a client"
VALUES: dict[str, Any] = {
    "bool": True,
    "int8": -2,
    "int16": 300,
    "int32": -70_000,
    "int64": 1 << 40,
    "uuid": uuid.UUID(int=5),
    "string": "a name, ünlike others",
    "bytes": b"\xff\x00" * 40,
    "records": b"\x80" * 600,
    "bitfield": {3, 5},
}


def request_class(api_key: int) -> Any:
    return next(
        message
        for message in ApiMessage.__subclasses__()
        if message.is_request() and api_key == message.API_KEY
    )


def response_class(api_key: int) -> Any:
    """That of all versions: what is registered may be the class of one."""
    header = RequestHeader(request_api_key=api_key, request_api_version=0)
    return header.get_response_class()[None]


def filled(message_class: Any, version: int) -> Any:
    """A message whose fields all have values that are not their defaults, arrays of two elements."""
    return message_class(version=version, **_filled_fields(message_class._struct, version))


def _filled_fields(schema: Any, version: int) -> dict[str, Any]:
    fields = {}
    for field in schema.untagged_fields(version):
        if field.is_struct_array():
            inner = field.array_of
            element = inner.data_class(version=version, **_filled_fields(inner, version))
            fields[field.name] = [element, element]
        elif field.is_array():
            fields[field.name] = [VALUES[field.array_of.type_str]] * 2
        else:
            fields[field.name] = VALUES[field.type_str]
    return fields


def frame(request: Any) -> bytes:
    """A request as it follows the size field on the wire."""
    request.with_header(CORRELATION_ID, CLIENT_ID)
    return bytes(request.encode(header=True))
