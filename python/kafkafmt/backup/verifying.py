"""Verify a backup: read back what a generation names, and compare it with the manifest.

Each object is read once, into a temporary folder of one segment: its size and SHA-256 are compared, its chunks are
decrypted and decompressed, and its batches and indexes are checked as those of any log.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from kafkafmt._util.files import naming_errors
from kafkafmt._util.sizes import MIB
from kafkafmt._util.user_errors import UserError
from kafkafmt.backup.listing import segments_of
from kafkafmt.jobs.verify import check_file
from kafkafmt.log.segment import Segment, segment_file_name
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage import OpenFile, StoragePath, storage_of
from kafkafmt.storage.backups.errors import BackupError
from kafkafmt.storage.backups.generations import (
    choose_generation,
    generation_names,
    generation_path,
    read_generation,
    read_identity,
)
from kafkafmt.storage.backups.manifest import SEGMENTS_FOLDER, BackedUpSegment, Manifest, StoredFile
from kafkafmt.storage.backups.sealing import Unwraps, chunked_file, object_path
from kafkafmt.storage.chunks import ChunkCache
from kafkafmt.storage.keys import KeyRingError

_READ_BYTES = 4 * MIB
_AT_ONCE = 4


@dataclass
class ObjectCheck:
    """The result for one object, or for a manifest.

    path: of the object, or of the segment's objects without a suffix.
    stored_bytes: what was read, or listed by a quick check.
    findings: what is wrong, a line each. notes: gaps in the offsets before the segment, which are no fault.
    is_decrypted: False if the segment is encrypted and there is no key ring: then only objects were compared.
    """

    path: str
    topic: str | None = None
    partition: int | None = None
    base_offset: int | None = None
    next_offset: int | None = None
    stored_bytes: int = 0
    batches: int = 0
    records: int = 0
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_decrypted: bool = True

    @property
    def is_ok(self) -> bool:
        return not self.findings


@dataclass(frozen=True)
class Verification:
    """Verifies generations of the backup in `folder`.

    generation: as for `choose_generation`; None for the last one. is_all: all generations, each object once.
    key_ring: unwraps the data keys of encrypted segments; without it their objects are compared, and not decrypted.
    is_quick: compare only the presence and sizes of objects.
    """

    folder: StoragePath
    generation: str | None = None
    is_all: bool = False
    key_ring: Unwraps | None = None
    is_quick: bool = False

    def run(self) -> Iterator[ObjectCheck]:
        """Yield a check of each manifest, and of each segment. Raises BackupError and OSError if there is no backup.

        Raises OSError also if the folder for temporary files cannot be written, as that is no finding.
        """
        backup_id = read_identity(self.folder).id
        chosen = None if self.is_all else choose_generation(self.folder, self.generation)
        names = generation_names(self.folder) if chosen is None else [chosen]
        if not names:
            raise BackupError(f"{self.folder}: the backup has no generation")
        known: set[str] = set()
        for name in reversed(names):
            check = ObjectCheck(str(generation_path(self.folder, name)))
            try:
                manifest = read_generation(self.folder, name)
            except (BackupError, OSError) as error:
                check.findings.append(_in_words(error).removeprefix(f"{check.path}: "))
                yield check
                continue
            yield check
            segments = [one for one in segments_of(manifest) if one.object not in known]
            known.update(one.object for one in segments)
            gaps = _gaps(manifest)
            for found in self._checks(segments, backup_id):
                found.notes += gaps.get(found.path, [])
                yield found

    def _checks(self, segments: list[BackedUpSegment], backup_id: str) -> Iterator[ObjectCheck]:
        if self.is_quick:
            place = self.folder / SEGMENTS_FOLDER
            sizes = {name: status.st_size for name, status in storage_of(place).walk(place)}
            for segment in segments:
                yield _quick_check(segment, sizes)
            return
        waiting: deque[Future[ObjectCheck]] = deque()
        threads = ThreadPoolExecutor(_AT_ONCE, "verify")
        try:
            for segment in segments:
                waiting.append(threads.submit(self._check, segment, backup_id))
                if len(waiting) > 2 * _AT_ONCE:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)

    def _check(self, segment: BackedUpSegment, backup_id: str) -> ObjectCheck:
        check = _check_of(segment)
        check.is_decrypted = segment.key is None or self.key_ring is not None
        with tempfile.TemporaryDirectory(prefix="kafkafmt-verify-") as temporary:
            place = Path(temporary) / f"{check.topic}-{check.partition}"
            place.mkdir()
            log = place / segment_file_name(segment.base_offset)
            is_whole, decrypts = True, check.is_decrypted
            for suffix, file in segment.files.items():
                reader = _ObjectReader(object_path(self.folder, segment, suffix), segment, suffix, file)
                try:
                    check.stored_bytes += reader.fetch(place / "stored")
                    if decrypts:
                        reader.restore(place / "stored", log.with_suffix(suffix), backup_id, self.key_ring)
                except KeyRingError as error:
                    check.findings.append(str(error))
                    is_whole = decrypts = False  # all files of a segment have the same key
                except (OSError, UserError) as error:
                    if isinstance(error, OSError) and str(error.filename).startswith(temporary):
                        raise
                    check.findings.append(f"{suffix}: {_in_words(error)}")
                    is_whole = False
            if is_whole and check.is_decrypted:
                _check_log(check, segment, log)
        return check


@dataclass(frozen=True)
class _ObjectReader:
    path: StoragePath
    segment: BackedUpSegment
    suffix: str
    file: StoredFile

    def fetch(self, target: Path) -> int:
        """Copy the object to a local file. Returns its size. Raises StoredObjectError if it is not what was stored.

        The copy ends before bytes that the manifest does not have: an object of any size could fill the disk.
        """
        digest, size = hashlib.sha256(), 0
        try:
            with (
                storage_of(self.path).open(self.path) as source,
                naming_errors(target),
                target.open("wb") as copy,
            ):
                while chunk := self._next_chunk(source):
                    size += len(chunk)
                    if size > self.file.stored_size:
                        break
                    digest.update(chunk)
                    copy.write(chunk)
        except FileNotFoundError:
            raise StoredObjectError(self.path, "the object is missing") from None
        if size > self.file.stored_size:
            raise StoredObjectError(self.path, f"expected {self.file.stored_size} bytes, found more")
        if size != self.file.stored_size:
            raise StoredObjectError(self.path, f"expected {self.file.stored_size} bytes, found {size}")
        if digest.hexdigest() != self.file.sha256:
            raise StoredObjectError(
                self.path,
                f"expected SHA-256 {self.file.sha256}, found {digest.hexdigest()}: the bytes differ",
            )
        return size

    def _next_chunk(self, source: OpenFile) -> bytes:
        with naming_errors(str(self.path)):
            return source.read(_READ_BYTES)

    def restore(self, stored: Path, target: Path, backup_id: str, key_ring: Unwraps | None) -> None:
        """Write the original bytes of a stored file, and remove that. Raises OSError and KeyRingError."""
        if not self.file.chunk_bytes:
            stored.rename(target)
            return
        source = chunked_file(
            stored, self.segment, self.suffix, backup_id=backup_id, key_ring=key_ring, cache=ChunkCache(1)
        )
        try:
            with naming_errors(target), target.open("wb") as copy:
                for position in range(0, self.file.size, self.file.chunk_bytes):
                    copy.write(source.read_at(position, self.file.chunk_bytes))
        except StoredObjectError as error:
            raise StoredObjectError(self.path, error.strerror or str(error)) from None
        stored.unlink()


def _check_log(check: ObjectCheck, segment: BackedUpSegment, log: Path) -> None:
    """Check batches and indexes, and compare the offsets with the manifest."""
    found = check_file(Segment(log), indexed=Segment(log) if ".index" in segment.files else None)
    check.batches, check.records = found.batches, found.records
    for damage in found.damage:
        check.findings.append(f".log: {damage['kind']} at position {damage['position']}: {damage['message']}")
    check.findings += [one["message"] for one in found.findings]
    if found.error is not None:
        check.findings.append(f".log: {found.error}")
    if found.base_offset is not None and found.base_offset < segment.base_offset:
        check.findings.append(
            f".log: expected offsets from {segment.base_offset}, as the manifest says, found {found.base_offset}"
        )
    end = segment.base_offset if found.last_offset is None else found.last_offset + 1
    if end != segment.next_offset and check.is_ok:
        check.findings.append(
            f".log: expected the end at offset {segment.next_offset}, as the manifest says, found {end}"
        )


def _check_of(segment: BackedUpSegment) -> ObjectCheck:
    _, topic, _, partition, _ = segment.object.split("/")
    return ObjectCheck(segment.object, topic, int(partition), segment.base_offset, segment.next_offset)


def _quick_check(segment: BackedUpSegment, sizes: dict[str, int]) -> ObjectCheck:
    check = _check_of(segment)
    within = segment.object.removeprefix(f"{SEGMENTS_FOLDER}/")
    for suffix, file in segment.files.items():
        size = sizes.get(f"{within}{suffix}")
        check.stored_bytes += size or 0
        if size is None:
            check.findings.append(f"{suffix}: the object is missing")
        elif size != file.stored_size:
            check.findings.append(f"{suffix}: expected {file.stored_size} bytes, found {size}")
    return check


def _gaps(manifest: Manifest) -> dict[str, list[str]]:
    """Return a note for each segment that does not begin where the one before it ends, by object."""
    return {
        after.object: [f"no offsets {before.next_offset} to {after.base_offset - 1} before it"]
        for topic in manifest.topics
        for partition in topic.partitions
        for before, after in pairwise(partition.segments)
        if after.base_offset > before.next_offset
    }


def _in_words(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
