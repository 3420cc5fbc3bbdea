"""Is a file whole, are its indexes right, and does it fit to the other segments of its log?

Everything in a file is decompressed and every record read; see `kafkafmt.log.find_damage`. `check_file` looks at one
file, wherever it is; `check_logs` at what files tell of one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kafkafmt.batch import RecordBatch
from kafkafmt.jobs.files import LogFile, Progress, walk_file
from kafkafmt.log.index_checks import IndexCheck
from kafkafmt.log.segment import is_segment_file_name

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun


@dataclass
class FileCheck:
    """What is in a file and what is wrong with it.

    status: "ok"; "damaged": see `damage`, its stretches in order, and `findings`; "gone": retention or compaction
        deleted it since it was listed; "failed": it could not be read, see `error`.
    batches, records, offsets: of those that can be read, markers of transactions included.
    tail_bytes: bytes at the end of the last segment that are no whole batch, which is no damage there: a broker
        may be writing, or a crash have left them.
    findings: what is wrong beside damage: "overlap" with a segment before it, a wrong "index". notes: what may be
        wrong, and which retention and compaction leave as well: a "gap" before it, an "empty segment". Each has a
        kind and a message.
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
        """Add a finding."""
        self.findings.append({"kind": kind, "message": message})
        if self.status == "ok":
            self.status = "damaged"


def check_file(
    file: LogFile, progress: Progress | None = None, *, indexes: IndexCheck | None = None
) -> FileCheck:
    """Check a file, and its indexes where they are given.

    Never raises for what the data or the file system is: the report tells.
    """
    check = FileCheck(file.name, *(file.topic_partition or (None, None)))

    def count(run: BatchRun, first: int, stop: int) -> None:
        rows = run.index[first:stop]
        if indexes is not None:
            indexes.add(rows)
        if check.base_offset is None:
            check.base_offset = RecordBatch(run, first).base_offset
        check.last_offset = int(rows["last_offset"][-1])
        check.batches += len(rows)
        check.records += int(rows["count"][rows["count"] > 0].sum())
        wrappers = (rows["count"] < 0).nonzero()[0] + first
        check.records += sum(RecordBatch(run, number).count for number in wrappers.tolist())

    walked = walk_file(file, count, deep=True, progress=progress)
    check.size_in_bytes, check.tail_bytes = walked.size_in_bytes, walked.tail_bytes
    check.damage, check.error = walked.damage, walked.error
    if check.error is not None:
        check.status = "gone" if walked.is_gone else "failed"
    elif check.damage:
        check.status = "damaged"
    elif indexes is not None:  # of a damaged file they tell of what is damaged
        for message in indexes.findings():
            check.find("index", message)
    if check.error is None and not check.size_in_bytes and not file.is_active:
        check.notes.append({"kind": "empty segment", "message": "0 bytes, and another segment is behind it"})
    return check


def check_logs(checks: Iterable[FileCheck]) -> Iterator[FileCheck]:
    """Add to the checks what segments of one log tell of one another: overlaps and gaps.

    checks: of the segments of a log in the order of their base offsets; of other files in between.
    """
    before: dict[
        str, tuple[int, str | None]
    ] = {}  # by folder: the offset that is reached, and the segment that does
    for check in checks:
        folder, _, name = check.path.rpartition("/")
        if not is_segment_file_name(name):
            yield check
            continue
        base_offset = int(name[:20])
        next_offset = base_offset if check.last_offset is None else check.last_offset + 1
        reached, other = before.get(folder, (base_offset, None))
        if other is not None and base_offset < min(reached, next_offset):
            last = min(reached, next_offset) - 1
            check.find("overlap", f"offsets {base_offset} to {last} are in {other} as well")
        elif other is not None and base_offset > reached:
            message = f"offsets {reached} to {base_offset - 1} are in no segment"
            check.notes.append({"kind": "gap", "message": message})
        is_read = check.status in ("ok", "damaged")
        if not is_read:
            before[folder] = max(reached, next_offset), None  # nobody knows where it ends
        elif next_offset >= reached:
            before[folder] = next_offset, name
        yield check


def totals(checks: Sequence[FileCheck]) -> dict[str, int]:
    """What is in all files together, how much is wrong with them, and how many were not read."""
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
