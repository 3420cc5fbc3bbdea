"""A scan of the log directories of tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from kafkafmt import Codec, FileRecords, RecordBatchBuilder, TopicPartition
from kafkafmt.columns.read import arrow_batches
from kafkafmt.scanning.tasks import OffsetRange

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")


@dataclass(frozen=True)
class FileTask:
    path: Path
    topic_partition: TopicPartition
    range: OffsetRange
    type: pa.DataType | None

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        return {self.topic_partition: self.range}

    @property
    def size_in_bytes(self) -> int:
        return self.path.stat().st_size

    def read(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        with FileRecords(self.path, topic_partition=self.topic_partition) as records:
            for batch in arrow_batches(records, columns or COLUMNS):
                offsets = batch.column("offset")
                rows = batch.filter(
                    pc.and_(pc.greater_equal(offsets, self.range.start), pc.less(offsets, self.range.end))
                )
                if self.type is not None:
                    from pyarrow import json

                    lines = b"\n".join(rows.column("value").to_pylist())
                    options = json.ParseOptions(
                        pa.schema(list(self.type)), unexpected_field_behavior="ignore"
                    )
                    table = json.read_json(pa.BufferReader(lines), parse_options=options)
                    value = pa.StructArray.from_arrays(
                        [column.combine_chunks() for column in table.columns], fields=list(self.type)
                    )
                    rows = rows.set_column(1, "value", value)
                yield rows


@dataclass(frozen=True)
class FolderScan:
    """type: of the values, which are JSON; None for bytes."""

    folder: Path
    type: pa.DataType | None = None
    wanted: Mapping[TopicPartition, OffsetRange] | None = None

    @property
    def schema(self) -> pa.Schema:
        types = {
            "topic": pa.string(),
            "partition": pa.int32(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", "UTC"),
            "key": pa.binary(),
            "value": self.type or pa.binary(),
        }
        return pa.schema([(name, types[name]) for name in COLUMNS])

    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        if self.wanted is not None:
            return self.wanted
        found = {}
        for folder in sorted(self.folder.iterdir()):
            one = TopicPartition.from_folder_name(folder.name)
            if one is None:
                continue
            index = [FileRecords(path).index() for path in sorted(folder.glob("*.log"))]
            found[one] = OffsetRange(int(index[0]["base_offset"][0]), int(index[-1]["last_offset"][-1]) + 1)
        return found

    def within(self, ranges: Mapping[TopicPartition, OffsetRange]) -> FolderScan:
        return FolderScan(self.folder, self.type, dict(ranges))

    def tasks(self, split_bytes: int) -> Sequence[FileTask]:
        return [
            FileTask(path, one, wanted, self.type)
            for one, wanted in sorted(self.ranges().items())
            for path in sorted((self.folder / f"{one.topic}-{one.partition}").glob("*.log"))
        ]


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
