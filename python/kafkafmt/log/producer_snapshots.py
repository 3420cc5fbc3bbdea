"""`.snapshot` files: the states of a log's producers before an offset (Kafka's ProducerSnapshot.json).

| version int16 | CRC-32C of the bytes after it uint32 | count int32 | one entry for each producer |
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from _kafkafmt.crc.checksums import crc32c

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_COUNT = struct.Struct(">i")
_VERSION = 1
_CRC_END = 6


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


def snapshot_entries(data: bytes) -> list[SnapshotEntry] | None:
    """Parse the bytes of a `.snapshot` file. Returns None if they are damaged."""
    if len(data) < _HEADER.size:
        return None
    version, crc, count = _HEADER.unpack_from(data)
    entries = memoryview(data)[_HEADER.size :]
    if (
        version != _VERSION
        or crc32c(memoryview(data)[_CRC_END:]) != crc
        or count < 0
        or len(entries) != count * _ENTRY.size
    ):
        return None
    return list(map(SnapshotEntry._make, _ENTRY.iter_unpack(entries)))


def snapshot_bytes(entries: Sequence[SnapshotEntry]) -> bytes:
    """Return the bytes of a `.snapshot` file with these entries."""
    body = _COUNT.pack(len(entries)) + b"".join(_ENTRY.pack(*entry) for entry in entries)
    return _HEADER.pack(_VERSION, crc32c(body), len(entries))[:_CRC_END] + body
