"""What replays and tables must come to, computed the plain way: all decoded, a heap over all heads, a dict of all keys.

A replay depends on when partitions came and went, which the process that replays has told: at so many records these
went and those came. A partition that comes back goes on where it was.
"""

from __future__ import annotations

import heapq
import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from isal.isal_zlib import crc32

from bench.memory.checksums import with_record
from bench.memory.topic import Topic
from kafkafmt import FileRecords


@dataclass(frozen=True)
class Change:
    """After `taken` records `gone` were taken away, and then `come` added."""

    taken: int
    gone: Sequence[int]
    come: Sequence[int]


@dataclass(frozen=True)
class Expected:
    """By partition: checksums of its records in order and of its table's rows by key, and how many rows those are."""

    contents: Sequence[int]
    tables: Sequence[int]
    rows: Sequence[int]


def expected_of(topic: Topic) -> Expected:
    """Computed once for a topic."""
    path = topic.log_dir.with_name(f"{topic.name}.expected.json")
    if not path.exists():
        columns = zip(*(_partition(topic, number) for number in range(topic.partitions)), strict=True)
        path.write_text(json.dumps(list(columns)))
    return Expected(*json.loads(path.read_text()))


def _partition(topic: Topic, partition: int) -> tuple[int, int, int]:
    contents = 0
    table: dict[bytes, tuple[int, int, bytes]] = {}
    for path in _segments(topic, partition):
        with FileRecords(path) as records:
            for record in records.records():
                key, value = record.key, record.value
                contents = with_record(contents, record.offset, record.timestamp, key, value)
                if key is not None and value is not None:
                    table[key] = (record.offset, record.timestamp, value)
                elif key is not None:
                    table.pop(key, None)
    return contents, table_checksum((key, *row) for key, row in table.items()), len(table)


def table_checksum(rows: Iterable[tuple[bytes, int, int, bytes]]) -> int:
    """Of rows of key, offset, timestamp and value, in whatever order they are handed in."""
    checksum = 0
    for key, offset, timestamp, value in sorted(rows):
        checksum = with_record(checksum, offset, timestamp, key, value)
    return checksum


@dataclass(frozen=True)
class Replayed:
    """How many records; checksums of their partitions and offsets, and of their timestamps, in a replay's order."""

    records: int
    sequence: int
    timestamps: int


def replayed(topic: Topic, changes: Sequence[Change]) -> Replayed:
    """What a replay hands out where partitions came and went so."""
    logs = [_times(topic, number) for number in range(topic.partitions)]
    done = [0] * topic.partitions
    heads: list[tuple[int, int]] = []
    order, times = array("q"), array("q")
    for change, until in zip(changes, [*(change.taken for change in changes[1:]), None], strict=True):
        heads = [head for head in heads if head[1] not in change.gone]
        heads += [(logs[p][1][done[p]], p) for p in change.come if done[p] < len(logs[p][1])]
        heapq.heapify(heads)
        while heads and (until is None or len(order) < until):
            partition = heads[0][1]
            offsets, timestamps = logs[partition]
            at = done[partition]
            done[partition] = at + 1
            order.append(partition << 48 | offsets[at])
            times.append(timestamps[at])
            if at + 1 < len(timestamps):
                heapq.heapreplace(heads, (timestamps[at + 1], partition))
            else:
                heapq.heappop(heads)
    return Replayed(len(order), crc32(order), crc32(times))


def timestamps_checksum(folder: Path) -> int:
    """Of the timestamps of a log that was written, in its order."""
    columns = []
    for path in sorted(folder.glob("*.log")):
        with FileRecords(path) as records:
            columns += [chunk["timestamp"].copy() for chunk in records.numpy_batches(["timestamp"])]
    return crc32(np.concatenate(columns))


def parquet_tables(path: Path, partitions: int) -> tuple[list[int], list[int]]:
    """The checksum of each partition's table in a Parquet file, and how many rows it has."""
    tables: list[list[tuple[bytes, int, int, bytes]]] = [[] for _ in range(partitions)]
    with pq.ParquetFile(path) as file:
        for group in file.iter_batches(columns=["partition", "key", "offset", "timestamp", "value"]):
            columns = group.to_pydict()
            stamps = group["timestamp"].cast("int64").to_pylist()
            rows = zip(
                columns["partition"], columns["key"], columns["offset"], stamps, columns["value"], strict=True
            )
            for partition, key, offset, timestamp, value in rows:
                tables[partition].append((key, offset, timestamp, value))
    return [table_checksum(rows) for rows in tables], [len(rows) for rows in tables]


def _times(topic: Topic, partition: int) -> tuple[list[int], list[int]]:
    """The offsets and timestamps of a partition's records."""
    columns = []
    for path in _segments(topic, partition):
        with FileRecords(path) as records:
            columns.append(records.to_numpy(["offset", "timestamp"]))
    offsets, timestamps = (np.concatenate([one[name] for one in columns]) for name in ("offset", "timestamp"))
    return offsets.tolist(), timestamps.tolist()


def _segments(topic: Topic, partition: int) -> list[Path]:
    return sorted(topic.folder(partition).glob("*.log"))
