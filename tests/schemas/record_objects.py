"""JSON lines of records, and the objects of keys and values in them, made one at a time from decoded messages."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from functools import cache
from random import Random
from typing import Any

import kafkafmt as kf
from _kafkafmt.json.record_lines import RecordLines
from kafkafmt.cli import rows as row_format
from kafkafmt.errors import InvalidRecordError
from kafkafmt.records.decoding import locate
from kafkafmt.records.runs import whole_batches
from kafkafmt.schemas import (
    CONTROL_RECORDS,
    GROUP_RECORDS,
    METADATA_RECORDS,
    REMOTE_LOG_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
    Message,
    RecordType,
)
from kafkafmt.schemas.cursor import Cursor, InvalidBytes, read_unsigned_varint
from kafkafmt.schemas.json_programs import topic_records
from schemas.vectors import vectors

COORDINATORS = {
    "__consumer_offsets": GROUP_RECORDS,
    "__transaction_state": TRANSACTION_RECORDS,
    "__share_group_state": SHARE_RECORDS,
}
FRAMED = {"__cluster_metadata": METADATA_RECORDS, "__remote_log_metadata": REMOTE_LOG_RECORDS}
TOPICS = {**COORDINATORS, **FRAMED}
SOURCE = {"path": "log", "topic": "t", "partition": 0}
TIME = 1_700_000_000_000
Bytes = bytes | None
Pair = tuple[Bytes, Bytes]
Object = dict[str, Any] | None


def lines_of(data: bytes, topic: str | None = None, **selection: int) -> list[bytes]:
    writer = RecordLines(json.dumps(SOURCE)[:-1].encode(), None if topic is None else topic_records(topic))
    located = locate(whole_batches(data), verify=True, limit=1 << 24)
    found, number = [], 0
    while number < len(located):
        lines, count, number = writer.write(located, number, **selection)
        assert lines.tobytes().count(b"\n") == count
        found += lines.tobytes().splitlines(keepends=True)
    return found


def expected_lines(data: bytes) -> list[bytes]:
    rows = [
        row_format.record_row(SOURCE, batch, record, None)
        for batch in kf.MemoryRecords(data).batches()
        for record in batch
    ]
    return [json.dumps(row_format.to_json(row)).encode() + b"\n" for row in rows]


def batch_of(pairs: list[Pair], *, is_control: bool = False) -> bytes:
    options: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0} if is_control else {}
    builder = kf.RecordBatchBuilder(is_control=is_control, is_transactional=is_control, **options)
    for key, value in pairs:
        builder.append(TIME, key, value)
    return builder.build()


def assert_objects(topic: str, pairs: list[Pair], *, is_control: bool = False) -> None:
    found = [json.loads(line) for line in lines_of(batch_of(pairs, is_control=is_control), topic)]
    assert len(found) == len(pairs)
    for row, (key, value) in zip(found, pairs, strict=True):
        for part in (row["key"], row["value"]):
            if part is not None and "error" in part:
                assert ", at byte " in part["error"]
                part["error"] = True
        assert (row["key"], row["value"]) == record_objects(topic, key, value, is_control=is_control)


def varint(number: int) -> bytes:
    return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)


@cache
def bytes_of(message: type[Message], version: int) -> list[bytes]:
    """What Kafka wrote as messages of a class and version."""
    return [one.data for one in vectors() if (one.message, one.version) == (message, version)]


def record_pairs(topic: str, random: Random) -> Iterator[Pair]:
    """A record of every type and version of a topic."""
    for kind in TOPICS[topic].values():
        for layout in filter(None, (kind.value, kind.early_value)):
            for version in range(layout.SCHEMA.versions.first, layout.SCHEMA.versions.last + 1):
                body = random.choice(bytes_of(layout, version))
                if kind.key is None:
                    yield None, varint(1) + varint(kind.api_key) + varint(version) + body
                else:
                    key = random.choice(bytes_of(kind.key, 0))
                    yield struct.pack(">h", kind.api_key) + key, struct.pack(">h", version) + body


def record_objects(
    topic: str, key: Bytes, value: Bytes, *, is_control: bool = False
) -> tuple[Object, Object]:
    """Return the objects of a record. An `error` in them is True."""
    if is_control:
        kind = None if key is None or len(key) < 4 else CONTROL_RECORDS.get(_int16(key, 2))
        return _control_key(key, kind), _control_value(value, kind)
    if topic in FRAMED:
        return None if key is None else _raw(key), _framed_value(FRAMED[topic], value)
    kind = None if key is None or len(key) < 2 else COORDINATORS[topic].get(_int16(key, 0))
    return _coordinator_key(key, kind), _versioned_value(value, kind, 2)


def _coordinator_key(key: Bytes, kind: RecordType | None) -> Object:
    if key is None or len(key) < 2:
        return None if key is None else _raw(key, error=True)
    found: dict[str, Any] = {"type": _int16(key, 0)}
    if kind is None or kind.key is None:
        return found | _raw(key)
    return found | {"name": kind.key.SCHEMA.name} | _message((kind.key,), 0, key, 2)


def _control_key(key: Bytes, kind: RecordType | None) -> Object:
    if key is None or len(key) < 2:
        return None if key is None else _raw(key, error=True)
    version = {"version": _int16(key, 0)}
    if len(key) < 4:
        return version | _raw(key, error=True)
    found = {"type": _int16(key, 2), **version}
    if kind is None or kind.key is None:
        return found | _raw(key)
    messages = (kind.key,) if version["version"] == 0 else ()
    return found | {"name": kind.key.SCHEMA.name} | _message(messages, 0, key, 2)


def _control_value(value: Bytes, kind: RecordType | None) -> Object:
    is_marker = kind is not None and kind.name in {"Abort", "Commit"}
    return _versioned_value(value, kind, 2 if is_marker else 0)


def _versioned_value(value: Bytes, kind: RecordType | None, start: int) -> Object:
    if value is None or len(value) < 2:
        return None if value is None else _raw(value, error=True)
    found: dict[str, Any] = {"version": _int16(value, 0)}
    return found | (_raw(value) if kind is None else _value_message(kind, found["version"], value, start))


def _framed_value(types: Any, value: Bytes) -> Object:
    if value is None:
        return None
    cursor = Cursor(value)
    try:
        frame, number, version = (read_unsigned_varint(cursor) for _ in range(3))
    except InvalidBytes:
        return _raw(value, error=True)
    if frame != 1:
        return _raw(value, error=True)
    found = {"type": _as_int32(number), "version": _as_int32(version)}
    kind = types.get(number)
    return found | (_raw(value) if kind is None else _value_message(kind, version, value, cursor.position))


def _value_message(kind: RecordType, version: int, data: bytes, start: int) -> dict[str, Any]:
    name = {"name": kind.value.SCHEMA.name}
    if version not in kind.value.SCHEMA.versions:
        return name | _raw(data)
    early = () if kind.early_value is None else (kind.early_value,)
    return name | _message((kind.value, *early), version, data, start)


def _message(layouts: tuple[type[Message], ...], version: int, data: bytes, start: int) -> dict[str, Any]:
    for layout in layouts:
        if version in layout.SCHEMA.versions:
            try:
                return {"data": layout.decode(data, version, start).to_json(version)}
            except InvalidRecordError:
                pass
    return _raw(data, error=bool(layouts))


def _raw(data: bytes, *, error: bool = False) -> dict[str, Any]:
    return {"base64": base64.b64encode(data).decode(), **({"error": True} if error else {})}


def _int16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big", signed=True)


def _as_int32(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31
