"""The topic id of a partition's log, in `partition.metadata` beside its segments, as brokers keep it (KIP-516)."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from kafkafmt._util.files import replace_file
from kafkafmt._util.uuids import parse_uuid, uuid_text
from kafkafmt.storage import StoragePath, read_file

FILE_NAME = "partition.metadata"
_KEY = "topic_id"


def read_topic_id(folder: StoragePath) -> uuid.UUID | None:
    """Return the topic id of the log in a folder; None if there is no readable file with it."""
    try:
        for line in read_file(folder / FILE_NAME).decode("utf-8").splitlines():
            key, _, value = line.partition(":")
            if key == _KEY:
                return parse_uuid(value.strip())
    except (OSError, ValueError):
        return None
    return None


def write_topic_id(folder: str | os.PathLike[str], topic_id: uuid.UUID) -> None:
    """Write the topic id durably, and replace an existing one. Raises OSError."""
    text = f"version: 0\n{_KEY}: {uuid_text(topic_id)}\n"
    replace_file(Path(folder, FILE_NAME), text.encode("ascii"))
