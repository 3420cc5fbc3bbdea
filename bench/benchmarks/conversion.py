"""Between formats: v2 and v1 down by one, v0 up to v2."""

from __future__ import annotations

from collections import deque

from kafkafmt import Codec, FileRecords, LazyDownConvertRecords

from .parameters import OnSegment

TO_MAGIC = {0: 2, 1: 0, 2: 1}


class Conversion(OnSegment):
    def time_eager(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        self.records.down_convert(TO_MAGIC[magic], zstd_fallback=Codec.LZ4)

    def time_lazy(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        lazy = LazyDownConvertRecords(self.records, TO_MAGIC[magic], zstd_fallback=Codec.LZ4)
        deque(lazy.chunks(), maxlen=0)

    def time_lazy_shared_memory(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        lazy = LazyDownConvertRecords(self.records, TO_MAGIC[magic], zstd_fallback=Codec.LZ4)
        deque(lazy.chunks(reuse_memory=True), maxlen=0)

    def time_lazy_kept(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        list(LazyDownConvertRecords(self.records, TO_MAGIC[magic], zstd_fallback=Codec.LZ4).chunks())

    def peakmem_lazy(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        with FileRecords(self.stored.path) as records:
            lazy = LazyDownConvertRecords(records, TO_MAGIC[magic], zstd_fallback=Codec.LZ4)
            deque(lazy.chunks(reuse_memory=True), maxlen=0)
