"""The JSON of a message, as Kafka's generated `JsonConverter` classes and `kafka-dump-log` write it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from kafkafmt._util.uuids import uuid_text
from kafkafmt.schemas.schema import FieldSchema, MessageSchema


def _bytes_text(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


_SCALARS: dict[str, Callable[[Any], str]] = {"uuid": uuid_text, "bytes": _bytes_text}


def message_json(message: object, schema: MessageSchema, version: int) -> dict[str, Any]:
    """Return the fields of a version under Kafka's names.

    Tagged fields that have their default are left out, and so are unknown tagged fields. Raises ValueError if the
    schema lacks the version.
    """
    if version not in schema.versions:
        raise ValueError(f"{schema.name}: expected version {schema.versions}, found {version}")
    return _struct_json(message, schema, schema.fields, version)


def _struct_json(
    struct: object, schema: MessageSchema, fields: tuple[FieldSchema, ...], version: int
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in fields:
        if version in field.versions:
            value = getattr(struct, field.name)
            if version in field.tagged and is_default(value, field):
                continue
            made[field.json_name] = _field_json(value, schema, field, version)
    return made


def is_default(value: Any, field: FieldSchema) -> bool:
    """Whether a field has its default, so that a tagged field need not be written."""
    if field.type == "struct" and not field.array and field.default is not None:
        return value is not None and value == type(value)()
    return bool(value == field.default)


def _field_json(value: Any, schema: MessageSchema, field: FieldSchema, version: int) -> Any:
    if value is None:
        return None
    if field.type == "struct":
        fields = schema.struct(field.struct).fields
        if field.array:
            return [_struct_json(each, schema, fields, version) for each in value]
        return _struct_json(value, schema, fields, version)
    convert = _SCALARS.get(field.type)
    if field.array:
        return [convert(each) for each in value] if convert else list(value)
    return convert(value) if convert else value
