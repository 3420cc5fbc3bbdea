"""Batches on their way to a broker (KIP-712): what is passed on as it is, what gets another header, what is opened."""

from __future__ import annotations

import struct
from typing import ClassVar

from _kafkafmt.batches.producer_state import set_producer_state
from _kafkafmt.wire.layout import LAST_OFFSET_DELTA_OFFSET
from kafkafmt import BatchForwarder, MemoryRecords, check_produce

from .parameters import OnSegment


class Forwarding(OnSegment):
    params: ClassVar[list[list[object]]] = [*OnSegment.params[:3], [2]]

    def setup(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        super().setup(codec, value_size, batch, magic)
        self.idempotent = self._changed(producer_id=1)
        self.compacted = self._changed(missing=1)

    def _changed(self, producer_id: int = -1, missing: int = 0) -> MemoryRecords:
        """The batches with another header: of a producer, or of so many records that compaction has removed."""
        data = bytearray(self.stored.path.read_bytes())
        state = -1 if producer_id < 0 else 0
        for row in self.records.index():
            batch = memoryview(data)[row["position"] : row["position"] + row["size"]]
            struct.pack_into(">i", batch, LAST_OFFSET_DELTA_OFFSET, row["count"] - 1 + missing)
            set_producer_state(batch, producer_id, state, state)
        return MemoryRecords(data)

    def time_forward(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        _forward(self.records, verify=True)

    def time_forward_unverified(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        _forward(self.records, verify=False)

    def time_clear_producer_state(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        _forward(self.idempotent, verify=True)

    def time_close_gaps(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        _forward(self.compacted, verify=True)

    def time_check_produce(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        for one in self.records.batches():
            check_produce(one)


def _forward(records: MemoryRecords, verify: bool) -> None:
    forwarder = BatchForwarder(verify=verify)
    for run in records.runs():
        for _ in forwarder.forward(run):
            pass
