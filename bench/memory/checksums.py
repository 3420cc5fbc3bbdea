"""What is compared: CRCs that go on from record to record, so that neither side keeps what it has checked."""

from __future__ import annotations

import struct

from isal.isal_zlib import crc32

_SIZES = struct.Struct("<qqii")


def with_record(checksum: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None) -> int:
    """The checksum of the records so far, and of this one behind them."""
    sizes = _SIZES.pack(
        offset, timestamp, -1 if key is None else len(key), -1 if value is None else len(value)
    )
    return crc32(value or b"", crc32(key or b"", crc32(sizes, checksum)))
