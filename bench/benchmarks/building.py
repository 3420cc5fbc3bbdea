"""Rows and columns into batches."""

from __future__ import annotations

from bench.segments import BATCH_BYTES, ONE_RECORD
from kafkafmt import Codec, RecordBatchBuilder, build_batches

from .parameters import OnSegment

Row = tuple[int, "bytes | None", "bytes | None"]


class Building(OnSegment):
    def setup(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        super().setup(codec, value_size, batch, magic)
        rows = [(record.timestamp, record.key, record.value) for record in self.records.records()]
        self.columns = self.records.to_numpy(["timestamp", "key", "value"])
        size = max(1, 16 * 1024 // value_size) if batch == "16 KiB" else 1
        self.batches: list[list[Row]] = [rows[first : first + size] for first in range(0, len(rows), size)]

    def time_rows(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        offset = 0
        for rows in self.batches:
            builder = RecordBatchBuilder(magic, Codec[codec.upper()], base_offset=offset)
            for timestamp, key, value in rows:
                builder.append(timestamp, key, value)
            builder.build()
            offset += len(rows)

    def time_columns(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        size = BATCH_BYTES if batch == "16 KiB" else ONE_RECORD
        for _ in build_batches(
            *self.columns.values(), batch_size=size, codec=Codec[codec.upper()], magic=magic
        ):
            pass
