"""Is a file whole? Everything in it is decompressed and every record read; see `kafkafmt.log.find_damage`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kafkafmt.batch import RecordBatch
from kafkafmt.jobs.files import LogFile, Progress, walk_file

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun


@dataclass
class FileCheck:
    """What is in a file and what is wrong with it.

    status: "ok"; "damaged": see `damage`, its stretches in order; "failed": it could not be read, see `error`.
    batches, records, offsets: of those that can be read, markers of transactions included.
    tail_bytes: bytes at the end of the last segment that are no whole batch, which is no damage there: a broker
        may be writing, or a crash have left them.
    """

    path: str
    topic: str | None
    partition: int | None
    status: Literal["ok", "damaged", "failed"] = "ok"
    size_in_bytes: int = 0
    batches: int = 0
    records: int = 0
    base_offset: int | None = None
    last_offset: int | None = None
    tail_bytes: int = 0
    damage: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None


def check_file(file: LogFile, progress: Progress | None = None) -> FileCheck:
    """Check a file. Never raises for what the data or the file system is: the report tells."""
    check = FileCheck(file.name, *(file.topic_partition or (None, None)))

    def count(run: BatchRun, first: int, stop: int) -> None:
        rows = run.index[first:stop]
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
        check.status = "failed"
    elif check.damage:
        check.status = "damaged"
    return check
