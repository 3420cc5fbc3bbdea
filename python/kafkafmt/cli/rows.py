"""Convert batches and records to rows, for JSON lines, Parquet and tables.

Fields have the names of the attributes of `RecordBatch` and `Record`. Enumerations are their names in lower case.

If `key` or `value` is valid UTF-8, its field in JSON is a string, which loses nothing. Else `key_base64` or
`value_base64` replaces the field, so a reader never has to guess. `kafkafmt.cli.record_formats` renders them by formats
that the user gives. Null is null. Headers are a list of objects with
`key` and `value`, in their order, by the same rule. Parquet contains bytes unchanged.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from kafkafmt.cli.output import range_in_words, time_in_words
from kafkafmt.cli.record_formats import Rendered
from kafkafmt.errors import KafkaFormatError
from kafkafmt.records.batch import RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa

    from _kafkafmt.records.decode import Record
    from kafkafmt.cli.sources import SourceFile
    from kafkafmt.log.isolation import TransactionState

Row = dict[str, Any]

_BATCH_NUMBERS = (
    "position",
    "size_in_bytes",
    "magic",
    "last_offset",
    "next_offset",
    "base_timestamp",
    "max_timestamp",
    "delete_horizon_ms",
    "partition_leader_epoch",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "last_sequence",
    "is_transactional",
    "is_control",
    "crc",
)
# Types of control records (ControlRecordType). The key is an int16 version, then the type as an int16.
_CONTROL_TYPES = {
    0: "abort",
    1: "commit",
    2: "leader_change",
    3: "snapshot_header",
    4: "snapshot_footer",
    5: "kraft_version",
    6: "kraft_voters",
}
_TEXT_CHARS = 60
_MESSAGE_CHARS = 120


def batch_row(source: Row, batch: RecordBatch, is_valid: bool) -> Row:
    """Return a batch as a row of its header fields. base_offset, count and codec are None if damage hides them."""
    row = {**source, **{name: getattr(batch, name) for name in _BATCH_NUMBERS}}
    row["codec"] = _name_or_none(batch, "codec")
    row["timestamp_type"] = batch.timestamp_type.name.lower()
    row["base_offset"], row["count"] = _or_none(batch, "base_offset"), _or_none(batch, "count")
    row["is_valid"] = is_valid
    return row


def record_row(source: Row, batch: RecordBatch, record: Record, transaction: TransactionState | None) -> Row:
    """Return a record as a row, with the position of its batch. control_type is None for data records.

    transaction: the state of its transaction; None without one, and if it is not known.
    """
    return {
        **source,
        "position": batch.position,
        **record_fields(record),
        "sequence": record.sequence,
        "size_in_bytes": record.size_in_bytes,
        "is_control": batch.is_control,
        "control_type": _control_type(record.key) if batch.is_control else None,
        "transaction": transaction,
    }


def record_fields(record: Record) -> Row:
    """Return the fields of a record that do not depend on its batch."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type.name.lower(),
        "key": record.key,
        "value": record.value,
        "headers": record.headers,
    }


def source_row(source: SourceFile) -> Row:
    """Return the fields that name the source of a row: path, topic, partition."""
    topic, partition = source.topic_partition or (None, None)
    return {"path": str(source.path), "topic": topic, "partition": partition}


def _or_none(batch: RecordBatch, name: str) -> Any:
    try:
        return getattr(batch, name)
    except KafkaFormatError:
        return None


def _name_or_none(batch: RecordBatch, name: str) -> str | None:
    found = _or_none(batch, name)
    return None if found is None else found.name.lower()


def _control_type(key: bytes | None) -> str:
    number = int.from_bytes(key[2:4], "big") if key is not None and len(key) >= 4 else -1
    return _CONTROL_TYPES.get(number, f"unknown ({number})")


def row_of_line(line: bytes) -> Row:
    """Return the row of a JSON line of an internal topic. Its key and value are dictionaries, or None."""
    row: Row = json.loads(line)
    row["headers"] = [
        ((_bytes_of(header, "key") or b"").decode("utf-8", "surrogateescape"), _bytes_of(header, "value"))
        for header in row["headers"]
    ]
    return row


def _bytes_of(row: Row, name: str) -> bytes | None:
    if name not in row:
        return base64.b64decode(row[f"{name}_base64"])
    return None if row[name] is None else row[name].encode()


def to_json(row: Row) -> Row:
    """Return the row of a record with values that JSON can represent, as `_kafkafmt.json.record_lines` writes them."""
    result: Row = {}
    for name, value in row.items():
        if name in ("key", "value") and not isinstance(value, Rendered):
            result.update(text_or_base64(name, value))
        elif name == "headers":
            result[name] = [_header_to_json(key, content) for key, content in value]
        else:
            result[name] = value
    return result


def _header_to_json(key: str, value: bytes | None) -> Row:
    return {
        **text_or_base64("key", key.encode("utf-8", "surrogateescape")),
        **text_or_base64("value", value),
    }


def text_or_base64(name: str, data: bytes | None) -> Row:
    """Return the field of bytes in JSON: `name` with their text, or `<name>_base64` if they are not UTF-8."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def to_arrow(row: Row) -> Row:
    """Return a row with values that pyarrow can represent. Changes the row.

    Header keys that are not UTF-8 are decoded as Java does. A next_offset of 2^63 becomes null: it does not fit int64.
    """
    if row.get("next_offset") == 2**63:
        row["next_offset"] = None
    if row.get("headers"):
        row["headers"] = [
            {"key": key.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
            for key, value in row["headers"]
        ]
    return row


def arrow_schema(*, records: bool) -> pa.Schema:
    """Return the Parquet schema of record rows, or of batch rows."""
    import pyarrow as pa

    source = [
        ("path", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("position", pa.int64()),
    ]
    if records:
        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        fields = [
            ("offset", pa.int64()),
            ("timestamp", pa.int64()),
            ("timestamp_type", pa.string()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
            ("sequence", pa.int32()),
            ("size_in_bytes", pa.int32()),
            ("is_control", pa.bool_()),
            ("control_type", pa.string()),
            ("transaction", pa.string()),
        ]
        return pa.schema(source + fields)
    types = {
        "magic": pa.int8(),
        "size_in_bytes": pa.int64(),
        "partition_leader_epoch": pa.int32(),
        "producer_epoch": pa.int16(),
        "base_sequence": pa.int32(),
        "last_sequence": pa.int32(),
        "is_transactional": pa.bool_(),
        "is_control": pa.bool_(),
    }
    fields = [(name, types.get(name, pa.int64())) for name in _BATCH_NUMBERS if name != "position"]
    names = [("codec", pa.string()), ("timestamp_type", pa.string())]
    derived = [("base_offset", pa.int64()), ("count", pa.int32()), ("is_valid", pa.bool_())]
    return pa.schema(source + fields + names + derived)


BATCH_COLUMNS: tuple[str, ...] = (
    "position#",
    "offsets",
    "records#",
    "bytes#",
    "format",
    "max timestamp",
    "details",
)
RECORD_COLUMNS: tuple[str, ...] = ("offset#", "timestamp", "key", "value", "headers", "details")


def batch_cells(row: Row) -> tuple[str, ...]:
    """Return the cells of `BATCH_COLUMNS`. The fields that only some batches have are in the last cell, details."""
    details = [] if row["is_valid"] else ["CRC DOES NOT HOLD"]
    if row["producer_id"] >= 0:
        sequences = range_in_words(row["base_sequence"], row["last_sequence"])
        details.append(f"producer {row['producer_id']} epoch {row['producer_epoch']} sequence {sequences}")
    details += [word for word in ("transactional", "control") if row[f"is_{word}"]]
    if row["timestamp_type"] == "log_append_time":
        details.append("log append time")
    if row["delete_horizon_ms"] is not None:
        details.append(f"delete horizon {time_in_words(row['delete_horizon_ms'])}")
    if row["partition_leader_epoch"] >= 0:
        details.append(f"leader epoch {row['partition_leader_epoch']}")
    details.append(f"crc {row['crc']:08x}")
    return (
        str(row["position"]),
        range_in_words(row["base_offset"], row["last_offset"]),
        "?" if row["count"] is None else str(row["count"]),
        str(row["size_in_bytes"]),
        f"v{row['magic']} {row['codec'] or 'unknown codec'}",
        time_in_words(row["max_timestamp"]),
        ", ".join(details),
    )


def record_cells(row: Row) -> tuple[str, ...]:
    """Return the cells of `RECORD_COLUMNS`. Bytes are cut to 60 characters, messages of internal topics to 120."""
    details = [] if row["control_type"] is None else [f"{row['control_type'].replace('_', ' ')} marker"]
    if row["transaction"] in ("aborted", "open"):
        details.append(f"{row['transaction']} transaction")
    if row["timestamp_type"] == "log_append_time":
        details.append("log append time")
    if row["sequence"] >= 0:
        details.append(f"sequence {row['sequence']}")
    details.append(f"{row['size_in_bytes']} bytes")
    headers = ", ".join(
        f"{_shown(key.encode('utf-8', 'surrogateescape'))}={_shown(v)}" for key, v in row["headers"]
    )
    return (
        str(row["offset"]),
        time_in_words(row["timestamp"]),
        _key_or_value(row["key"]),
        _key_or_value(row["value"]),
        headers,
        ", ".join(details),
    )


def _key_or_value(content: bytes | Row | Rendered | None) -> str:
    if isinstance(content, Rendered):
        text = content.text if content.error is None else f"{content.error}: {_shown(content.data)}"
        return _cut(text, _MESSAGE_CHARS)
    return _message_in_words(content) if isinstance(content, dict) else _shown(content)


def _message_in_words(message: Row) -> str:
    """Return a message of an internal topic as text: `OffsetCommitKey group=g topic=t partition=0`."""
    words = [message["name"]] if "name" in message else []
    if "data" in message:
        words += [f"{name}={_in_one_word(value)}" for name, value in message["data"].items()]
    else:
        words += [f"{name}={message[name]}" for name in ("type", "version") if name in message]
        words.append(message.get("error") or f"0x{base64.b64decode(message['base64']).hex()}")
    text = " ".join(words)
    return _cut(text, _MESSAGE_CHARS)


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def _in_one_word(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)


def _shown(data: bytes | None) -> str:
    """Return bytes for display: printable text as it is, else hexadecimal digits, cut to 60 characters."""
    if data is None:
        return "null"
    try:
        text = data[: 4 * _TEXT_CHARS].decode("utf-8", "strict" if len(data) <= 4 * _TEXT_CHARS else "ignore")
        text = text if text.isprintable() else f"0x{data[:_TEXT_CHARS].hex()}"
    except UnicodeDecodeError:
        text = f"0x{data[:_TEXT_CHARS].hex()}"
    return _cut(text, _TEXT_CHARS)
