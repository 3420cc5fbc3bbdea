"""Target: the decoders of Kafka's messages and of records of internal topics.

Input: three bytes of options (the message, its version, the size of a record's key), then the bytes. Whatever they are:

- a message decodes, or raises an error of the two that bytes may cause; that error has the byte where it is;
- what decodes is encoded, decodes again, and is then encoded to the same bytes;
- its JSON can be written;
- a record of each topic decodes, or raises such an error; a message that the schemas lack is never an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from kafkafmt.errors import InvalidRecordError
from kafkafmt.schemas import (
    DecodedRecord,
    Message,
    RawMessage,
    decode_assignment,
    decode_control_record,
    decode_group_record,
    decode_metadata_record,
    decode_remote_log_record,
    decode_share_record,
    decode_subscription,
    decode_transaction_record,
)
from schemas.samples import messages_and_versions

OPTIONS_LENGTH = 3
CASES = tuple(messages_and_versions())
PAIRS = (decode_group_record, decode_transaction_record, decode_share_record, decode_control_record)
VALUES = (decode_metadata_record, decode_remote_log_record)
POSITION = re.compile(r"byte (\d+): expected ")


def check(data: bytes) -> None:
    options, content = data[:OPTIONS_LENGTH].ljust(OPTIONS_LENGTH, b"\0"), data[OPTIONS_LENGTH:]
    made, version = CASES[int.from_bytes(options[:2], "big") % len(CASES)]
    _check_message(made, version, content)
    key, value = content[: options[2]], content[options[2] :]
    for decode_pair in PAIRS:
        _check_record(lambda decode=decode_pair: decode(key, value), len(content))
    for decode_value in VALUES:
        _check_record(lambda decode=decode_value: decode(content), len(content))
    for decode_protocol in (decode_subscription, decode_assignment):
        _outcome(lambda decode=decode_protocol: decode(content), len(content))


def _outcome(decode: Callable[[], Message | RawMessage | DecodedRecord], size: int) -> object:
    try:
        return decode()
    except InvalidRecordError as error:
        found = POSITION.search(str(error))
        assert found is not None
        assert 0 <= int(found[1]) <= size
        return None


def _check_message(made: type[Message], version: int, content: bytes) -> None:
    decoded = _outcome(lambda: made.decode(content, version), len(content))
    if isinstance(decoded, Message):
        _check_round_trip(decoded, version)


def _check_record(decode: Callable[[], DecodedRecord], size: int) -> None:
    record = _outcome(decode, size)
    if isinstance(record, DecodedRecord) and isinstance(record.value, Message):
        assert record.version is not None
        assert record.version in record.value.SCHEMA.versions
        _check_round_trip(record.value, record.version)


def _check_round_trip(decoded: Message, version: int) -> None:
    encoded = decoded.encode(version)
    assert type(decoded).decode(encoded, version).encode(version) == encoded
    json.dumps(decoded.to_json(version))
