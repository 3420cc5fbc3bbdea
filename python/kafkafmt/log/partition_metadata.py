"""The topic id of a partition's log, in `partition.metadata` beside its segments, as brokers keep it (KIP-516).

version: 0
topic_id: PtJYfLmRQ3y7ZBFzNxlSog
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

from kafkafmt._util.files import replace_file
from kafkafmt._util.uuids import parse_uuid, uuid_text
from kafkafmt.log.broker_files.errors import BrokerFileError, shown
from kafkafmt.storage import AnyPath, StoragePath, read_named

FILE_NAME = "partition.metadata"
_VERSION = "0"
_KEYS = "version", "topic_id"


def topic_id(path: AnyPath) -> uuid.UUID:
    """Read a `partition.metadata`. Returns the topic id. Raises BrokerFileError if it is malformed, and OSError."""
    return parse_topic_id(*read_named(path))


def parse_topic_id(data: bytes, name: str) -> uuid.UUID:
    """Parse the bytes of a `partition.metadata`. name: the file's path or URI, for errors. Raises BrokerFileError."""
    lines = data.decode("utf-8", "backslashreplace").splitlines()
    values = []
    for number, key in enumerate(_KEYS):
        line = lines[number] if number < len(lines) else None
        found, separator, value = (line or "").partition(":")
        if not separator or found.strip() != key:
            raise BrokerFileError(f"line {number + 1}: expected {key}, found {shown(line)}", path=name)
        values.append(value.strip())
    if len(lines) > len(_KEYS):
        raise BrokerFileError(f"line 3: expected the end, found {shown(lines[2])}", path=name)
    version, text = values
    if version != _VERSION:
        raise BrokerFileError(f"line 1: expected version {_VERSION}, found {shown(version)}", path=name)
    try:
        return parse_uuid(text)
    except ValueError:
        message = f"line 2: expected a UUID of 22 characters of base64, found {shown(text)}"
        raise BrokerFileError(message, path=name) from None


def read_topic_id(folder: StoragePath) -> uuid.UUID | None:
    """Return the topic id of the log in a folder; None if there is no readable file with it."""
    with suppress(OSError, BrokerFileError):
        return topic_id(folder / FILE_NAME)
    return None


def write_topic_id(folder: str | os.PathLike[str], topic_id: uuid.UUID) -> None:
    """Write the topic id durably, and replace an existing one. Raises OSError."""
    text = f"version: {_VERSION}\ntopic_id: {uuid_text(topic_id)}\n"
    replace_file(Path(folder, FILE_NAME), text.encode("ascii"))
