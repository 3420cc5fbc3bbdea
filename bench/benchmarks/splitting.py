"""A batch of a whole MiB into parts of a fifth: where Kafka splits it, and into parts that are measured."""

from __future__ import annotations

from kafkafmt import Codec, MemoryRecords, RecordBatchBuilder, split_batch, split_to_fit

from .parameters import OnSegment

PARTS = 5


class Splitting(OnSegment):
    def setup(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        if batch == "one record":
            raise NotImplementedError("all records are in one batch")
        if magic < 2 and codec == "none":
            raise NotImplementedError("plain messages stand one by one")
        super().setup(codec, value_size, batch, magic)
        builder = RecordBatchBuilder(magic, Codec[codec.upper()])
        builder.append_columns(*self.records.to_numpy(["timestamp", "key", "value"]).values())
        (self.batch,) = MemoryRecords(builder.build()).batches()
        self.size = self.batch.size_in_bytes // PARTS

    def time_as_kafka(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        split_batch(self.batch, self.size)

    def time_to_fit(self, codec: str, value_size: int, batch: str, magic: int) -> None:
        split_to_fit(self.batch, self.size)
