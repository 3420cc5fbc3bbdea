"""The manifest of a commit: a file with all renames, written before the first one, and applied until all are done.

Before the manifest is written, a job has changed nothing that a reader sees. Once it is written, the job is committed.
Its segments then appear one after the other: those of a partition by ascending offsets, each `.log` after its indexes.

- A reader during a commit sees none, the first or all of the new segments of a partition, and never half a segment.
- Of a log that is replaced, it sees the old log, for a moment none, and then the new log.
- If the driver is killed meanwhile, this state stays until the next write to the log directory, or `recover`, applies
  the manifest.

Applying a manifest twice is the same as once: files that are no longer staged were renamed. Renames may reach the disk
in any order, because the manifest is removed after all of them are durable. Another writer may change a log between
the kill and the next commit. So a manifest that is found is checked again before it is applied.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from kafkafmt._util.files import read_regular, replace_file
from kafkafmt._util.names import some_names
from kafkafmt.log.appender import ensure_not_open
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.segment import (
    LOG_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    is_segment_file_name,
    segment_file_name,
)
from kafkafmt.spark.sink.broker_files import forget_changed
from kafkafmt.spark.sink.placing import ensure_free
from kafkafmt.spark.sink.staging import MANIFEST, SEGMENT_SUFFIXES, job_of, remove, sync
from kafkafmt.storage import StoragePath, read_file, write_file
from kafkafmt.types import TopicPartition

_LOG = logging.getLogger(__name__)
_QUERY = re.compile(r"[0-9A-Za-z._-]{1,100}")


def parse_query(value: str) -> str:
    """Return the id of a query or of an application, which is a part of a file's name. Raises ValueError."""
    if not _QUERY.fullmatch(value):
        raise ValueError("expected up to 100 letters, digits, '.', '_' and '-'")
    return value


@dataclass(frozen=True)
class StreamBatch:
    """A micro-batch of a stream, or a batch write with `txnAppId` and `txnVersion`.

    query: the id in the checkpoint of the stream, or the `txnAppId`. number: of the micro-batch, or the `txnVersion`.
    of_application: whether it is a batch write.
    """

    query: str
    number: int
    of_application: bool = False

    def __post_init__(self) -> None:
        parse_query(self.query)

    def __str__(self) -> str:
        if self.of_application:
            return f"the write with txnAppId {self.query} and txnVersion {self.number}"
        return f"batch {self.number} of stream {self.query}"

    def is_committed(self, folder: StoragePath) -> bool:
        """Return whether this or a later batch of the query was committed to a log directory."""
        try:
            record = self._record(folder)
            found = read_regular(record) if isinstance(record, Path) else read_file(record)
            return int(json.loads(found)["batch"]) >= self.number
        except FileNotFoundError:
            return False

    def note(self, folder: StoragePath) -> None:
        """Record durably that the batch is committed."""
        record, data = self._record(folder), json.dumps({"batch": self.number}).encode()
        if isinstance(record, Path):
            replace_file(record, data)
        else:
            write_file(record, data)

    def _record(self, folder: StoragePath) -> StoragePath:
        return folder / f".kafkafmt-{'application' if self.of_application else 'stream'}-{self.query}"


@dataclass(frozen=True)
class PlacedSegment:
    """A staged segment and its target: the name of the partition folder, and the offsets in its log."""

    partition: str
    stem: str
    base_offset: int
    next_offset: int


@dataclass(frozen=True)
class LogEnd:
    """The last segment of a log. An append changes the last segment's base offset or its size.

    An overwrite may replace a damaged log, whose end offset is not known. So this is the end without a look at records.
    """

    base_offset: int
    size_in_bytes: int

    @classmethod
    def of(cls, folder: Path) -> LogEnd | None:
        """Return the end of the log in a folder, or None if there is no folder.

        Of a segment that is no regular file, this takes the size of the folder or of the link itself.
        """
        if not folder.exists():
            return None
        last = max((path for path in folder.iterdir() if is_segment_file_name(path.name)), default=None)
        if last is None:
            return cls(0, 0)
        return cls(int(last.stem), (last.stat() if last.is_file() else last.lstat()).st_size)

    def __str__(self) -> str:
        return f"segment {self.base_offset} of {self.size_in_bytes} bytes at its end"


@dataclass(frozen=True)
class Manifest:
    """The changes of a commit: segments to add, partition folders to replace, and the batch to record.

    segments: by ascending offsets in each partition. replaced: names of partition folders; the n-th new folder is
    staged as `<n>.new`. replaced_ends: the ends of these logs, or None in manifests of version 0.1.0, which lack it.
    """

    segments: tuple[PlacedSegment, ...] = ()
    replaced: tuple[str, ...] = ()
    replaced_ends: tuple[LogEnd | None, ...] | None = None
    batch: StreamBatch | None = None

    def write(self, staging: Path) -> None:
        """Write the manifest durably. This commits the job."""
        replace_file(staging / MANIFEST, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, staging: Path) -> Manifest | None:
        """Return the manifest of a job, or None if the job is not committed."""
        try:
            found = json.loads(read_regular(staging / MANIFEST))
        except FileNotFoundError:
            return None
        for segment in found["segments"]:
            segment.setdefault(
                "next_offset", segment["base_offset"] + 1
            )  # manifests of version 0.1.0 lack it
        ends = found.get("replaced_ends")
        return cls(
            tuple(PlacedSegment(**segment) for segment in found["segments"]),
            tuple(found["replaced"]),
            None if ends is None else tuple(None if end is None else LogEnd(**end) for end in ends),
            StreamBatch(**found["batch"]) if found["batch"] is not None else None,
        )

    def ensure_applicable(self, staging: Path) -> None:
        """Check that the changes that are not done yet replace no records that were added after the manifest.

        Raises ValueError for offsets that the log has meanwhile, or for a replaced log that was changed or made again,
        and BlockingIOError, KafkaFormatError and OSError as a new commit.
        """
        folder = staging.parent
        staged: dict[str, list[PlacedSegment]] = {}
        for segment in self.segments:
            if (staging / f"{segment.stem}{LOG_SUFFIX}").exists():
                staged.setdefault(segment.partition, []).append(segment)
        for name, segments in staged.items():
            ensure_writable(folder, name)
            if (folder / name).exists():
                ensure_free(PartitionLog(folder / name), name, segments)
        for number, name in enumerate(self.replaced):
            if (staging / f"{number}.new").exists():
                ensure_writable(folder, name)
                if (staging / f"{number}.old").exists():
                    if (folder / name).exists():
                        raise ValueError(f"partition {name}: the folder exists again")
                elif self.replaced_ends is not None:
                    _ensure_end(folder / name, self.replaced_ends[number])

    def apply(self, staging: Path) -> None:
        """Do the changes that are not done yet, durably, and remove the staging folder."""
        folder = staging.parent
        partitions = {segment.partition: folder / segment.partition for segment in self.segments}
        for path in partitions.values():
            path.mkdir(exist_ok=True)
        lowest = {one.partition: one.base_offset for one in reversed(self.segments)}
        forget_changed(folder, lowest, self.replaced)
        for segment in self.segments:
            put_segment(staging / segment.stem, partitions[segment.partition], segment.base_offset)
        for number, name in enumerate(self.replaced):
            _replace(folder / name, staging / f"{number}.new", staging / f"{number}.old")
        sync([*partitions.values(), folder])
        if self.batch is not None:
            self.batch.note(folder)
        (staging / MANIFEST).unlink(missing_ok=True)
        remove(staging)


def warn_of_finished(staging: StoragePath, batch: StreamBatch | None, partitions: Iterable[str]) -> None:
    """Log that the commit of a job was finished after its write. Without `batch`, the job may add its rows again.

    partitions: the names of the folders of its partitions.
    """
    topics = {
        found.topic for name in partitions if (found := TopicPartition.from_folder_name(name)) is not None
    }
    _LOG.warning(
        "%s: the commit of %s had begun, and is finished: all of its rows are in the log directory, also if its write "
        "raised an error or was killed",
        staging.parent,
        f"job {job_of(staging.name)}, which writes to {some_names(sorted(topics))},"
        if batch is None
        else batch,
    )


def cannot_finish(staging: StoragePath, error: ValueError) -> ValueError:
    """Return the error for a killed commit whose logs another writer has changed."""
    return ValueError(
        f"{staging}: this commit has begun and cannot be finished, because another writer has changed its "
        f"logs: {error}. Remove this folder to give up its remaining rows"
    )


def ensure_writable(folder: Path, name: str) -> None:
    """Raise OSError if a partition folder is open in another writer, or if segments cannot be renamed into it."""
    path = folder / name
    ensure_not_open(path)
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(errno.ENOENT, "expected a folder, found a link to nothing", str(path))
    if path.exists() and path.stat().st_dev != folder.stat().st_dev:
        message = "expected a folder on the file system of its log directory, found one on another"
        raise OSError(errno.EXDEV, message, str(path))


def _ensure_end(folder: Path, expected: LogEnd | None) -> None:
    """Raise ValueError if a log that is to be replaced does not end as it did when the manifest was written."""
    found = LogEnd.of(folder)
    if found != expected:
        raise ValueError(
            f"partition {folder.name}: expected {expected or 'no folder'}, found {found or 'no folder'}"
        )


def put_segment(staged: Path, folder: Path, base_offset: int) -> None:
    """Rename the files of a staged segment to their names in a log, the `.log` last."""
    for suffix in SEGMENT_SUFFIXES:
        source = staged.with_name(staged.name + suffix)
        with contextlib.suppress(FileNotFoundError):
            if suffix == LOG_SUFFIX and source.exists():  # a dead writer may have left one
                (folder / segment_file_name(base_offset, TRANSACTION_INDEX_SUFFIX)).unlink(missing_ok=True)
            source.rename(folder / segment_file_name(base_offset, suffix))


def _replace(path: Path, new: Path, old: Path) -> None:
    if not new.exists():
        return
    if not old.exists():
        with contextlib.suppress(FileNotFoundError):
            path.rename(old)
    with contextlib.suppress(FileNotFoundError):
        new.rename(path)
