"""Partitions buffered as raw batches and merged by timestamp: taking turns record by record, and one after another.

The bound is what a partition may hold: with the smaller one a batch of a MiB is decompressed in windows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from kafkafmt import Codec, MemoryRecords, RecordBatchBuilder, TopicPartition
from kafkafmt.streams import PartitionGroup

PARTITIONS = 64
BATCHES = 4
BATCH_RECORDS = 1000
VALUES = [b'{"user": %d, "page": "/a/b/%d", "took": %d}' % (n, n % 7, n * n) for n in range(1000)]


class Buffering:
    params: ClassVar = (["none", "gzip", "lz4", "zstd"], ["interleaved", "blocks"], ["64k", "1m"])
    param_names: ClassVar = ("codec", "timestamps", "buffered_bytes_per_partition")

    def setup(self, codec: str, timestamps: str, bound: str) -> None:
        per_partition = BATCHES * BATCH_RECORDS
        self.logs = {}
        for number in range(PARTITIONS):
            batches = []
            for base_offset in range(0, per_partition, BATCH_RECORDS):
                builder = RecordBatchBuilder(2, Codec[codec.upper()], base_offset=base_offset)
                for offset in range(base_offset, base_offset + BATCH_RECORDS):
                    is_mixed = timestamps == "interleaved"
                    time = offset * PARTITIONS + number if is_mixed else number * per_partition + offset
                    builder.append(
                        time, b"key %d" % (offset % 99), VALUES[(offset * 7 + number) % len(VALUES)]
                    )
                batches.append(builder.build())
            self.logs[TopicPartition("bench", number)] = b"".join(batches)

    def time_merge(self, codec: str, timestamps: str, bound: str) -> None:
        """Runs of records of one partition."""
        self.merge(bound, lambda group: None if (taken := group.take()) is None else taken.stop - taken.first)

    def time_merge_at_once(self, codec: str, timestamps: str, bound: str) -> None:
        """Records of all partitions at once."""
        self.merge(bound, lambda group: None if (merged := group.take_merged()) is None else len(merged))

    def merge(self, bound: str, take: Callable[[PartitionGroup], int | None]) -> None:
        group = PartitionGroup(bound, verify=False)
        for topic_partition in self.logs:
            group.add(topic_partition)
        records = {tp: MemoryRecords(log) for tp, log in self.logs.items()}
        positions = dict.fromkeys(self.logs, 0)
        count = 0
        while True:
            if (taken := take(group)) is not None:
                count += taken
            elif wanting := group.wanting():
                for tp in wanting:
                    self.feed(group, tp, records[tp], positions)
            else:
                break
        assert count == PARTITIONS * BATCHES * BATCH_RECORDS

    def feed(
        self,
        group: PartitionGroup,
        tp: TopicPartition,
        records: MemoryRecords,
        positions: dict[TopicPartition, int],
    ) -> None:
        run = next(records.runs(positions[tp], run_bytes=256 * 1024), None)
        if run is None:
            group.finish(tp)
        elif taken := group.feed(tp, run):
            positions[tp] = int(run.index["position"][taken - 1]) + int(run.index["size"][taken - 1])
