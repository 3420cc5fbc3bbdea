"""The document's first open question, "Should we buffer records or bytes": `python -m bench.memory.buffering WAY GB`.

All partitions of a topic are buffered whole, then the records are taken in the order of time, and each value is used. A
program for each way: how much the buffers made resident, and how long it took from the files to the last record.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.memory import limited
from bench.memory.limited import AMPLE_BYTES
from bench.memory.per_partition import Buffered, Buffering, PerPartitionReplay, as_bytes
from bench.memory.topic import Topic, topic_of
from kafkafmt import FileRecords, TopicPartition
from kafkafmt.streams import PartitionGroup

if TYPE_CHECKING:
    from kafkafmt import Record

_ALL = sys.maxsize
# Of a partition beside its batches: for a window of its first batch.
_WINDOW_BYTES = 256 * 1024


@dataclass(frozen=True)
class Way:
    """label: of the row. opened: buffers all of a topic and returns its values as they are taken."""

    label: str
    opened: Callable[[Topic], Iterator[Any]]


def _use(value: Any) -> None:
    """What a topology would do with it."""


def _raw(topic: Topic, **options: Any) -> Iterator[bytes | None]:
    """Raw batches: of the first of each partition so many records are located as fit beside them."""
    stored = max(sum(path.stat().st_size for path in _segments(topic, n)) for n in range(topic.partitions))
    group = PartitionGroup(stored * 4 // 3 + _WINDOW_BYTES, **options)
    for number in range(topic.partitions):
        topic_partition = TopicPartition(topic.name, number)
        group.add(topic_partition, 0)
        for path in _segments(topic, number):
            with FileRecords(path) as records:
                for run in records.runs():
                    group.feed(topic_partition, run)
        group.finish(topic_partition)
    while (taken := group.take()) is not None:
        for record in taken.records():
            yield record.value


def _objects(topic: Topic, buffered: Callable[[Record], Buffered]) -> Iterator[Any]:
    replay = PerPartitionReplay(topic, Buffering(_ALL, buffered))
    replay.assign(range(topic.partitions))
    while (taken := replay.take()) is not None:
        for _, records in taken:
            for record in records:
                yield record.value


def _deserialised(value: bytes | None) -> Any:
    return None if value is None else json.loads(value)


def _as_object(record: Record) -> Buffered:
    return Buffered(record.timestamp, record.offset, record.key, _deserialised(record.value))


def _extracted(record: Record, partition_time: int) -> int:
    """A timestamp of the user's own: the value is deserialised for it and thrown away."""
    _deserialised(record.value)
    return record.timestamp


WAYS = {
    "raw": Way("raw batches", _raw),
    "bytes": Way("records, key and value as bytes", lambda topic: _objects(topic, as_bytes)),
    "raw-json": Way("raw batches, deserialised when taken", lambda topic: map(_deserialised, _raw(topic))),
    "extractor": Way(
        "the same, and for the user's own timestamp",
        lambda topic: map(_deserialised, _raw(topic, timestamp_extractor=_extracted)),
    ),
    "objects": Way("deserialised objects", lambda topic: _objects(topic, _as_object)),
}


def main(way: str, gigabytes: str) -> None:
    topic = topic_of(float(gigabytes))
    start = limited.begin(AMPLE_BYTES)
    began = time.process_time()
    values = WAYS[way].opened(topic)
    _use(next(values))
    full = limited.status_bytes()["RssAnon"] - start["RssAnon"]
    records = 1
    for value in values:
        _use(value)
        records += 1
    limited.end({"records": records, "full_bytes": full, "seconds": time.process_time() - began})


def _segments(topic: Topic, number: int) -> list[Any]:
    return sorted(topic.folder(number).glob("*.log"))


if __name__ == "__main__":
    main(*sys.argv[1:])
