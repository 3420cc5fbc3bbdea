"""Mutation of messages field by field, so that what it makes is a message more often than not.

A message is decoded, changed in some places, and encoded again. A number becomes one at an edge, an array loses,
repeats or swaps elements, a text or bytes are mutated or become null. The mutators return None for bytes that they
cannot decode, and for a message that cannot be encoded after the change.
"""

from __future__ import annotations

import dataclasses
import random
import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.data_container import DataContainer
from kafka.protocol.producer import ProduceResponse

from fuzz import gateway, response, schemas
from fuzz.mutation import EDGES, Mutate
from kafkafmt.errors import KafkaFormatError
from kafkafmt.server.errors import RequestError
from kafkafmt.server.wire import SUPPORTED, decode_request
from kernels.wire_messages import failure_of, produced_by_kernel
from server.messages import frame

MOST_ELEMENTS = 50  # of an array that repeats
_NUMBERS = [
    value - (1 << 8 * size) if value >> (8 * size - 1) else value for size in EDGES for value in EDGES[size]
]
_UUIDS = (UUID(int=0), UUID(int=1), UUID(int=2**128 - 1))
# What the encoders raise for a value that a field cannot hold.
_CANNOT_ENCODE = (
    struct.error,
    ValueError,
    TypeError,
    OverflowError,
    AttributeError,
    AssertionError,
    KeyError,
)

MessageMutator = Callable[[bytes, random.Random, Mutate], "bytes | None"]


def changed(value: Any, rng: random.Random, mutate: Mutate) -> Any:
    """Return a message or a value with one change. Messages of kafka-python are changed in place."""
    if isinstance(value, DataContainer):
        names = [one.name for one in value._struct._fields if one.for_version_q(value.version)]
        if names:
            name = rng.choice(names)
            setattr(value, name, changed(getattr(value, name), rng, mutate))
        return value
    if dataclasses.is_dataclass(value):
        names = [one.name for one in dataclasses.fields(value)]
        name = rng.choice(names)
        return dataclasses.replace(value, **{name: changed(getattr(value, name), rng, mutate)})  # type: ignore[type-var]
    if isinstance(value, list | tuple):
        return type(value)(_changed_array(list(value), rng, mutate))
    return _changed_scalar(value, rng, mutate)


def _changed_array(array: list[Any], rng: random.Random, mutate: Mutate) -> list[Any]:
    kind = rng.randrange(10)
    if not array or kind == 0:
        return []
    chosen = rng.randrange(len(array))
    if kind == 1:
        del array[chosen]
    elif kind == 2:
        array.insert(rng.randint(0, len(array)), array[chosen])
    elif kind == 3:
        array = (array * rng.choice((2, MOST_ELEMENTS)))[:MOST_ELEMENTS]
    elif kind == 4:
        rng.shuffle(array)
    else:
        array[chosen] = changed(array[chosen], rng, mutate)
    return array


def _changed_scalar(value: Any, rng: random.Random, mutate: Mutate) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((rng.choice(_NUMBERS), value + 1, value - 1, value ^ 1 << rng.randrange(63)))
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, 1e308, float("inf"), float("nan")))
    if isinstance(value, UUID):
        return rng.choice(_UUIDS)
    if value is None:
        return rng.choice(("", b"", "a", b"a", [], 0))
    if rng.random() < 0.1:
        return None
    if isinstance(value, str):
        return mutate(value.encode()).decode("utf-8", "replace")
    return mutate(bytes(value)) if isinstance(value, bytes | bytearray | memoryview) else value


def _times(rng: random.Random) -> range:
    return range(rng.choice((1, 1, 2, 4)))


def request(data: bytes, rng: random.Random, mutate: Mutate) -> bytes | None:
    """A request's frame, sometimes at another version."""
    try:
        body = decode_request(data, "127.0.0.1").body
        if body.API_KEY in SUPPORTED and rng.random() < 0.1:
            body.API_VERSION = rng.choice(SUPPORTED[body.API_KEY])
        for _ in _times(rng):
            changed(body, rng, mutate)
        return frame(body)
    except (RequestError, *_CANNOT_ENCODE):
        return None


def any_response(data: bytes, rng: random.Random, mutate: Mutate) -> bytes | None:
    """A response to Produce or Fetch, behind the options of `fuzz.response`."""
    ours, _, version = response.CASES[data[0] % len(response.CASES) if data else 0]
    made = ProduceResponse if ours is produced_by_kernel else FetchResponse
    content = data[response.OPTIONS_LENGTH :]
    if failure_of(ours, content, version) is not None:
        return None
    body = _changed_response(made, content, version, rng, mutate)
    return None if body is None else data[: response.OPTIONS_LENGTH] + body


def _changed_response(
    made: type[ApiMessage], content: bytes, version: int, rng: random.Random, mutate: Mutate
) -> bytes | None:
    try:
        message = made.decode(content, version=version, header=True)
        for _ in _times(rng):
            changed(message, rng, mutate)
        return bytes(message.encode(header=True))
    except (MemoryError, IndexError, *_CANNOT_ENCODE):
        return None


def through_gateway(data: bytes, rng: random.Random, mutate: Mutate) -> bytes | None:
    """A request or a response behind the options of `fuzz.gateway`."""
    options = gateway.Options(data)
    if rng.random() < 0.1:
        return None
    if options.is_response:
        body = _changed_response(FetchResponse, options.content, options.version, rng, mutate)
    else:
        body = request(options.content, rng, mutate)
    return None if body is None else data[: gateway.OPTIONS_LENGTH] + body


def any_schema(data: bytes, rng: random.Random, mutate: Mutate) -> bytes | None:
    """A message of the schemas, behind the options of `fuzz.schemas`."""
    options = data[: schemas.OPTIONS_LENGTH].ljust(schemas.OPTIONS_LENGTH, b"\0")
    made, version = schemas.CASES[int.from_bytes(options[:2], "big") % len(schemas.CASES)]
    try:
        message = made.decode(data[schemas.OPTIONS_LENGTH :], version)
        for _ in _times(rng):
            message = changed(message, rng, mutate)
        return options + message.encode(version)
    except (KafkaFormatError, *_CANNOT_ENCODE):
        return None


MUTATORS: dict[str, MessageMutator] = {
    "request": request,
    "response": any_response,
    "gateway": through_gateway,
    "schemas": any_schema,
}
