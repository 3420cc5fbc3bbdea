"""The point of no return: what a commit renames is written down first, and done again until all of it is done.

Before the manifest is there, a job has done nothing that a reader sees. From then on it is committed, and its
segments appear one after the other: those of a partition by ascending offsets, a `.log` behind its indexes. So a
reader in the middle of a commit sees the first part, none or all of what each partition gets, never half a segment;
and of a log that is replaced the old one, for a moment none, and the new one. Where the driver is killed in these
moments it stays like that until the manifest is applied: by the next write to the log directory, or `recover`.

Applying it twice does what applying it once does: what is no longer staged was renamed. Renames need not reach the
disk in their order, as the manifest stays until all of them have.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from kafkafmt._util.files import read_regular, replace_file
from kafkafmt.log.segment import LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX, segment_file_name
from kafkafmt.spark.sink.staging import MANIFEST, SEGMENT_SUFFIXES, remove, sync

_QUERY = re.compile(r"[0-9A-Za-z-]{1,100}")


@dataclass(frozen=True)
class StreamBatch:
    """A micro-batch of a stream: `query` is the id that the query's checkpoint holds."""

    query: str
    number: int

    def is_committed(self, folder: Path) -> bool:
        """Was this batch of the query, or a later one, committed to a log directory?"""
        try:
            return int(json.loads(read_regular(self._record(folder)))["batch"]) >= self.number
        except FileNotFoundError:
            return False

    def note(self, folder: Path) -> None:
        """Have `is_committed` say so, durably."""
        replace_file(self._record(folder), json.dumps({"batch": self.number}).encode())

    def _record(self, folder: Path) -> Path:
        if not _QUERY.fullmatch(self.query):
            raise ValueError(f"query id: expected letters, digits and dashes, found {self.query!r}")
        return folder / f".kafkafmt-stream-{self.query}"


@dataclass(frozen=True)
class PlacedSegment:
    """A staged segment, and what it is to be: `partition` is the name of its folder."""

    partition: str
    stem: str
    base_offset: int


@dataclass(frozen=True)
class Manifest:
    """What a commit does: segments to be added, folders of partitions that replace those there are, a batch to note.

    segments: by ascending offsets in each partition. replaced: names of partitions' folders; the n-th is staged as
    `<n>.new`.
    """

    segments: tuple[PlacedSegment, ...] = ()
    replaced: tuple[str, ...] = ()
    batch: StreamBatch | None = None

    def write(self, staging: Path) -> None:
        """The commit, durably: until then nothing has happened."""
        replace_file(staging / MANIFEST, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, staging: Path) -> Manifest | None:
        """That of a job; None where it is not committed."""
        try:
            found = json.loads(read_regular(staging / MANIFEST))
        except FileNotFoundError:
            return None
        return cls(
            tuple(PlacedSegment(**segment) for segment in found["segments"]),
            tuple(found["replaced"]),
            StreamBatch(**found["batch"]) if found["batch"] is not None else None,
        )

    def apply(self, staging: Path) -> None:
        """Do what is not done yet, durably, and remove the staging folder."""
        folder = staging.parent
        partitions = {segment.partition: folder / segment.partition for segment in self.segments}
        for path in partitions.values():
            path.mkdir(exist_ok=True)
        for segment in self.segments:
            put_segment(staging / segment.stem, partitions[segment.partition], segment.base_offset)
        for number, name in enumerate(self.replaced):
            _replace(folder / name, staging / f"{number}.new", staging / f"{number}.old")
        sync([*partitions.values(), folder])
        if self.batch is not None:
            self.batch.note(folder)
        (staging / MANIFEST).unlink(missing_ok=True)
        remove(staging)


def put_segment(staged: Path, folder: Path, base_offset: int) -> None:
    """Rename a segment's files to what a log calls them, the log last."""
    for suffix in SEGMENT_SUFFIXES:
        source = staged.with_name(staged.name + suffix)
        with contextlib.suppress(FileNotFoundError):
            if suffix == LOG_SUFFIX and source.exists():  # what a dead writer may have left
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
