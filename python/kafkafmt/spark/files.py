"""The files that a job reads: segments found by paths, and opened wherever a task runs. Local ones."""

from __future__ import annotations

import errno
import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.indexes import OffsetIndex, TimeIndex
from kafkafmt.log.segment import SegmentIndexes, is_segment_file_name
from kafkafmt.records import FileRecords, Records
from kafkafmt.types import TopicPartition

_SIDECARS = (".index", ".timeindex", ".txnindex", ".snapshot")


@dataclass(frozen=True)
class SegmentFile:
    """A segment's file as it was listed: cheap to pickle, nothing is open.

    sidecars: the suffixes of the files that lie beside it, as `.index`.
    """

    path: str
    topic_partition: TopicPartition | None
    base_offset: int
    size_in_bytes: int
    sidecars: frozenset[str]


def list_segments(paths: Sequence[str]) -> list[SegmentFile]:
    """The segments of log directories, partition folders, segment files and globs, each once, by path.

    Raises FileNotFoundError for a path that is not there or holds no segment, ValueError for a file that is none.
    """
    found = {}
    for path in paths:
        local = path.removeprefix("file://").removeprefix("file:")
        matches = [local] if Path(local).exists() else sorted(glob.glob(local))  # noqa: PTH207 (Path.glob takes no absolute path)
        if not matches:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", path)
        files = [file for match in matches for file in _segment_paths(Path(match))]
        if not files:
            raise FileNotFoundError(errno.ENOENT, "no segments here", path)
        found.update({str(file): file for file in files})
    return [_segment_file(file) for _, file in sorted(found.items())]


def _segment_paths(path: Path) -> list[Path]:
    if path.is_file():
        if not is_segment_file_name(path.name):
            raise ValueError(f"{path}: expected a segment, whose name is 20 digits and .log")
        return [path]
    folders = [path, *(folder for folder in path.iterdir() if _is_partition(folder))]
    return [file for folder in folders for file in folder.iterdir() if is_segment_file_name(file.name)]


def _is_partition(folder: Path) -> bool:
    return folder.is_dir() and TopicPartition.from_folder_name(folder.name) is not None


def _segment_file(path: Path) -> SegmentFile:
    beside = frozenset(suffix for suffix in _SIDECARS if path.with_suffix(suffix).exists())
    source = TopicPartition.from_folder_name(path.absolute().parent.name)
    return SegmentFile(str(path), source, int(path.stem), path.stat().st_size, beside)


def read_sidecar(segment: SegmentFile, suffix: str) -> bytes | None:
    """The content of the file beside a segment that has this suffix; None where there is none."""
    if suffix not in segment.sidecars:
        return None
    try:
        return Path(segment.path).with_suffix(suffix).read_bytes()
    except OSError:
        return None


def open_records(
    segment: SegmentFile, start: int = 0, end: int | None = None, *, max_decompressed_bytes: int
) -> FileRecords:
    """The records of a segment from byte `start`, a batch's beginning, to `end`. A context manager."""
    return FileRecords(
        segment.path,
        start,
        end,
        topic_partition=segment.topic_partition,
        max_decompressed_bytes=max_decompressed_bytes,
    )


def split_points(records: Records, split_bytes: int, index: OffsetIndex | None) -> list[int]:
    """Where batches begin, about every `split_bytes`: the bytes at which to cut, both ends left out.

    With an index only the batches at the cuts are read, else all headers. Where damage is in the way no more
    is cut.
    """
    points: list[int] = []
    if index is not None and len(index):
        return _indexed_points(records, split_bytes, index)
    reached = records.start_position
    try:
        for run in records.runs(reuse_memory=True):
            for position in run.index["position"].tolist():
                if position - reached >= split_bytes:
                    points.append(position)
                    reached = position
    except KafkaFormatError:
        pass
    return points


def _indexed_points(records: Records, split_bytes: int, index: OffsetIndex) -> list[int]:
    indexes = SegmentIndexes(index.base_offset, index, TimeIndex.parse(b"", index.base_offset))
    positions = index.entries["position"].astype("i8")
    points: list[int] = []
    slot = int(positions.searchsorted(records.start_position + split_bytes))
    while slot < len(positions) and positions[slot] < records.end_position:
        offset = index.base_offset + int(index.entries["relative_offset"][slot])
        if indexes.is_before(records, int(positions[slot]), offset):
            points.append(int(positions[slot]))
            slot = int(positions.searchsorted(positions[slot] + split_bytes))
        else:
            slot += 1
    return points
