"""Write to a store, which has neither renames nor locks: tasks upload objects, and the driver copies those that won.

    <log directory>/.kafkafmt-<job>.staging/<attempt>/owner.json  <n>.log  .index  .timeindex  .positions
                                            claim.json     the driver checks the segments, to commit them
                                            manifest.json  the job is committed: all objects to copy and to delete
                                            applied.json   all of that is done, only the staged objects are left

The order is that of the local sink. The manifest is one object, written after all checks. Before it, a reader sees
nothing of the job. After it, the segments of a partition appear by ascending offsets, each `.log` after its indexes.
If the driver is killed meanwhile, the next write, or `recover`, applies the manifest. Applying it twice is the same as
once, also at the same time: it never deletes an object that it has copied. Another writer may change a log between the
kill and the next write. So only the changes that are left are applied, and only if they replace or hide no records.

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
from itertools import product
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from kafkafmt.log.partition_metadata import FILE_NAME as PARTITION_METADATA
from kafkafmt.log.segment import LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX
from kafkafmt.spark.sink.broker_files import is_stale_snapshot
from kafkafmt.spark.sink.manifest import StreamBatch, cannot_finish, warn_of_finished
from kafkafmt.spark.sink.placing import by_partition, in_threads, place
from kafkafmt.spark.sink.staging import MANIFEST, OWNER, SEGMENT_SUFFIXES, Owner, is_staging
from kafkafmt.spark.sink.store_manifest import (
    APPLIED,
    CLAIM,
    StoredSegment,
    StoreManifest,
    files_below,
    local_folder,
    object_name,
    remove_staged,
)
from kafkafmt.storage import read_file, stamp_of, write_file

if TYPE_CHECKING:
    from kafkafmt.spark.sink.staging import StagedSegment
    from kafkafmt.storage import FileStatus, RemotePath

_LOG = logging.getLogger(__name__)
# How long a commit waits for those of other drivers.
_WAIT_SECONDS = 60.0
_MOST_PAUSE_SECONDS = 1.0


def stage(
    folder: RemotePath, staging: str, owner: Owner | None, write: Callable[[Path], list[StagedSegment]]
) -> list[StagedSegment]:
    """Upload the segments of an attempt of a task, under names that no other attempt has.

    write: writes the segments durably to a local folder. Raises its errors, and OSError.
    """
    with local_folder() as local:
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
                remove_staged(staging)
            elif segments:
                manifest = self._manifest(segments, batch)
                (staging / CLAIM).stat()  # raises FileNotFoundError if another driver has removed this job
                manifest.write(staging)
                manifest.apply(staging)
            else:
                if batch is not None:
                    batch.note(self._folder)
                remove_staged(staging)

    def _is_committed(self, batch: StreamBatch | None) -> bool:
        return batch is not None and batch.is_committed(self._folder)

    def _remove_former(self, staging: RemotePath, query: str) -> None:
        """Remove the other jobs of a query, or finish their commits. The claim keeps them from being committed now."""
        for other in _stagings(self._folder):
            former = None if other == staging else _owner_of(other, files_below(other))
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
                base + segment.next_offset - segment.base_offset,
            )
            for segment, base in placed
        )
        names = {
            f"{one.partition}/{object_name(one, suffix)}" for one in stored for suffix in SEGMENT_SUFFIXES
        }
        # Transaction indexes of empty segments that are replaced.
        stale = {f"{one.partition}/{object_name(one, TRANSACTION_INDEX_SUFFIX)}" for one in stored}
        lowest = {one.partition: one.base_offset for one in reversed(stored)}
        there = {
            f"{where}/{name}": stamp_of(status)
            for where in partitions
            for name, status in files_below(self._folder / str(where)).items()
        }
        removed = {
            path: stamp
            for path, stamp in there.items()
            for where, _, name in [path.partition("/")]
            if path not in names
            and (
                (self._overwrite and name != PARTITION_METADATA)
                or path in stale
                or is_stale_snapshot(name, lowest[where])
            )
        }
        logs = {path: stamp for path, stamp in there.items() if path.endswith(LOG_SUFFIX)}
        return StoreManifest(stored, removed, batch, logs if self._overwrite else None)


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
    files = files_below(staging)
    if APPLIED in files:
        remove_staged(staging)
        return
    is_over = removes or not files or ((owner := _owner_of(staging, files)) is not None and owner.is_dead())
    if MANIFEST in files:
        manifest = None
        try:
            manifest = StoreManifest.read(staging)
            remaining = manifest.remaining(staging)
        except (OSError, ValueError) as error:
            files = files_below(staging)
            if MANIFEST not in files or APPLIED in files:  # its driver is alive, and has finished meanwhile
                return
            if manifest is None or isinstance(error, OSError):
                raise
            raise cannot_finish(staging, error) from error
        remaining.apply(staging)
        if is_over:
            warn_of_finished(staging, manifest.batch, {segment.partition for segment in manifest.segments})
    elif is_over:
        remove_staged(staging)


@contextlib.contextmanager
def _claimed(staging: RemotePath, owner: Owner | None, query: str | None) -> Iterator[None]:
    """Exclude commits of other drivers in the block. Raises BlockingIOError after a minute, and OSError."""
    claim, end = staging / CLAIM, time.monotonic() + _WAIT_SECONDS
    while True:
        write_file(claim, json.dumps(None if owner is None else vars(owner)).encode())
        other = _claim_of_another(staging)
        if other is None:
            break
        staging.storage.delete(claim)
        if time.monotonic() > end:
            former = _owner_of(other, files_below(other))
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
        files = {} if other == staging else files_below(other)
        if APPLIED in files or not {CLAIM, MANIFEST} & files.keys():
            continue
        owner = _owner_of(other, files)
        if MANIFEST in files or owner is None or not owner.is_dead():
            return other
    return None


def _ensure_staged(staging: RemotePath, segments: Iterable[StagedSegment]) -> None:
    files = files_below(staging)
    for segment, suffix in product(segments, SEGMENT_SUFFIXES):
        status = files.get(f"{segment.stem}{suffix}")
        if status is None or (suffix == LOG_SUFFIX and status.st_size != segment.size_in_bytes):
            found = "no object" if status is None else f"{status.st_size} bytes"
            message = f"expected the {segment.size_in_bytes} bytes that a task uploaded, found {found}"
            raise FileNotFoundError(errno.ENOENT, message, str(staging / f"{segment.stem}{suffix}"))


def _stagings(folder: RemotePath) -> list[RemotePath]:
    try:
        with folder.storage.entries(folder) as entries:
            return sorted(
                folder / entry.name for entry in entries if entry.is_dir() and is_staging(entry.name)
            )
    except FileNotFoundError:
        return []


def _owner_of(staging: RemotePath, files: Mapping[str, FileStatus]) -> Owner | None:
    for name in files:
        if name == CLAIM or name.endswith(f"/{OWNER}"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                return Owner(**json.loads(read_file(staging / name)))
    return None
