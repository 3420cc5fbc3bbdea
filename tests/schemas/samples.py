"""Values for messages of every type and version, as the JSON that Kafka's converters read."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import cache
from random import Random
from types import ModuleType
from typing import Any

from kafkafmt.schemas import (
    FieldSchema,
    Message,
    MessageSchema,
    clients,
    group_coordinator,
    metadata,
    raft,
    share_coordinator,
    storage,
    transaction_coordinator,
)

MODULES: tuple[ModuleType, ...] = (
    clients,
    group_coordinator,
    metadata,
    raft,
    share_coordinator,
    storage,
    transaction_coordinator,
)
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16, "uint32": 32}
TEXTS = ("", "a", "orders", "Cádiz", "日本語", "🧭 \U0010ffff", '\0\t"\\', "x" * 126, "x" * 127, "ü" * 400)
LENGTHS = (0, 1, 2, 3)
LARGE_LENGTH = 300  # its compact length takes two bytes
UNKNOWN_TAGS = {"9": b"nine", "200": b"", "70000": bytes(range(200))}  # above all that the schemas know


@cache
def message_classes() -> dict[str, type[Message]]:
    """Every message, by the name of its class."""
    return {
        name: made
        for module in MODULES
        for name, made in vars(module).items()
        if isinstance(made, type) and issubclass(made, Message) and made is not Message
    }


def messages_and_versions() -> Iterator[tuple[type[Message], int]]:
    for made in message_classes().values():
        for version in range(made.SCHEMA.versions.first, made.SCHEMA.versions.last + 1):
            yield made, version


def random_json(schema: MessageSchema, version: int, random: Random) -> dict[str, Any]:
    """The JSON of a message; tagged fields are there half of the time."""
    return _struct(schema, schema.fields, version, random)


def _struct(
    schema: MessageSchema, fields: tuple[FieldSchema, ...], version: int, random: Random
) -> dict[str, Any]:
    return {
        field.json_name: _value(schema, field, version, random)
        for field in fields
        if version in field.versions and (version not in field.tagged or random.random() < 0.5)
    }


def _value(schema: MessageSchema, field: FieldSchema, version: int, random: Random) -> Any:
    if version in field.nullable and random.random() < 0.3:
        return None
    if not field.array:
        return _element(schema, field, version, random)
    is_large = field.type != "struct" and random.random() < 0.1
    length = LARGE_LENGTH if is_large else random.choice(LENGTHS)
    return [_element(schema, field, version, random) for _ in range(length)]


def _element(schema: MessageSchema, field: FieldSchema, version: int, random: Random) -> Any:
    if field.type == "struct":
        return _struct(schema, schema.struct(field.struct).fields, version, random)
    if field.type == "bool":
        return random.random() < 0.5
    if field.type == "float64":
        return random.choice((0.0, -1.5, 1e300, 5e-324, random.random()))
    if field.type == "string":
        return random.choice(TEXTS)
    if field.type == "bytes":
        return base64.b64encode(random.randbytes(random.choice((0, 1, 20, 200)))).decode()
    if field.type == "uuid":
        value = random.choice((bytes(16), bytes(15) + b"\1", random.randbytes(16)))
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    return _integer(field.type, random)


def _integer(kind: str, random: Random) -> int:
    bits = BITS[kind]
    low, high = (0, (1 << bits) - 1) if kind.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return random.choice((low, high, 0, 1, max(low, -1), random.randint(low, high)))
