"""A scan of folders of one topic, for exports. Spark imports this module where tasks run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from kafkafmt import TopicPartition
from kafkafmt.scanning.options import LogReadOptions, ReadColumns
from kafkafmt.scanning.planning import plan_logs
from kafkafmt.scanning.splits import read_split
from kafkafmt.scanning.tasks import OffsetRange

if TYPE_CHECKING:
    from kafkafmt.log.splitting import Split

COLUMNS = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
}
SCHEMA = pa.schema(list(COLUMNS.items()))


@dataclass(frozen=True)
class SplitTask:
    splits: tuple[Split, ...]
    options: LogReadOptions

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        return {}

    @property
    def size_in_bytes(self) -> int:
        return sum(split.end - split.start for split in self.splits)

    def read(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for split in self.splits:
            yield from read_split(split, self.options, ReadColumns(tuple(COLUMNS), SCHEMA))


@dataclass(frozen=True)
class LogScan:
    """All records of folders of one topic."""

    folders: Sequence[Path]
    schema = SCHEMA

    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        found = [TopicPartition.from_folder_name(folder.name) for folder in self.folders]
        return {one: OffsetRange(0, 1) for one in found if one is not None}

    def within(self, ranges: Mapping[TopicPartition, OffsetRange]) -> LogScan:
        return self

    def tasks(self, split_bytes: int) -> Sequence[SplitTask]:
        options = LogReadOptions(paths=tuple(map(str, self.folders)), split_bytes=split_bytes)
        return [SplitTask(splits, replace(options, paths=())) for splits in plan_logs(options)]
