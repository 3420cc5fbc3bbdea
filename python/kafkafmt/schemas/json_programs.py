"""Programs of the kernel that writes records of internal topics as JSON, compiled from the messages' descriptions.

A program is a structure in one version: a row of steps for each of its fields. The kernel `message_programs` runs it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import cache
from typing import Any
from uuid import UUID

import numpy as np

from _kafkafmt.json.message_programs import STEP_DTYPE, STRUCT_DTYPE, FieldKind, MessagePrograms
from _kafkafmt.json.topic_records import TYPE_DTYPE, TopicRecords
from kafkafmt._util.uuids import uuid_text
from kafkafmt.schemas.registry import (
    CONTROL_RECORDS,
    GROUP_RECORDS,
    METADATA_RECORDS,
    REMOTE_LOG_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
    RecordType,
)
from kafkafmt.schemas.schema import FieldSchema, MessageSchema

_FRAMED_TOPICS = {
    "__cluster_metadata": METADATA_RECORDS,
    "__remote_log_metadata": REMOTE_LOG_RECORDS,
}
_TOPICS = {
    "__consumer_offsets": GROUP_RECORDS,
    "__transaction_state": TRANSACTION_RECORDS,
    "__share_group_state": SHARE_RECORDS,
    **_FRAMED_TOPICS,
}
_NONE = -1
_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}


@cache
def topic_records(topic: str) -> TopicRecords | None:
    """Return what decodes the records of an internal topic; None for a topic whose records have no schema."""
    types = _TOPICS.get(topic)
    if types is None:
        return None
    compiler = _Compiler()
    rows, control_rows = compiler.type_rows(types), compiler.type_rows(CONTROL_RECORDS)
    programs = MessagePrograms(
        np.array(compiler.steps, STEP_DTYPE), np.array(compiler.structs, STRUCT_DTYPE), bytes(compiler.texts)
    )
    return TopicRecords(programs, rows, control_rows, bytes(compiler.texts), topic in _FRAMED_TOPICS)


class _Compiler:
    """Compiles messages. steps, structs, texts: of all programs so far, as the kernel takes them."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, ...]] = []
        self.structs: list[tuple[int, int, int, bool]] = []
        self.texts = bytearray()
        self._places: dict[str, tuple[int, int]] = {}
        self._programs: dict[tuple[int, str | None, int], int] = {}

    def type_rows(self, types: Mapping[int, RecordType]) -> np.ndarray[Any, Any]:
        """Return the table of record types, by number."""
        rows = np.zeros(max(types) + 1, TYPE_DTYPE)
        for number, kind in types.items():
            rows[number] = self._type_row(kind)
        return rows

    def _type_row(self, kind: RecordType) -> tuple[int, ...]:
        key, value = None if kind.key is None else kind.key.SCHEMA, kind.value.SCHEMA
        versions = range(value.versions.first, value.versions.last + 1)
        key_program = _NONE if key is None else self._append_message(key, key.versions.first)
        early = None if kind.early_value is None else kind.early_value.SCHEMA
        for version in versions:  # first, so that the programs of the versions follow each other
            self._append_structs(value, version)
        programs = [self._append(value, value.fields, version) for version in versions]
        return (
            key_program,
            *self._text("" if key is None else json.dumps(key.name)),
            *self._text(json.dumps(value.name)),
            versions.start,
            len(versions),
            programs[0],
            _NONE if early is None else self._append_message(early, early.versions.first),
            _begins_with_version(value),
        )

    def _append_message(self, schema: MessageSchema, version: int) -> int:
        self._append_structs(schema, version)
        return self._append(schema, schema.fields, version)

    def _append_structs(self, schema: MessageSchema, version: int) -> None:
        """Compile the structures in a message. Each refers only to those before it."""
        for struct in schema.structs:
            self._programs[id(schema), struct.name, version] = self._append(schema, struct.fields, version)

    def _append(self, schema: MessageSchema, fields: tuple[FieldSchema, ...], version: int) -> int:
        placed = _placed(fields, version)
        tagged = [field for field in fields if version in field.versions and version in field.tagged]
        is_flexible = version in schema.flexible
        self.structs.append((len(self.steps), len(placed), len(tagged), is_flexible))
        for field in (*placed, *tagged):
            self.steps.append(self._step(schema, field, version))
        return len(self.structs) - 1

    def _step(self, schema: MessageSchema, field: FieldSchema, version: int) -> tuple[int, ...]:
        is_tagged = version in field.tagged
        struct = _NONE if field.struct is None else self._programs[id(schema), field.struct, version]
        return (
            FieldKind[field.type.upper()],
            field.array,
            version in field.nullable,
            struct,
            _least_bytes(schema, field, version),
            field.tag if is_tagged and field.tag is not None else _NONE,
            *self._text(f", {json.dumps(field.json_name)}: "),
            *self._text(_default_json(schema, field, version) if is_tagged else ""),
        )

    def _text(self, text: str) -> tuple[int, int]:
        """Return the place of a text among all texts, and its size."""
        if text not in self._places:
            self._places[text] = (len(self.texts), len(text))
            self.texts += text.encode("ascii")
        return self._places[text]


def _begins_with_version(schema: MessageSchema) -> bool:
    """Whether a control record has its version as its first field, not before the message."""
    return bool(schema.fields) and schema.fields[0].json_name.lower() == "version"


def _default_json(schema: MessageSchema, field: FieldSchema, version: int) -> str:
    """Return the JSON of the default of a field. In a structure of defaults, tagged fields are left out."""
    if field.default is None:
        return "null"
    if field.array:
        return "[]"
    if field.type == "struct":
        placed = _placed(schema.struct(field.struct).fields, version)
        members = (f"{json.dumps(one.json_name)}: {_default_json(schema, one, version)}" for one in placed)
        return "{" + ", ".join(members) + "}"
    if isinstance(field.default, UUID):
        return json.dumps(uuid_text(field.default))
    if isinstance(field.default, bytes):
        return json.dumps(base64.b64encode(field.default).decode("ascii"))
    return json.dumps(field.default)


def _placed(fields: tuple[FieldSchema, ...], version: int) -> list[FieldSchema]:
    """Return the fields of a version that have a place, in the order of the bytes."""
    return [field for field in fields if version in field.versions and version not in field.tagged]


def _least_bytes(schema: MessageSchema, field: FieldSchema, version: int) -> int:
    """Return the least bytes of a value of the field, or of an element of an array."""
    if field.type in _SIZES:
        return _SIZES[field.type]
    is_flexible = version in schema.flexible
    if field.type in ("string", "bytes"):
        return 1 if is_flexible else 2 if field.type == "string" else 4
    placed = _placed(schema.struct(field.struct).fields, version)
    return max(1, is_flexible + sum(_least_bytes_of_field(schema, one, version) for one in placed))


def _least_bytes_of_field(schema: MessageSchema, field: FieldSchema, version: int) -> int:
    if field.array:
        return 1 if version in schema.flexible else 4
    if field.type == "struct" and version in field.nullable:
        return 1
    return _least_bytes(schema, field, version)
