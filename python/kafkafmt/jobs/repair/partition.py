"""Repair the log of one partition: scan its files, decide what to keep, and write the files of the folder.

Everything beside the segments is made from the batches that are kept, in one pass over them. Files of the source that
are sound and agree with the batches are kept: a `.snapshot` or a `.txnindex` may know what lost batches said.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from kafkafmt._util.files import naming_errors, sync_path, write_durably
from kafkafmt.jobs.repair.directory import sound_offsets
from kafkafmt.jobs.repair.epochs import EpochTracker
from kafkafmt.jobs.repair.losses import Coverage
from kafkafmt.jobs.repair.plan import KeptSegment, PartitionPlan, plan_partition
from kafkafmt.jobs.repair.producers import ProducerTracker
from kafkafmt.jobs.repair.report import PartitionReport
from kafkafmt.jobs.repair.scan import Progress, files_of, log_files, read_if_there, scan_files
from kafkafmt.log.batch_writer import BatchWriter
from kafkafmt.log.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    CheckpointError,
    leader_epochs_to_bytes,
    parse_leader_epochs,
)
from kafkafmt.log.indexes import (
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    transaction_entries,
    transactions_from_bytes,
)
from kafkafmt.log.partition_metadata import FILE_NAME as PARTITION_METADATA
from kafkafmt.log.partition_metadata import read_topic_id, write_topic_id
from kafkafmt.log.producer_snapshots import SnapshotEntry, snapshot_entries
from kafkafmt.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    is_segment_file_name,
    segment_file_name,
)
from kafkafmt.records.range import RecordsRange
from kafkafmt.storage import StoragePath
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.records.base import Records

_INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
_SIDECAR_SUFFIXES = (*_INDEX_SUFFIXES, TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
# Suffixes of files that a broker opens, or completes an interrupted change with, when it loads a log.
_LOADED = (LOG_SUFFIX, *_SIDECAR_SUFFIXES, ".swap", ".cleaned", ".deleted")
# Files of a metadata log that no batch of its segments has.
_COPIED = re.compile(r"quorum-state|\d{20}-\d{10}\.checkpoint")
_SIDECAR_NAME = re.compile(r"(\d{20})(\.index|\.timeindex|\.txnindex|\.snapshot)")
_OURS = re.compile(r"\.lock|\.kafkafmt-repair(ed-\d+)?")
_RUN_BYTES = 1024 * 1024


class ChangedWhileReadError(OSError):
    """A file of the source changed while it was repaired."""


@dataclass
class ScannedPartition:
    """A partition whose files were scanned.

    report: what is known before anything is written. left_out: names of segments of which no batch is kept.
    """

    folder: StoragePath
    topic_partition: TopicPartition | None
    plan: PartitionPlan
    report: PartitionReport
    index_findings: dict[str, list[str]]
    left_out: frozenset[str]


def scan_partition(
    folder: StoragePath, topic_partition: TopicPartition | None, *, deep: bool, progress: Progress | None
) -> ScannedPartition:
    """Scan the files of a partition, and decide what to keep. Raises OSError. deep: as in `find_damage`."""
    paths, others = log_files(folder)
    files = scan_files(paths, deep=deep, progress=progress)
    irregular = [path for path in others if is_segment_file_name(path.name)]
    plan = plan_partition(files, irregular)
    topic, number = topic_partition or (None, None)
    report = PartitionReport(topic, number, str(folder), lost=plan.lost, notes=plan.notes)
    ranges = [one.ranges for one in plan.segments if len(one.ranges)]
    if ranges:
        report.first_offset = int(ranges[0]["first_offset"][0])
        report.last_offset = int(ranges[-1]["last_offset"][-1])
    report.start_offset = plan.segments[0].base_offset if plan.segments else 0
    report.end_offset, report.segments = plan.end_offset, len(plan.segments)
    report.batches = sum(int(one["batches"].sum()) for one in ranges)
    report.records = sum(int(one["records"].sum()) for one in ranges)
    report.size_in_bytes = sum(int((one["end_position"] - one["position"]).sum()) for one in ranges)
    report.moved_batches = plan.moved_batches
    kept = {one.file.path.name: one for one in plan.segments}
    left_out = {path.name for path in irregular}
    for file in files:
        if (segment := kept.get(file.path.name)) is None:
            left_out.add(file.path.name)
            doubled = [one for one in plan.lost if one.path == str(file.path) and one.kind == "duplicate"]
            why = "its batches are in other files" if doubled else "no sound batch that belongs to the log"
            report.mended.append(f"{file.path.name}: {why}, left out")
        elif segment_file_name(segment.base_offset) != file.path.name:
            report.mended.append(f"{file.path.name}: renamed to {segment_file_name(segment.base_offset)}")
    findings = {file.path.name: file.index_findings for file in files if file.index_findings}
    return ScannedPartition(folder, topic_partition, plan, report, findings, frozenset(left_out))


def sync_partition(folder: Path) -> None:
    """Make the files of a partition and their names durable: a broker that was killed may not have flushed them."""
    for path in files_of(folder):
        if _read_is_possible(path):
            sync_path(path)
    sync_path(folder)


class PartitionWriter:
    """Writes the files of a repaired partition.

    target: the folder that gets the files; None to write nothing, and only report. in_place: files of the source that
    stay as they are are not written. topic_id: of the topic, from another partition; None if that is unknown.

    names: after `write`, the names of all files of the repaired partition.
    epochs_start: after `write`, the start offset of the first leader epoch; None without one.
    """

    def __init__(
        self, scanned: ScannedPartition, target: Path | None, *, in_place: bool, topic_id: uuid.UUID | None
    ) -> None:
        self._source = scanned.folder
        self._plan = scanned.plan
        self._report = scanned.report
        self._scanned = scanned
        self._target = target
        self._in_place = in_place
        self._topic_id = topic_id
        self._producers = ProducerTracker()
        self._epochs = EpochTracker()
        self._coverage = Coverage(one.ranges for one in self._plan.segments)
        self.names: set[str] = set()
        self.epochs_start: int | None = None
        self.written: set[str] = set()

    def write(self, progress: Progress | None = None) -> None:
        """Write all files. Raises OSError, and ChangedWhileReadError if a source file was cut meanwhile."""
        for number, segment in enumerate(self._plan.segments):
            self._write_snapshot(segment.base_offset, is_needed=number > 0)
            self._write_segment(segment, progress)
        if self._plan.segments:
            is_new = self._plan.end_offset > self._plan.segments[-1].base_offset
            if is_new:
                self._write_snapshot(self._plan.end_offset, is_needed=True)
        self._write_epochs()
        self._write_topic_id()
        self._copy_others()
        for producer_id, first_offset in self._producers.open_transactions.items():
            self._report.notes.append(
                f"a transaction of producer {producer_id} is open since offset {first_offset}"
            )
        self._report.is_changed = bool(self.written) or bool(self.removed())

    def removed(self) -> set[str]:
        """Return the names of the source's files that a broker would load, and that the repaired log has not."""
        names = {path.name for path in files_of(self._source) if not path.is_dir()}
        return {name for name in names - self.names if name.endswith(_LOADED)}

    def _put(self, name: str, data: bytes) -> None:
        """Write a file, unless the source's is the same and stays."""
        self.names.add(name)
        if self._in_place and read_if_there(self._source / name) == data:
            return
        self.written.add(name)
        if self._target is not None:
            write_durably(self._target / name, data)

    def _mend(self, name: str, message: str) -> None:
        self._report.mended.append(f"{name}: {message}")

    def _write_segment(self, segment: KeptSegment, progress: Progress | None) -> None:
        """Write the batches of a segment, unless its file stays, and all files that are made from them."""
        name = segment_file_name(segment.base_offset)
        path = Path(name) if self._target is None else self._target / name
        writer = BatchWriter(path, segment.base_offset)
        stays = self._in_place and segment.is_whole
        self.names.add(name)
        descriptor = None
        if not stays:
            self.written.add(name)
            if self._target is not None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                descriptor = os.open(path, flags, 0o666)
        try:
            aborted = self._copy(segment, writer, descriptor, progress)
            if descriptor is not None:
                with naming_errors(path):
                    os.fsync(descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)
        self._write_indexes(segment, writer, aborted, stays=stays)

    def _copy(
        self,
        segment: KeptSegment,
        writer: BatchWriter,
        descriptor: int | None,
        progress: Progress | None,
    ) -> list[AbortedTransaction]:
        """Pass the batches of a segment to all that is made from them. Returns the transactions that were aborted.

        descriptor: of the file that gets the bytes; None if the file stays.
        """
        aborted, known = list[AbortedTransaction](), self._known_aborted(segment)
        size = 0
        with segment.file.open() as records:
            for start, end, first_offset in _byte_ranges(segment.ranges):
                while known and known[0].last_offset < first_offset:
                    aborted.append(known.pop(0))
                    self._producers.end_transactions(aborted[-1:])
                size += end - start
                for run in _runs(records, start, end):
                    aborted += self._producers.add(run)
                    self._epochs.add(run)
                    if descriptor is not None:
                        writer.append_run(descriptor, run)
                    else:
                        rows = run.index.copy()
                        rows["position"] += writer.size_in_bytes - int(rows["position"][0])
                        writer.pass_over(rows)
                    if progress is not None:
                        progress(run.end_position - run.origin)
        self._producers.end_transactions(known)
        if writer.size_in_bytes != size:
            message = f"changed while it was read: expected {size} sound bytes, found {writer.size_in_bytes}"
            raise ChangedWhileReadError(errno.EIO, message, str(segment.file.path))
        return aborted + known

    def _write_indexes(
        self, segment: KeptSegment, writer: BatchWriter, aborted: list[AbortedTransaction], *, stays: bool
    ) -> None:
        base, source = segment.base_offset, segment.file.path.name
        findings = self._scanned.index_findings.get(source, [])
        for finding in findings:
            self._mend(source, f"rebuilt {finding}")
        for suffix, entries in writer.index_entries().items():
            name = segment_file_name(base, suffix)
            if stays and not findings and self._is_exact(name, suffix, base, entries):
                self.names.add(name)
            else:
                self._put(name, entries.tobytes())
        if aborted:
            self._put(
                segment_file_name(base, TRANSACTION_INDEX_SUFFIX), transaction_entries(aborted).tobytes()
            )

    def _is_exact(self, name: str, suffix: str, base: int, entries: NDArray[np.void]) -> bool:
        """Whether an index has no unfinished part: a broker does not look for one after a clean shutdown."""
        data = read_if_there(self._source / name)
        if data is None:
            return False
        if suffix == OFFSET_INDEX_SUFFIX:
            return OffsetIndex.from_bytes(data, base).entries.nbytes == len(data)
        times = TimeIndex.from_bytes(data, base).entries
        if times.nbytes != len(data) or not len(times):
            return not len(entries) and not data
        return bool(len(entries)) and bool(times["timestamp"][-1] == entries["timestamp"][-1])

    def _known_aborted(self, segment: KeptSegment) -> list[AbortedTransaction]:
        """Return the aborted transactions whose markers are lost, from the `.txnindex` of the source."""
        if segment.file.base_offset is None:
            return []
        name = segment_file_name(segment.file.base_offset, TRANSACTION_INDEX_SUFFIX)
        data = read_if_there(self._source / name)
        if data is None:
            return []
        found = transactions_from_bytes(data, segment.file.base_offset)
        if found is None:
            self._mend(name, "damaged, rebuilt from the batches")
            return []
        end = segment.next_offset
        return [one for one in found if not self._coverage.has(one.last_offset) and one.last_offset < end]

    def _write_snapshot(self, offset: int, *, is_needed: bool) -> None:
        """Write the `.snapshot` of an offset: that of the source, if it is sound; else from the batches before it."""
        name = segment_file_name(offset, SNAPSHOT_SUFFIX)
        data = read_if_there(self._source / name)
        entries = None if data is None else _sound_entries(data, offset)
        if data is not None and entries is not None:
            self._producers.load(entries)
            self._put(name, data)
            return
        if data is not None:
            self._mend(name, "damaged, rebuilt from the batches")
        if is_needed:
            self._put(name, self._producers.snapshot())

    def _write_epochs(self) -> None:
        data = read_if_there(self._source / LEADER_EPOCH_CHECKPOINT)
        known = None
        try:
            known = None if data is None else parse_leader_epochs(data, LEADER_EPOCH_CHECKPOINT)
        except CheckpointError:
            self._mend(LEADER_EPOCH_CHECKPOINT, "damaged, rebuilt from the batches")
        entries = self._epochs.entries(known)
        if known is not None and entries is not known:
            self._mend(LEADER_EPOCH_CHECKPOINT, "contradicts the batches, rebuilt from them")
        if known is None and self._report.start_offset > 0:
            self._note_lost_epochs(was_there=data is not None)
        end = self._plan.end_offset
        entries = [one for one in entries if one.start_offset <= end]
        self.epochs_start = entries[0].start_offset if entries else None
        self._put(LEADER_EPOCH_CHECKPOINT, leader_epochs_to_bytes(entries))

    def _note_lost_epochs(self, *, was_there: bool) -> None:
        """Note that the leader epochs before the first segment are lost. They matter if tiered storage has segments.

        was_there: whether the log has a checkpoint. Logs that no broker wrote have none.
        """
        start = self._report.start_offset
        has_remote = False
        if self._scanned.topic_partition is not None:
            # A broker writes an entry below the first segment only for a partition in tiered storage.
            data = read_if_there(self._source.absolute().parent / LOG_START_OFFSET_CHECKPOINT) or b""
            has_remote = sound_offsets(data)[0].get(self._scanned.topic_partition, start) < start
        if not (was_there or has_remote):
            return
        self._report.has_lost_epochs = has_remote
        condition = "" if has_remote else "if the topic is in tiered storage, "
        self._report.notes.append(
            f"the leader epochs before offset {start} are lost: {condition}a broker that leads this partition deletes "
            f"its segments there: copy {LEADER_EPOCH_CHECKPOINT} from another replica before a broker starts"
        )

    def _write_topic_id(self) -> None:
        data = read_if_there(self._source / PARTITION_METADATA)
        found = None if data is None else read_topic_id(self._source)
        if data is not None and found is not None:
            self._put(PARTITION_METADATA, data)
            return
        if self._topic_id is not None:
            self.names.add(PARTITION_METADATA)
            self.written.add(PARTITION_METADATA)
            self._mend(PARTITION_METADATA, "written with the topic id of another partition")
            if self._target is not None:
                write_topic_id(self._target, self._topic_id)
        elif data is not None:
            self._mend(PARTITION_METADATA, "damaged, left out")
            self._report.notes.append(
                "the topic id is lost: a broker from Kafka 3.7 on does not use this log before "
                f"{PARTITION_METADATA} has it again"
            )

    def _copy_others(self) -> None:
        for path in files_of(self._source):
            if path.name in self.names or _OURS.fullmatch(path.name):
                continue
            if _COPIED.fullmatch(path.name) and (data := read_if_there(path)) is not None:
                self._put(path.name, data)
            elif self._in_place and not path.name.endswith(_LOADED):
                self.names.add(path.name)
            elif path.name in self._scanned.left_out or (
                path.name.endswith(LOG_SUFFIX) and _read_is_possible(path)
            ):
                pass  # its batches are in another segment, or it has none: reported by the scan
            elif _SIDECAR_NAME.fullmatch(path.name) is None:
                self._mend(path.name, "not a file of a log, left out")
            elif _suffix(path) in _INDEX_SUFFIXES and not path.with_suffix(LOG_SUFFIX).exists():
                self._mend(path.name, "without a segment, left out")


def _runs(records: Records, start: int, end: int) -> Iterator[BatchRun]:
    return RecordsRange(records, start, end).whole_runs(run_bytes=_RUN_BYTES, reuse_memory=True)


def _byte_ranges(ranges: NDArray[np.void]) -> Iterator[tuple[int, int, int]]:
    """Yield start and end positions of the ranges, neighbours joined, with the first offset of each."""
    if not len(ranges):
        return
    begins = np.append(True, ranges["position"][1:] != ranges["end_position"][:-1]).nonzero()[0]
    stops = np.append(begins[1:], len(ranges)) - 1
    for first, last in zip(begins.tolist(), stops.tolist(), strict=True):
        yield (
            int(ranges["position"][first]),
            int(ranges["end_position"][last]),
            int(ranges["first_offset"][first]),
        )


def _sound_entries(data: bytes, offset: int) -> list[SnapshotEntry] | None:
    """Parse a `.snapshot`. Returns None if it is damaged, or has offsets that come after it."""
    entries = snapshot_entries(data)
    if entries is None or any(
        max(one.last_offset, one.transaction_first_offset) >= offset for one in entries
    ):
        return None
    return entries


def _suffix(path: StoragePath) -> str:
    return PurePosixPath(path.name).suffix


def _read_is_possible(path: StoragePath) -> bool:
    return path.is_file() and (not isinstance(path, Path) or os.access(path, os.R_OK))
