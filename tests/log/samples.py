"""Small logs for the tests of this folder, put together byte by byte and not by the writer under test."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kafkafmt as kf

DAY = 1_700_000_000_000
LOGS = Path(__file__).parents[1] / "data" / "logs"

Entries = Iterable[tuple[int, ...]]


def batch(
    base_offset: int, count: int = 1, *, timestamp: int | None = None, size: int = 100, **fields: Any
) -> bytes:
    """A batch of `count` records with values of `size` bytes; timestamps go up with offsets by default."""
    builder = kf.RecordBatchBuilder(fields.pop("magic", 2), base_offset=base_offset, **fields)
    for offset in range(base_offset, base_offset + count):
        builder.append(
            DAY + offset if timestamp is None else timestamp, offset.to_bytes(8, "big"), bytes(size)
        )
    return builder.build()


def moved(data: bytes, base_offset: int) -> bytes:
    """A batch with another base offset, which no CRC covers."""
    return base_offset.to_bytes(8, "big") + data[8:]


def batches(base_offset: int, stop_offset: int, count: int = 1, **fields: Any) -> list[bytes]:
    """Batches of `count` records each, end to end."""
    return [batch(offset, count, **fields) for offset in range(base_offset, stop_offset, count)]


def unreadable(data: bytes) -> bytes:
    """A v2 batch whose CRC is valid, and whose first record is not."""
    changed = bytearray(data)
    changed[61] ^= 0x40
    changed[17:21] = kf.crc32c(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    """A control batch that ends a producer's transaction."""
    builder = kf.RecordBatchBuilder(
        base_offset=offset, producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=True
    )
    builder.append_end_transaction_marker(DAY + offset, commit=commit)
    return builder.build()


def malformed_marker(offset: int, producer_id: int) -> bytes:
    """A control batch with a valid CRC whose record has a key of one byte."""
    builder = kf.RecordBatchBuilder(
        base_offset=offset, producer_id=producer_id, producer_epoch=0, is_transactional=True, is_control=True
    )
    builder.append(DAY + offset, b"\0", bytes(6))
    return builder.build()


def transactional(offset: int, producer_id: int, count: int = 1, **fields: Any) -> bytes:
    fields |= {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    return batch(offset, count, **fields)


def name(base_offset: int, suffix: str = ".log") -> str:
    return f"{base_offset:020d}{suffix}"


def put_segment(
    folder: Path,
    base_offset: int,
    contents: Iterable[bytes],
    *,
    index: Entries | None = None,
    time_index: Entries | None = None,
    transaction_index: Entries | None = None,
) -> Path:
    """Files of a segment; an index that is None is not written."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name(base_offset)
    path.write_bytes(b"".join(contents))
    for suffix, layout, entries in (
        (".index", ">ii", index),
        (".timeindex", ">qi", time_index),
        (".txnindex", ">hqqqq", transaction_index),
    ):
        if entries is not None:
            path.with_suffix(suffix).write_bytes(b"".join(struct.pack(layout, *entry) for entry in entries))
    return path


def entries(path: Path, suffix: str) -> list[tuple[int, ...]]:
    """What stands in an index, slow and obvious; zeros at its end left out."""
    layout = {".index": ">ii", ".timeindex": ">qi", ".txnindex": ">hqqqq"}[suffix]
    found = list(struct.iter_unpack(layout, path.with_suffix(suffix).read_bytes()))
    while found and not any(found[-1]):
        found.pop()
    return found


def positions(path: Path) -> dict[int, int]:
    """The position of the batch that each record's offset is in."""
    with kf.FileRecords(path) as records:
        return {record.offset: batch.position for batch in records.batches() for record in batch}


def real_segments() -> list[Path]:
    """Segments that a real broker wrote."""
    return sorted(LOGS.glob("*/*.log"))


def offsets(records: Iterable[Any]) -> list[int]:
    return [record.offset for record in records]
