"""Verify files: that they are undamaged, that their indexes are right, and that the segments of a log fit together.

All batches are decompressed and every record is read, unless the caller wants less; see `kafkafmt.log.find_damage`.
`check_file` checks one file, local or remote. `check_logs` compares the segments of a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kafkafmt.jobs.files import LogFile, Passed, Progress, error_in_words, scan_file
from kafkafmt.log.index_checks import IndexCheck
from kafkafmt.log.segment import OFFSET_INDEX_SUFFIX, Segment, is_segment_file_name
from kafkafmt.log.segment_search import MAX_RELATIVE_OFFSET
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.runs import first_offset
from kafkafmt.storage import StoragePath, storage_of

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun


@dataclass
class FileCheck:
    """The contents of a file, and what is wrong with it.

    status: "ok"; "damaged": see `damage` and `findings`; "gone": retention or compaction deleted the file after it was
        listed; "failed": it could not be read, see `error`.
    batches, records, base_offset, last_offset: of all that can be read, transaction markers included.
    tail_bytes: bytes after the last whole batch of the last segment. They are not damage: a broker may be writing, or a
        crash has left them.
    damage: the damaged ranges, in order.
    findings: other faults: "overlap" with an earlier segment, an "offset" that is not within the segment, a wrong
        "index". Each has a kind and a message.
    notes: possible faults, which retention and compaction leave, too: a "gap" before the segment, an "empty segment".
        Each has a kind and a message.
    """

    path: str
    topic: str | None
    partition: int | None
    status: Literal["ok", "damaged", "gone", "failed"] = "ok"
    size_in_bytes: int = 0
    batches: int = 0
    records: int = 0
    base_offset: int | None = None
    last_offset: int | None = None
    tail_bytes: int = 0
    damage: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, str]] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    error: str | None = None

    def find(self, kind: str, message: str) -> None:
        """Add a finding; an "ok" file becomes "damaged"."""
        self.findings.append({"kind": kind, "message": message})
        if self.status == "ok":
            self.status = "damaged"


class IndexedSegments:
    """Tell which segments should have indexes: those in folders that have an `.index`. Each folder is listed once."""

    def __init__(self) -> None:
        self._has_index: dict[StoragePath, bool] = {}

    def of(self, segment: Segment | None) -> Segment | None:
        """Return the segment if it should have indexes, else None. Also None for a segment outside a partition."""
        if segment is None or segment.topic_partition is None:
            return None
        folder = segment.path.parent
        if folder not in self._has_index:
            self._has_index[folder] = _has_index(folder)
        return segment if self._has_index[folder] else None


def _has_index(folder: StoragePath) -> bool:
    with suppress(FileNotFoundError), storage_of(folder).entries(folder) as entries:
        return any(entry.name.endswith(OFFSET_INDEX_SUFFIX) for entry in entries)
    return False


def check_file(
    file: LogFile,
    progress: Progress | None = None,
    *,
    indexed: Segment | None = None,
    deep: bool = True,
    passed: Passed | None = None,
) -> FileCheck:
    """Check a file, and the indexes beside the segment `indexed`, which is this file.

    deep: decompress all batches and read every record. If False, lengths, CRCs, offsets and indexes are checked, and
        the records of compressed v0/v1 wrappers are not counted.
    passed: called with a run, the number of its first sound batch, and the number after the last one. It must not raise
        KafkaFormatError.

    Damage and errors of the file system are reported in the result, not raised.
    """
    check = FileCheck(str(file), *(file.topic_partition or (None, None)))
    try:
        indexes = None if indexed is None else IndexCheck.of(indexed)
    except OSError as error:
        indexes, check.error = None, error_in_words(error, str(file))

    def count(run: BatchRun, first: int, stop: int) -> None:
        rows = run.index[first:stop]
        if indexes is not None:
            indexes.add(rows)
        if check.base_offset is None:
            check.base_offset = RecordBatch(run, first).base_offset if deep else first_offset(run, first)
        check.last_offset = int(rows["last_offset"][-1])
        check.batches += len(rows)
        check.records += int(rows["count"][rows["count"] > 0].sum())
        if deep:
            wrappers = (rows["count"] < 0).nonzero()[0] + first
            check.records += sum(RecordBatch(run, number).count for number in wrappers.tolist())
        if passed is not None:
            passed(run, first, stop)

    scanned = scan_file(file, count, deep=deep, progress=progress)
    check.size_in_bytes, check.tail_bytes = scanned.size_in_bytes, scanned.tail_bytes
    check.damage, check.error = scanned.damage, scanned.error or check.error
    if check.error is not None:
        check.status = "gone" if scanned.is_gone else "failed"
    elif check.damage:
        check.status = "damaged"
    elif indexes is not None:  # the indexes of a damaged file point into the damage
        for message in indexes.findings():
            check.find("index", message)
    if check.error is None and not check.size_in_bytes and not file.is_active:
        check.notes.append({"kind": "empty segment", "message": "0 bytes, but another segment follows"})
    return check


class _Reached(NamedTuple):
    """The highest next offset of the segments of a log so far.

    segment: the one that has it; None if none was read. is_complete: whether no damage hides later offsets of it.
    """

    next_offset: int
    segment: str | None
    is_complete: bool


def check_logs(checks: Iterable[FileCheck]) -> Iterator[FileCheck]:
    """Add overlaps and gaps between the segments of each log to the checks, and offsets outside of one; yield these.

    checks: those of the segments of a log in the order of their base offsets; other files may be among them.
    """
    before: dict[str, _Reached] = {}  # by folder
    for check in checks:
        folder, _, name = check.path.rpartition("/")
        if not is_segment_file_name(name):
            yield check
            continue
        base_offset = int(name[:20])
        _check_offsets(check, base_offset)
        next_offset = base_offset if check.last_offset is None else check.last_offset + 1
        reached, other, is_complete = before.get(folder, _Reached(base_offset, None, False))
        if other is not None and base_offset < min(reached, next_offset):
            last = min(reached, next_offset) - 1
            check.find("overlap", f"offsets {base_offset} to {last} are in {other} as well")
        elif is_complete and base_offset > reached:
            message = f"offsets {reached} to {base_offset - 1} are in no segment"
            check.notes.append({"kind": "gap", "message": message})
        if check.status not in ("ok", "damaged"):
            before[folder] = _Reached(max(reached, next_offset), None, False)
        else:
            hides_end = bool(check.damage) and check.damage[-1]["next_offset"] is None
            if next_offset >= reached:
                before[folder] = _Reached(next_offset, name, not hides_end)
            elif hides_end:
                before[folder] = _Reached(reached, other, False)
        yield check


def _check_offsets(check: FileCheck, base_offset: int) -> None:
    """Add a finding if a segment has offsets below its name, or too far above it. Readers leave such batches out.

    No CRC covers the base offset of a batch.
    """
    if check.base_offset is None or check.last_offset is None:
        return
    most = base_offset + MAX_RELATIVE_OFFSET
    if check.base_offset < base_offset:
        check.find(
            "offset", f"expected offsets from {base_offset} on, as the name says, found {check.base_offset}"
        )
    elif check.last_offset > most:
        check.find("offset", f"expected offsets up to {most}, found {check.last_offset}")


def totals(checks: Sequence[FileCheck]) -> dict[str, int]:
    """Return the sums over all files: their contents, their faults, and how many were not read."""
    return {
        "files": len(checks),
        "batches": sum(check.batches for check in checks),
        "records": sum(check.records for check in checks),
        "size_in_bytes": sum(check.size_in_bytes for check in checks),
        "damaged_stretches": sum(len(check.damage) for check in checks),
        "findings": sum(len(check.findings) for check in checks),
        "notes": sum(len(check.notes) for check in checks),
        "gone": sum(check.status == "gone" for check in checks),
        "failed": sum(check.status == "failed" for check in checks),
    }
