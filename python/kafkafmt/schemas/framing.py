"""Records of internal topics: what comes before a message in a key and in a value, and which message it is.

| topic | key | value |
|---|---|---|
| `__consumer_offsets`, `__transaction_state`, `__share_group_state` | int16 type, message | int16 version, message |
| `__cluster_metadata`, `__remote_log_metadata` | none | varint frame version, varint type, varint version, message |
| control records of any topic | int16 version, int16 type | a message that begins with its int16 version |

A type or a version that the schemas lack is returned as `RawMessage`: a newer Kafka may have written it. Bytes that
do not follow the schema of their type and version raise `InvalidRecordError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafkafmt.errors import InvalidRecordError
from kafkafmt.schemas.clients import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kafkafmt.schemas.cursor import Cursor, InvalidBytes, read_int16, read_unsigned_varint
from kafkafmt.schemas.decoder import invalid
from kafkafmt.schemas.message import M, Message
from kafkafmt.schemas.registry import (
    CONTROL_RECORDS,
    GROUP_RECORDS,
    METADATA_RECORDS,
    REMOTE_LOG_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
    RecordType,
)

_FRAME_VERSION = 1
_INT16_BYTES = 2


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A message whose type or version the schemas lack. data: its bytes after the numbers that precede it."""

    api_key: int
    version: int
    data: bytes


@dataclass(frozen=True, slots=True)
class DecodedRecord:
    """A decoded record of an internal topic.

    type_name: the name of the record type, as in `RecordType.name`. None if the schemas lack the type.
    api_key: the number of the record type.
    key: None if the records of the topic have their type in the value.
    version: the version of the value. None for a tombstone.
    value: None for a tombstone.
    """

    type_name: str | None
    api_key: int
    key: Message | RawMessage | None
    version: int | None
    value: Message | RawMessage | None


def decode_group_record(key: bytes, value: bytes | None) -> DecodedRecord:
    """Decode a record of `__consumer_offsets`: offsets, and groups of every kind. Raises InvalidRecordError.

    >>> record = decode_group_record(b"\\0\\1" b"\\0\\1g" b"\\0\\1t" b"\\0\\0\\0\\7", None)
    >>> record.type_name, record.key, record.value
    ('OffsetCommit', OffsetCommitKey(group='g', topic='t', partition=7), None)
    """
    return _decode_coordinator_record(GROUP_RECORDS, key, value)


def decode_transaction_record(key: bytes, value: bytes | None) -> DecodedRecord:
    """Decode a record of `__transaction_state`. Raises InvalidRecordError."""
    return _decode_coordinator_record(TRANSACTION_RECORDS, key, value)


def decode_share_record(key: bytes, value: bytes | None) -> DecodedRecord:
    """Decode a record of `__share_group_state` (KIP-932). Raises InvalidRecordError."""
    return _decode_coordinator_record(SHARE_RECORDS, key, value)


def decode_metadata_record(value: bytes) -> DecodedRecord:
    """Decode a record of `__cluster_metadata` or of its snapshots (KIP-631). Raises InvalidRecordError."""
    return _decode_framed_record(METADATA_RECORDS, value, "metadata record")


def decode_remote_log_record(value: bytes) -> DecodedRecord:
    """Decode a record of `__remote_log_metadata` (KIP-405). Raises InvalidRecordError."""
    return _decode_framed_record(REMOTE_LOG_RECORDS, value, "remote log metadata record")


def decode_control_record(key: bytes, value: bytes) -> DecodedRecord:
    """Decode a control record: the end of a transaction, or a record of the metadata quorum (KIP-595, KIP-853).

    Raises InvalidRecordError.
    """
    key_version = _read_int16(key, 0, "version of a control record's key")
    api_key = _read_int16(key, _INT16_BYTES, "type of a control record")
    kind = CONTROL_RECORDS.get(api_key)
    version = _read_int16(value, 0, "version of a control record")
    if kind is None or kind.key is None:
        raw_key = RawMessage(api_key, key_version, key[2 * _INT16_BYTES :])
        raw = RawMessage(api_key, version, value[_INT16_BYTES:])
        return DecodedRecord(None, api_key, raw_key, version, raw)
    decoded_key = _decode(kind.key, api_key, key_version, key, _INT16_BYTES)
    # A transaction marker has its version before the message; the others have it as their first field.
    start = _INT16_BYTES if kind.name in {"Abort", "Commit"} else 0
    decoded = _decode(kind.value, api_key, version, value, start)
    return DecodedRecord(kind.name, api_key, decoded_key, version, decoded)


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription | RawMessage:
    """Decode the subscription that a consumer sent to a classic group. Raises InvalidRecordError.

    It is in the field `subscription` of the members in `GroupMetadataValue`, if the protocol type of the group is
    "consumer".
    """
    return _decode_versioned(ConsumerProtocolSubscription, data)


def decode_assignment(data: bytes) -> ConsumerProtocolAssignment | RawMessage:
    """Decode the assignment that a consumer of a classic group received. Raises InvalidRecordError.

    It is in the field `assignment` of the members in `GroupMetadataValue`, if the protocol type of the group is
    "consumer". It has no bytes until the group has assigned partitions.
    """
    return _decode_versioned(ConsumerProtocolAssignment, data)


def _decode_coordinator_record(
    types: Mapping[int, RecordType], key: bytes, value: bytes | None
) -> DecodedRecord:
    api_key = _read_int16(key, 0, "type of a record")
    kind = types.get(api_key)
    version = None if value is None else _read_int16(value, 0, "version of a record")
    if kind is None or kind.key is None:
        raw_key = RawMessage(api_key, 0, key[_INT16_BYTES:])
        raw = None if version is None or value is None else RawMessage(api_key, version, value[_INT16_BYTES:])
        return DecodedRecord(None, api_key, raw_key, version, raw)
    decoded_key = kind.key.decode(key, 0, _INT16_BYTES)
    decoded = None if version is None or value is None else _decode_value(kind, version, value)
    return DecodedRecord(kind.name, api_key, decoded_key, version, decoded)


def _decode_value(kind: RecordType, version: int, value: bytes) -> Message | RawMessage:
    """Decode a value. If its bytes do not follow the schema, they may follow the early layout."""
    try:
        return _decode(kind.value, kind.api_key, version, value, _INT16_BYTES)
    except InvalidRecordError:
        if kind.early_value is None:
            raise
        try:
            return _decode(kind.early_value, kind.api_key, version, value, _INT16_BYTES)
        except InvalidRecordError:
            pass
        raise


def _decode_framed_record(types: Mapping[int, RecordType], value: bytes, what: str) -> DecodedRecord:
    cursor = Cursor(value)
    try:
        frame_version = read_unsigned_varint(cursor)
        if frame_version != _FRAME_VERSION:
            raise InvalidBytes(0, f"frame version {_FRAME_VERSION}", f"{frame_version}")
        api_key = read_unsigned_varint(cursor)
        version = read_unsigned_varint(cursor)
    except InvalidBytes as error:
        raise invalid(error, what) from None
    kind = types.get(api_key)
    if kind is None:
        raw = RawMessage(api_key, version, value[cursor.position :])
        return DecodedRecord(None, api_key, None, version, raw)
    decoded = _decode(kind.value, api_key, version, value, cursor.position)
    return DecodedRecord(kind.name, api_key, None, version, decoded)


def _decode_versioned(message: type[M], data: bytes) -> M | RawMessage:
    return _decode(message, -1, _read_int16(data, 0, f"version of {message.SCHEMA.name}"), data, _INT16_BYTES)


def _decode(message: type[M], api_key: int, version: int, data: bytes, start: int) -> M | RawMessage:
    if version not in message.SCHEMA.versions:
        return RawMessage(api_key, version, data[start:])
    return message.decode(data, version, start)


def _read_int16(data: bytes, position: int, what: str) -> int:
    try:
        return read_int16(Cursor(data, position))
    except InvalidBytes as error:
        raise invalid(error, what) from None
