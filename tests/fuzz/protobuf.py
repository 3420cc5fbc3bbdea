"""Target: Protobuf payloads to Arrow columns.

Input: a byte that chooses a schema, and a payload. Whatever they are:

- the payload is an error or the message that google.protobuf reads;
- the payloads beside it are right.
"""

from __future__ import annotations

from functools import lru_cache
from random import Random

from decode.protobuf_messages import (
    assert_agrees,
    fill,
    has_long_varint,
    message_class,
    random_schema,
    schema_of,
)
from decode.rows import payloads
from kafkafmt.decode import Schema
from kafkafmt.decode.protobuf import FORMAT

OPTIONS_LENGTH = 1


def check(data: bytes) -> None:
    schema = _schema(data[0] if data else 0)
    kind, neighbour = message_class(schema), _message(schema)
    payload = data[OPTIONS_LENGTH:]
    result = FORMAT.decoder(schema, schema).decode(payloads([neighbour, payload, neighbour]))
    result.array.validate(full=True)
    first, found, last = result.array.to_pylist()
    assert repr(first) == repr(last)
    assert_agrees(first, kind.FromString(neighbour))
    assert set(result.errors) <= {1}
    if result.errors:
        assert found is None
    elif not has_long_varint(payload):
        assert_agrees(found, kind.FromString(payload))


@lru_cache(maxsize=256)
def _schema(number: int) -> Schema:
    return schema_of(random_schema(Random(number), overwrites=False))


@lru_cache(maxsize=256)
def _message(schema: Schema) -> bytes:
    message = message_class(schema)()
    fill(Random(1), message)
    return message.SerializeToString()


def seeds() -> list[bytes]:
    """Return a message of each of some schemas."""
    return [bytes([number]) + _message(_schema(number)) for number in range(64)]
