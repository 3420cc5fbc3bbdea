"""Segments that Kafka's `LocalTieredStorage` stored, or that were copied from there to an object store. The files:

    kafka-tiered-storage/<topic>-<partition>-<topic id>/<base offset>-<segment id>.log
                                                                                  .index
                                                                                  .timeindex
                                                                                  .txnindex (of segments with aborts)
                                                                                  .leader_epoch_checkpoint
                                                                                  .snapshot

Base offsets have zeros in front, or none. There is no manifest. The leader epochs are those of the checkpoint from the
base offset on, and the last offset is that of the last batch.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from functools import partial

from kafkafmt._util.sizes import MIB
from kafkafmt.errors import KafkaFormatError
from kafkafmt.records.base import MemoryRecords
from kafkafmt.storage.base import FileStatus
from kafkafmt.storage.chunks import ChunkCache, ChunkedFile, ChunkIndex
from kafkafmt.storage.paths import StoragePath, side_by_side
from kafkafmt.storage.remote import RemotePath
from kafkafmt.storage.tiered.lineage import CHECKPOINT_SUFFIX, LeaderEpochs, read_checkpoint
from kafkafmt.storage.tiered.objects import (
    OpenedSegments,
    StoredObjects,
    StoredPartition,
    ensure_none_missing,
    grouped,
)
from kafkafmt.storage.tiered.segments import RemoteSegment
from kafkafmt.storage.views import ViewFile

_ID = "[A-Za-z0-9_-]{22}"
_CHECKPOINT = "leader_epoch_checkpoint"
_SUFFIXES = {
    **{name: f".{name}" for name in ("log", "index", "timeindex", "txnindex", "snapshot")},
    _CHECKPOINT: CHECKPOINT_SUFFIX,
}
_KEY = re.compile(
    rf"(?:.*/)?(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>[0-9]{{1,10}})-(?P<topic_id>{_ID})/"
    rf"(?P<name>(?P<offset>[0-9]{{1,20}})-(?P<segment_id>{_ID}))\.(?P<suffix>{'|'.join(_SUFFIXES)})"
)
_OFFSET_ENTRY = struct.Struct(">ii")
_MAX_TAIL_BYTES = 64 * MIB


class LocalPartition(StoredPartition):
    """A partition whose objects are in Kafka's layout."""


def find_local_partitions(root: StoragePath, found: Mapping[str, FileStatus]) -> list[LocalPartition]:
    """Return the partitions of Kafka's layout below `root`, which may be the folder of a partition.

    found: the status of each file, by path below `root`.
    """
    return grouped(root, found, _KEY, root.name, LocalPartition)


class LocalSegmentReader:
    """Opens the files of segments, and reads where each segment ends. A segment is read once.

    opened: the segments that were read.
    """

    def __init__(self, cache: ChunkCache) -> None:
        self._cache = cache
        self.opened = OpenedSegments("log")

    def segments(self, stored: StoredPartition) -> list[RemoteSegment]:
        """Return the complete segments of a partition, by base offset. Segments are read side by side.

        Kafka copies the log first. A segment without a checkpoint is left out. Raises StoredObjectError if offsets are
        missing, as `ensure_none_missing`. If no segment has a checkpoint, none was copied with the logs, and all
        segments are complete.
        """
        with_log = {name: one for name, one in stored.objects.items() if "log" in one.paths}
        complete = {name: one for name, one in with_log.items() if _CHECKPOINT in one.paths} or with_log
        in_parallel = any(isinstance(one.paths["log"][0], RemotePath) for one in complete.values())
        opened = side_by_side(partial(self._segment, stored), complete.values(), in_parallel=in_parallel)
        segments = sorted(opened, key=lambda one: (one.base_offset, one.segment_id))
        message = "the file is missing; the partition has later segments"
        for needed, left_out in (
            ("log", stored.objects.keys() - with_log.keys()),
            (_CHECKPOINT, with_log.keys() - complete.keys()),
        ):
            incomplete = {name: stored.objects[name] for name in sorted(left_out)}
            ensure_none_missing(incomplete, segments, needed, message)
        return segments

    def _segment(self, stored: StoredPartition, objects: StoredObjects) -> RemoteSegment:
        return self.opened.get(objects, lambda: self._opened(stored, objects))

    def _opened(self, stored: StoredPartition, objects: StoredObjects) -> RemoteSegment:
        files: dict[str, ViewFile] = {}
        for suffix, (path, status) in objects.paths.items():
            size = status.st_size
            index = ChunkIndex(max(size, 1), size, (size,) if size else ())
            files[_SUFFIXES[suffix]] = ChunkedFile(path, index, (), status.st_mtime_ns, 0, self._cache)
        return RemoteSegment(
            stored.topic,
            stored.topic_id,
            stored.partition,
            objects.segment_id,
            objects.base_offset,
            _end_offset(files),
            _leader_epochs(objects, files),
            files,
            event_timestamp_ms=objects.paths["log"][1].st_mtime_ns // 1_000_000,
        )


def _leader_epochs(objects: StoredObjects, files: Mapping[str, ViewFile]) -> LeaderEpochs:
    """Return the leader epochs from the base offset on, as Kafka's metadata of a segment has them."""
    checkpoint = files.get(CHECKPOINT_SUFFIX)
    if checkpoint is None:
        return ()
    epochs = read_checkpoint(checkpoint, objects.paths[_CHECKPOINT][0])
    before = [epoch for epoch, offset in epochs if offset <= objects.base_offset]
    after = [(epoch, offset) for epoch, offset in epochs if offset > objects.base_offset]
    return (*((epoch, objects.base_offset) for epoch in before[-1:]), *after)


def _end_offset(files: Mapping[str, ViewFile]) -> int:
    """Return the offset of the last record; -1 if that needs the whole log, or if its end is damaged."""
    log, index = files[".log"], files.get(".index")
    if index is None:
        return -1
    data = bytes(index.read_at(0, index.size))
    position = 0
    for _, found in _OFFSET_ENTRY.iter_unpack(data[: len(data) // _OFFSET_ENTRY.size * _OFFSET_ENTRY.size]):
        # An index that was not trimmed has zeros after its entries.
        if position < found < log.size:
            position = found
    if log.size - position > _MAX_TAIL_BYTES:
        return -1
    try:
        batches = MemoryRecords(log.read_at(position, log.size - position)).index()
    except KafkaFormatError:
        return -1  # a reader of the log will report the damage
    return int(batches["last_offset"][-1]) if len(batches) else -1
