"""`.snapshot` files: the states of a log's producers before an offset (Kafka's ProducerSnapshot.json).

| version int16 | CRC-32C of the bytes after it uint32 | count int32 | one entry for each producer |
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from _kafkafmt.crc.checksums import crc32c
from kafkafmt.log.broker_files.errors import BrokerFileError
from kafkafmt.storage import AnyPath, read_named

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_COUNT = struct.Struct(">i")
_VERSION = 1
_VERSION_END, _CRC_END = 2, 6


class SnapshotEntry(NamedTuple):
    """The state of a producer. Offsets and the sequence number are -1 if there is none.

    last_sequence, last_offset: of the last record of its last batch.
    offset_delta: last_offset minus the first offset of that batch.
    timestamp: that of the batch, in milliseconds.
    transaction_first_offset: the first offset of its open transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    transaction_first_offset: int


def producer_snapshot(path: AnyPath) -> list[SnapshotEntry]:
    """Read a `.snapshot`: the state of each producer. Raises BrokerFileError if it is damaged, and OSError."""
    return parse_snapshot(*read_named(path))


def parse_snapshot(data: bytes, name: str) -> list[SnapshotEntry]:
    """Parse the bytes of a `.snapshot` file. name: the file's path or URI, for errors. Raises BrokerFileError."""
    if len(data) < _HEADER.size:
        raise BrokerFileError(f"expected {_HEADER.size} bytes or more, found {len(data)}", path=name)
    version, crc, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise BrokerFileError(f"position 0: expected version {_VERSION}, found {version}", path=name)
    found_crc = crc32c(memoryview(data)[_CRC_END:])
    if found_crc != crc:
        message = (
            f"position {_VERSION_END}: expected CRC {crc:08x}, found {found_crc:08x} in the bytes after it"
        )
        raise BrokerFileError(message, path=name)
    entries = memoryview(data)[_HEADER.size :]
    if len(entries) != count * _ENTRY.size:
        expected = f"expected {count} entries of {_ENTRY.size} bytes after the header"
        raise BrokerFileError(f"position {_CRC_END}: {expected}, found {len(entries)} bytes", path=name)
    return list(map(SnapshotEntry._make, _ENTRY.iter_unpack(entries)))


def snapshot_entries(data: bytes) -> list[SnapshotEntry] | None:
    """Parse the bytes of a `.snapshot` file, for readers that can do without. Returns None if they are damaged."""
    with suppress(BrokerFileError):
        return parse_snapshot(data, "")
    return None


def snapshot_bytes(entries: Sequence[SnapshotEntry]) -> bytes:
    """Return the bytes of a `.snapshot` file with these entries."""
    body = _COUNT.pack(len(entries)) + b"".join(_ENTRY.pack(*entry) for entry in entries)
    return _HEADER.pack(_VERSION, crc32c(body), len(entries))[:_CRC_END] + body
