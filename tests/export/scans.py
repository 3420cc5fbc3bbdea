"""A scan of the log directories of tests."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import kafkafmt
from kafkafmt import Codec, RecordBatchBuilder, Scan
from kafkafmt.decode import Decoding

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")


def folder_scan(folder: Path, kind: pa.DataType | None = None) -> Scan:
    """Return the scan of a log directory. kind: of the values, which are JSON; None for bytes."""
    decode = None if kind is None else Decoding(value="json", reader_schema=kind, on_error="raise")
    return kafkafmt.scan(folder, columns=COLUMNS, decode=decode)


def write_log(
    folder: Path, partition: str, first: int, count: int, *, value: str = "value {}", hours: float = 0.01
) -> None:
    """Add a segment with `count` records, one each `hours` from 2026-01-01T00:00Z, to a partition folder."""
    builder = RecordBatchBuilder(codec=Codec.ZSTD, base_offset=first)
    for offset in range(first, first + count):
        timestamp = 1_767_225_600_000 + int(offset * hours * 3_600_000)
        builder.append(timestamp, b"key %d" % (offset % 7), value.format(offset).encode())
    path = folder / partition
    path.mkdir(parents=True, exist_ok=True)
    (path / f"{first:020}.log").write_bytes(builder.build())
