"""The manifest of a commit to a store, and the objects of a job: what is copied and deleted, and what of it is done.

Stores have no renames, so the staged objects stay until all are copied. An object at the place of a segment is its
copy, or one that the segment replaces, or that of another writer. Stamps and the first CRC of a log tell which.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from _kafkafmt.wire.layout import LENGTH_OFFSET
from kafkafmt._util.staging import StagedFolder
from kafkafmt.log.open_segment import HEAD_BYTES
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.segment import LOG_SUFFIX, is_segment_file_name, segment_file_name
from kafkafmt.spark.sink.manifest import StreamBatch
from kafkafmt.spark.sink.offsets import move_offsets
from kafkafmt.spark.sink.placing import ensure_free, in_threads
from kafkafmt.spark.sink.staging import MANIFEST, POSITIONS_SUFFIX, SEGMENT_SUFFIXES
from kafkafmt.storage import read_file, stamp_of, write_file
from kafkafmt.storage.publication import private_folder

if TYPE_CHECKING:
    from kafkafmt.storage import FileStatus, RemotePath

Stamp: TypeAlias = tuple[int, ...]  # as `stamp_of` returns it

CLAIM = "claim.json"
APPLIED = "applied.json"
_LOCAL_NAME = "sink"
_COPY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class StoredSegment:
    """A staged segment and its place: `distance` is added to the offsets of its batches.

    next_offset: -1 in manifests of version 0.1.0, which lack it.
    """

    partition: str
    stem: str
    base_offset: int
    distance: int
    size_in_bytes: int
    next_offset: int = -1


@dataclass(frozen=True)
class StoreManifest:
    """The changes of a commit.

    segments: to copy, by ascending offsets in each partition. removed: objects to delete before, below the log
    directory, with their stamps; no segment is copied to one of them. replaced: all `.log` objects of the partitions
    with their stamps, if the job replaces their logs; None if it appends. batch: to record.

    Manifests of version 0.1.0 have no stamps and no next offsets. They are applied without checks.
    """

    segments: tuple[StoredSegment, ...]
    removed: Mapping[str, Stamp | None]
    batch: StreamBatch | None
    replaced: Mapping[str, Stamp] | None = None

    def write(self, staging: RemotePath) -> None:
        """Write the manifest. This commits the job."""
        write_file(staging / MANIFEST, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, staging: RemotePath) -> StoreManifest:
        """Read the manifest of a job. Raises FileNotFoundError if there is none."""
        found = json.loads(read_file(staging / MANIFEST))
        batch, removed, replaced = found["batch"], found["removed"], found.get("replaced")
        if isinstance(removed, list):
            removed = dict.fromkeys(removed)
        return cls(
            tuple(StoredSegment(**segment) for segment in found["segments"]),
            {path: None if stamp is None else tuple(stamp) for path, stamp in removed.items()},
            None if batch is None else StreamBatch(**batch),
            None if replaced is None else {path: tuple(stamp) for path, stamp in replaced.items()},
        )

    def remaining(self, staging: RemotePath) -> StoreManifest:
        """Return the changes of a killed commit that are not done yet.

        Raises ValueError if another writer has added records that they would replace or hide, KafkaFormatError if
        damage hides the end of a log, and OSError.
        """
        if any(segment.next_offset < 0 for segment in self.segments):
            return self
        left = in_threads(lambda item: self._left(staging, *item), self._partitions().items())
        stamps = {
            f"{name}/{file}": stamp_of(status)
            for name in {path.partition("/")[0] for path in self.removed}
            for file, status in files_below(staging.parent / name).items()
        }
        removed = {path: stamp for path, stamp in self.removed.items() if stamps.get(path) == stamp}
        return replace(self, segments=tuple(chain.from_iterable(left)), removed=removed)

    def _partitions(self) -> dict[str, list[StoredSegment]]:
        partitions: dict[str, list[StoredSegment]] = {}
        for segment in self.segments:
            partitions.setdefault(segment.partition, []).append(segment)
        return partitions

    def _left(
        self, staging: RemotePath, partition: str, segments: list[StoredSegment]
    ) -> list[StoredSegment]:
        """Return the segments of a partition that are not copied yet. Raises as `remaining`."""
        folder = staging.parent / partition
        while True:
            logs = {name: one for name, one in files_below(folder).items() if is_segment_file_name(name)}
            left = [one for one in segments if not self._is_copied(staging, one, logs)]
            try:
                if left and logs:
                    if self.replaced is None:
                        ensure_free(PartitionLog(folder), partition, left)
                    else:
                        copied = {object_name(one, LOG_SUFFIX) for one in segments if one not in left}
                        self._ensure_unchanged(partition, logs.keys() - copied, logs)
            except ValueError:
                logs = files_below(folder)
                if any(self._is_copied(staging, one, logs) for one in left):
                    continue  # the driver is alive, and has copied a segment meanwhile
                raise
            return left

    def _is_copied(self, staging: RemotePath, segment: StoredSegment, logs: Mapping[str, FileStatus]) -> bool:
        """Return whether an object is the copy of a segment: not one that is to be replaced, and with its first CRC."""
        name = object_name(segment, LOG_SUFFIX)
        status = logs.get(name)
        if status is None or status.st_size != segment.size_in_bytes:
            return False
        path = f"{segment.partition}/{name}"
        if self.replaced is not None and self.replaced.get(path) == stamp_of(status):
            return False
        return _first_crc(staging.parent / path) == _first_crc(staging / f"{segment.stem}{LOG_SUFFIX}")

    def _ensure_unchanged(self, partition: str, names: Iterable[str], logs: Mapping[str, FileStatus]) -> None:
        """Raise ValueError if a segment of a log that is to be replaced was written after the manifest."""
        assert self.replaced is not None
        for name in sorted(names):
            if self.replaced.get(f"{partition}/{name}") != stamp_of(logs[name]):
                raise ValueError(f"partition {partition}: {name} was written since")

    def apply(self, staging: RemotePath) -> None:
        """Do all changes, and remove the staged objects. Raises OSError."""
        folder, storage = staging.parent, staging.storage
        try:
            in_threads(lambda name: storage.delete(folder / name), self.removed)
            in_threads(lambda segments: put_all(staging, segments), self._partitions().values())
            if self.batch is not None and not self.batch.is_committed(folder):  # a later one may be
                self.batch.note(folder)
            write_file(staging / APPLIED, b"{}")
        except OSError:
            if not self._is_applied(staging):
                raise
        remove_staged(staging)

    def _is_applied(self, staging: RemotePath) -> bool:
        """Return whether another driver has applied the manifest. It may have removed the staged objects, too."""
        files, folder = files_below(staging), staging.parent
        if APPLIED in files or MANIFEST in files:
            return APPLIED in files
        if self.batch is not None:
            return self.batch.is_committed(folder)
        return all(_is_in_place(folder, segment) for segment in self.segments)


def put_all(staging: RemotePath, segments: Iterable[StoredSegment]) -> None:
    """Copy the segments of a partition to their names, one after the other, the `.log` of each last."""
    for segment in segments:
        folder = staging.parent / segment.partition
        for suffix in SEGMENT_SUFFIXES:
            source, target = staging / f"{segment.stem}{suffix}", folder / object_name(segment, suffix)
            if suffix == LOG_SUFFIX and segment.distance:
                _put_moved(staging, segment, target)
            else:
                staging.storage.copy(source, target)
        found = target.stat().st_size
        if found != segment.size_in_bytes:
            message = f"expected {segment.size_in_bytes} bytes in the store, found {found}"
            raise OSError(errno.EIO, message, str(target))


def _is_in_place(folder: RemotePath, segment: StoredSegment) -> bool:
    target = folder / segment.partition / object_name(segment, LOG_SUFFIX)
    return target.exists() and target.stat().st_size == segment.size_in_bytes


def _put_moved(staging: RemotePath, segment: StoredSegment, target: RemotePath) -> None:
    """Upload the log of a segment with other offsets. It goes through this machine: stores do not change objects."""
    with local_folder() as local:
        paths = [local / f"staged{suffix}" for suffix in (LOG_SUFFIX, POSITIONS_SUFFIX)]
        for path in paths:
            with (
                staging.storage.open(staging / f"{segment.stem}{path.suffix}") as file,
                path.open("wb") as copy,
            ):
                while part := file.read(_COPY_BYTES):
                    copy.write(part)
        move_offsets(paths[0], paths[1], segment.distance)
        target.storage.put(paths[0], target)


def _first_crc(log: RemotePath) -> bytes:
    """Return the first bytes of a segment up to the CRC of its first batch, without the base offset."""
    with log.storage.open(log) as file:
        return bytes(file.read(HEAD_BYTES))[LENGTH_OFFSET:]


def object_name(segment: StoredSegment, suffix: str) -> str:
    return segment_file_name(segment.base_offset, suffix)


def files_below(folder: RemotePath) -> dict[str, FileStatus]:
    """List all objects below a folder, by their paths relative to it."""
    return dict(folder.storage.walk(folder))


def remove_staged(staging: RemotePath) -> None:
    """Remove a staging folder. Its marks are removed last, so that a later run knows what the rest is."""
    attempts = {name.partition("/")[0] for name in files_below(staging) if "/" in name}
    in_threads(lambda name: staging.storage.delete_folder(staging / name), sorted(attempts))
    for name in (MANIFEST, CLAIM, APPLIED):
        if (staging / name).exists():
            staging.storage.delete(staging / name)
    if staging.exists():
        staging.storage.delete_folder(staging)


@contextlib.contextmanager
def local_folder() -> Iterator[Path]:
    """Create a private temporary folder. The next one on this machine removes it if this process is killed."""
    folder = StagedFolder(private_folder(_LOCAL_NAME) / "segments")
    try:
        yield folder.path
    finally:
        folder.remove()
