"""Write to a store, which has neither renames nor locks: tasks upload objects, and the driver copies those that won.

    <log directory>/.kafkafmt-<job>.staging/<attempt>/owner.json  <n>.log  .index  .timeindex  .positions
                                            claim.json     the driver checks the segments, to commit them
                                            manifest.json  the job is committed: all objects to copy and to delete
                                            applied.json   all of that is done, only the staged objects are left

The order is that of the local sink. The manifest is one object, written after all checks. Before it, a reader sees
nothing of the job. After it, the segments of a partition appear by ascending offsets, each `.log` after its indexes.
If the driver is killed meanwhile, the next write, or `recover`, applies the manifest. Applying it twice is the same as
once, also at the same time: it never deletes an object that it has copied.

Stores list an object as soon as it is written (S3, Google Cloud Storage, Azure). So a claim replaces the lock: a driver
writes its claim, and then lists the claims of others. Of two drivers, at least one sees the other. It removes its claim
and tries again later. A restarted stream takes the claim of its former driver over after a minute, and so does a batch
write that of a former one with its `txnAppId`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from kafkafmt._util.staging import StagedFolder
from kafkafmt.log.partition_metadata import FILE_NAME as PARTITION_METADATA
from kafkafmt.log.segment import LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX, segment_file_name
from kafkafmt.spark.sink.broker_files import is_stale_snapshot
from kafkafmt.spark.sink.manifest import StreamBatch, warn_of_finished
from kafkafmt.spark.sink.offsets import move_offsets
from kafkafmt.spark.sink.placing import by_partition, in_threads, place
from kafkafmt.spark.sink.staging import MANIFEST, OWNER, POSITIONS_SUFFIX, SEGMENT_SUFFIXES, Owner, is_staging
from kafkafmt.storage import read_file, write_file
from kafkafmt.storage.publication import private_folder

if TYPE_CHECKING:
    from kafkafmt.spark.sink.staging import StagedSegment
    from kafkafmt.storage import FileStatus, RemotePath

_LOG = logging.getLogger(__name__)
_CLAIM = "claim.json"
_APPLIED = "applied.json"
_LOCAL_NAME = "sink"
_COPY_BYTES = 8 * 1024 * 1024
# How long a commit waits for those of other drivers.
_WAIT_SECONDS = 60.0
_MOST_PAUSE_SECONDS = 1.0


def stage(
    folder: RemotePath, staging: str, owner: Owner | None, write: Callable[[Path], list[StagedSegment]]
) -> list[StagedSegment]:
    """Upload the segments of an attempt of a task, under names that no other attempt has.

    write: writes the segments durably to a local folder. Raises its errors, and OSError.
    """
    with _local_folder() as local:
        attempt = local / token_hex(8)
        attempt.mkdir()
        segments = write(attempt)
        target = folder / staging / attempt.name
        try:
            if owner is not None:
                write_file(target / OWNER, json.dumps(vars(owner)).encode())
            in_threads(lambda path: target.storage.put(path, target / path.name), sorted(attempt.iterdir()))
        except BaseException:
            with contextlib.suppress(OSError):
                target.storage.delete_folder(target)
            raise
        return segments


@dataclass(frozen=True)
class StoredSegment:
    """A staged segment and its place: `distance` is added to the offsets of its batches."""

    partition: str
    stem: str
    base_offset: int
    distance: int
    size_in_bytes: int


@dataclass(frozen=True)
class StoreManifest:
    """The changes of a commit.

    segments: to copy, by ascending offsets in each partition. removed: objects to delete before, below the log
    directory; no segment is copied to one of them. batch: to record.
    """

    segments: tuple[StoredSegment, ...]
    removed: tuple[str, ...]
    batch: StreamBatch | None

    def write(self, staging: RemotePath) -> None:
        """Write the manifest. This commits the job."""
        write_file(staging / MANIFEST, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, staging: RemotePath) -> StoreManifest:
        """Read the manifest of a job. Raises FileNotFoundError if there is none."""
        found = json.loads(read_file(staging / MANIFEST))
        batch = found["batch"]
        segments = tuple(StoredSegment(**segment) for segment in found["segments"])
        return cls(segments, tuple(found["removed"]), None if batch is None else StreamBatch(**batch))

    def apply(self, staging: RemotePath) -> None:
        """Do all changes, and remove the staged objects. Raises OSError."""
        folder, storage = staging.parent, staging.storage
        partitions: dict[str, list[StoredSegment]] = {}
        for segment in self.segments:
            partitions.setdefault(segment.partition, []).append(segment)
        try:
            in_threads(lambda name: storage.delete(folder / name), self.removed)
            in_threads(lambda segments: _put_all(staging, segments), partitions.values())
            if self.batch is not None:
                self.batch.note(folder)
            write_file(staging / _APPLIED, b"{}")
        except OSError:
            if not self._is_applied(staging):
                raise
        _remove(staging)

    def _is_applied(self, staging: RemotePath) -> bool:
        """Return whether another driver has applied the manifest. It may have removed the staged objects, too."""
        files, folder = _files(staging), staging.parent
        if _APPLIED in files or MANIFEST in files:
            return _APPLIED in files
        if self.batch is not None:
            return self.batch.is_committed(folder)
        return all(_is_in_place(folder, segment) for segment in self.segments)


class StoreCommit:
    """Commits jobs to a log directory on a store. overwrite: replace the logs of the written partitions."""

    def __init__(self, folder: RemotePath, *, keeps_offsets: bool, overwrite: bool = False) -> None:
        self._folder, self._keeps_offsets, self._overwrite = folder, keeps_offsets, overwrite

    def run(
        self,
        name: str,
        segments: Sequence[StagedSegment],
        batch: StreamBatch | None = None,
        owner: Owner | None = None,
    ) -> None:
        """Copy the segments to their logs. Does nothing for a batch that was committed before.

        Only records a batch without segments.

        Raises BlockingIOError if another driver commits for a long time; else as `Commit.run`.
        """
        staging = self._folder / name
        query = None if batch is None else batch.query
        recover_store(self._folder)
        with _claimed(staging, owner, query):
            if not self._is_committed(batch):
                # Another driver may have removed this job, and then works on the other jobs.
                _ensure_staged(staging, segments)
                if query is not None:
                    self._remove_former(staging, query)
            if self._is_committed(batch):
                _LOG.warning("%s: %s was already committed: it is left out", self._folder, batch)
                _remove(staging)
            elif segments:
                manifest = self._manifest(segments, batch)
                (staging / _CLAIM).stat()  # raises FileNotFoundError if another driver has removed this job
                manifest.write(staging)
                manifest.apply(staging)
            else:
                if batch is not None:
                    batch.note(self._folder)
                _remove(staging)

    def _is_committed(self, batch: StreamBatch | None) -> bool:
        return batch is not None and batch.is_committed(self._folder)

    def _remove_former(self, staging: RemotePath, query: str) -> None:
        """Remove the other jobs of a query, or finish their commits. The claim keeps them from being committed now."""
        for other in _stagings(self._folder):
            former = None if other == staging else _owner_of(other, _files(other))
            if former is not None and former.query == query:
                _finish(other, removes=True)

    def _manifest(self, segments: Sequence[StagedSegment], batch: StreamBatch | None) -> StoreManifest:
        partitions = by_partition(segments)
        placed = place(self._folder, partitions, keeps_offsets=self._keeps_offsets, overwrite=self._overwrite)
        stored = tuple(
            StoredSegment(
                str(segment.topic_partition),
                segment.stem,
                base,
                base - segment.base_offset,
                segment.size_in_bytes,
            )
            for segment, base in placed
        )
        names = {f"{one.partition}/{_name(one, suffix)}" for one in stored for suffix in SEGMENT_SUFFIXES}
        # Transaction indexes of empty segments that are replaced.
        stale = {f"{one.partition}/{_name(one, TRANSACTION_INDEX_SUFFIX)}" for one in stored}
        lowest = {one.partition: one.base_offset for one in reversed(stored)}
        removed = [
            path
            for where in partitions
            for name in _files(self._folder / str(where))
            if (path := f"{where}/{name}") not in names
            and (
                (self._overwrite and name != PARTITION_METADATA)
                or path in stale
                or is_stale_snapshot(name, lowest[str(where)])
            )
        ]
        return StoreManifest(stored, tuple(removed), batch)


def abort_store(folder: RemotePath, names: Iterable[str]) -> None:
    """Remove the staged objects of a job, or finish its commit if the manifest is written. Raises OSError."""
    for name in names:
        _finish(folder / name, removes=True)


def recover_store(folder: RemotePath, *, remove_staging: bool = False) -> None:
    """Finish the commits of killed drivers, and remove the staged objects of dead jobs. See `recover`."""

    for staging in _stagings(folder):
        _finish(staging, removes=remove_staging)


def _finish(staging: RemotePath, *, removes: bool) -> None:
    """Apply the manifest of a job. Without one remove the job, if it is dead or if `removes` is set.

    A driver that may be alive applies its manifest itself, too, so there is no warning then.
    """
    files = _files(staging)
    if _APPLIED in files:
        _remove(staging)
        return
    is_over = removes or not files or ((owner := _owner_of(staging, files)) is not None and owner.is_dead())
    if MANIFEST in files:
        try:
            manifest = StoreManifest.read(staging)
        except FileNotFoundError:  # its driver is alive, and has finished meanwhile
            return
        manifest.apply(staging)
        if is_over:
            warn_of_finished(staging, manifest.batch, {segment.partition for segment in manifest.segments})
    elif is_over:
        _remove(staging)


@contextlib.contextmanager
def _claimed(staging: RemotePath, owner: Owner | None, query: str | None) -> Iterator[None]:
    """Exclude commits of other drivers in the block. Raises BlockingIOError after a minute, and OSError."""
    claim, end = staging / _CLAIM, time.monotonic() + _WAIT_SECONDS
    while True:
        write_file(claim, json.dumps(None if owner is None else vars(owner)).encode())
        other = _claim_of_another(staging)
        if other is None:
            break
        staging.storage.delete(claim)
        if time.monotonic() > end:
            former = _owner_of(other, _files(other))
            if query is None or former is None or former.query != query:
                message = (
                    "another write is being committed to this log directory. If its driver is dead, "
                    "kafkafmt.spark.recover(path, remove_staging=True) removes it"
                )
                raise BlockingIOError(errno.EAGAIN, message, str(other))
            _finish(other, removes=True)
        else:
            time.sleep(random.uniform(0, _MOST_PAUSE_SECONDS))
            recover_store(staging.parent)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            staging.storage.delete(claim)
        raise


def _claim_of_another(staging: RemotePath) -> RemotePath | None:
    """Return a staging folder that another driver commits, unless that is known to be dead."""
    for other in _stagings(staging.parent):
        files = {} if other == staging else _files(other)
        if _APPLIED in files or not {_CLAIM, MANIFEST} & files.keys():
            continue
        owner = _owner_of(other, files)
        if MANIFEST in files or owner is None or not owner.is_dead():
            return other
    return None


def _put_all(staging: RemotePath, segments: Iterable[StoredSegment]) -> None:
    """Copy the segments of a partition to their names, one after the other, the `.log` of each last."""
    for segment in segments:
        folder = staging.parent / segment.partition
        for suffix in SEGMENT_SUFFIXES:
            source, target = staging / f"{segment.stem}{suffix}", folder / _name(segment, suffix)
            if suffix == LOG_SUFFIX and segment.distance:
                _put_moved(staging, segment, target)
            else:
                staging.storage.copy(source, target)
        found = target.stat().st_size
        if found != segment.size_in_bytes:
            message = f"expected {segment.size_in_bytes} bytes in the store, found {found}"
            raise OSError(errno.EIO, message, str(target))


def _is_in_place(folder: RemotePath, segment: StoredSegment) -> bool:
    target = folder / segment.partition / _name(segment, LOG_SUFFIX)
    return target.exists() and target.stat().st_size == segment.size_in_bytes


def _put_moved(staging: RemotePath, segment: StoredSegment, target: RemotePath) -> None:
    """Upload the log of a segment with other offsets. It goes through this machine: stores do not change objects."""
    with _local_folder() as local:
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


def _ensure_staged(staging: RemotePath, segments: Iterable[StagedSegment]) -> None:
    files = _files(staging)
    for segment, suffix in product(segments, SEGMENT_SUFFIXES):
        status = files.get(f"{segment.stem}{suffix}")
        if status is None or (suffix == LOG_SUFFIX and status.st_size != segment.size_in_bytes):
            found = "no object" if status is None else f"{status.st_size} bytes"
            message = f"expected the {segment.size_in_bytes} bytes that a task uploaded, found {found}"
            raise FileNotFoundError(errno.ENOENT, message, str(staging / f"{segment.stem}{suffix}"))


def _name(segment: StoredSegment, suffix: str) -> str:
    return segment_file_name(segment.base_offset, suffix)


def _stagings(folder: RemotePath) -> list[RemotePath]:
    try:
        with folder.storage.entries(folder) as entries:
            return sorted(
                folder / entry.name for entry in entries if entry.is_dir() and is_staging(entry.name)
            )
    except FileNotFoundError:
        return []


def _files(folder: RemotePath) -> dict[str, FileStatus]:
    """List all objects below a folder, by their paths relative to it."""
    return dict(folder.storage.walk(folder))


def _owner_of(staging: RemotePath, files: Mapping[str, FileStatus]) -> Owner | None:
    for name in files:
        if name == _CLAIM or name.endswith(f"/{OWNER}"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                return Owner(**json.loads(read_file(staging / name)))
    return None


def _remove(staging: RemotePath) -> None:
    """Remove a staging folder. Its marks are removed last, so that a later run knows what the rest is."""
    attempts = {name.partition("/")[0] for name in _files(staging) if "/" in name}
    in_threads(lambda name: staging.storage.delete_folder(staging / name), sorted(attempts))
    for name in (MANIFEST, _CLAIM, _APPLIED):
        if (staging / name).exists():
            staging.storage.delete(staging / name)
    if staging.exists():
        staging.storage.delete_folder(staging)


@contextlib.contextmanager
def _local_folder() -> Iterator[Path]:
    """Create a private temporary folder. The next one on this machine removes it if this process is killed."""
    folder = StagedFolder(private_folder(_LOCAL_NAME) / "segments")
    try:
        yield folder.path
    finally:
        folder.remove()
