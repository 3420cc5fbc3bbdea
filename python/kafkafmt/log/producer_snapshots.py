"""`.snapshot` files: what a log knows of its producers in front of an offset (Kafka's ProducerSnapshot.json).

| version int16 | CRC-32C of what follows uint32 | count int32 | an entry a producer |
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from _kafkafmt.crc import crc32c

_HEADER = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_COUNT = struct.Struct(">i")
_VERSION = 1
_CRC_END = 6


class SnapshotEntry(NamedTuple):
    """A producer. Offsets and the sequence number are -1 where there is none.

    offset_delta: how far the first offset of its last batch is in front of last_offset.
    timestamp: of that batch, in milliseconds.
    transaction_first_offset: where the transaction begins that it has open.
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
    """What a file with these bytes says; None where they are damaged."""
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
    """A file's bytes."""
    body = _COUNT.pack(len(entries)) + b"".join(_ENTRY.pack(*entry) for entry in entries)
    return _HEADER.pack(_VERSION, crc32c(body), len(entries))[:_CRC_END] + body
