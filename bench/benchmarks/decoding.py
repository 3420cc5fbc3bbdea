"""Batches into the index, columns and records; CRCs are checked where that is the default."""

from __future__ import annotations

from .parameters import OnSegment


class Decoding(OnSegment):
    def time_index(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        self.records.index()

    def time_check_crc(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        for run in self.records.runs():
            run.ensure_valid()

    def time_numpy(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        self.records.to_numpy()

    def time_numpy_batches(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        for _ in self.records.numpy_batches():
            pass

    def time_arrow(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        self.records.to_arrow()

    def time_arrow_batches_views(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        for _ in self.records.arrow_batches(views=True):
            pass

    def time_iterate(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        for record in self.records.records():
            _ = record.key, record.value

    def peakmem_numpy(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        self.records.to_numpy()
