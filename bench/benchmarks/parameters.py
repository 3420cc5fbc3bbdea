"""The parameters of all benchmarks, and the segment that they stand for."""

from __future__ import annotations

from typing import ClassVar

from bench.segments import BATCH_BYTES, MIB, ONE_RECORD, Segment, StoredSegment, stored
from kafkafmt import Codec, MemoryRecords

_BATCHES = {"16 KiB": BATCH_BYTES, "one record": ONE_RECORD}


class OnSegment:
    """Reads the segment of its parameters into `records`, a `MemoryRecords`."""

    param_names: ClassVar[list[str]] = ["codec", "value_size", "batch", "magic"]
    params: ClassVar[list[list[object]]] = [
        [codec.name.lower() for codec in Codec],
        [100, 1024],
        list(_BATCHES),
        [0, 1, 2],
    ]
    timeout = 120

    stored: StoredSegment
    records: MemoryRecords

    def setup(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        if codec == "zstd" and magic < 2:
            raise NotImplementedError("zstd needs message format v2")
        segment = Segment(Codec[codec.upper()], value_size, _BATCHES[batch], magic, MIB)
        self.stored = stored(segment)
        self.records = MemoryRecords(self.stored.path.read_bytes())
