"""The files of a log directory beside the partitions: checkpoints, `meta.properties`, the marker of a clean shutdown.

With `.kafka_cleanshutdown` a broker loads logs without a recovery: it trusts the indexes and `.snapshot` files, which
are rebuilt. From Kafka 3.7 on the file has the epoch of the broker. A broker whose epoch is that of the controller
keeps its place among the eligible leaders (KIP-966), as it lost nothing. So the file keeps its content only if nothing
is lost. An empty one has no epoch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from kafkafmt._util.files import replace_file
from kafkafmt.jobs.repair.report import RepairReport
from kafkafmt.jobs.repair.scan import files_of, read_if_there
from kafkafmt.log.broker_files.cluster_files import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    parse_clean_shutdown,
    parse_meta_properties,
)
from kafkafmt.log.broker_files.errors import BrokerFileError
from kafkafmt.log.checkpoints import (
    LOG_START_OFFSET_CHECKPOINT,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT_CHECKPOINT,
    CheckpointError,
    log_start_offsets_to_bytes,
    parse_offset_checkpoint,
)
from kafkafmt.storage import RemotePath, StoragePath
from kafkafmt.types import TopicPartition

_CLEANED = "cleaner-offset-checkpoint"
_COPIED = ("bootstrap.checkpoint", "topics.ini")
_KNOWN = {*OFFSET_CHECKPOINTS, *_COPIED, CLEAN_SHUTDOWN, META_PROPERTIES, ".lock"}
# A partition that a broker deletes, moves between disks, or found without a topic.
_LEFT_BEHIND = re.compile(r".+-\d+\.[0-9a-f]{32}-(delete|future|stray)")
_INDEX_CACHE = "remote-log-index-cache"
_MOST_DIGITS = 18


class LogBounds(NamedTuple):
    """The offsets of a repaired log: its first one, the one after its last, and the base of its last segment.

    epochs_start: the start offset of its first leader epoch; None without one.
    """

    start_offset: int
    end_offset: int
    active_base_offset: int
    epochs_start: int | None


class DirectoryFiles:
    """Writes the files of a log directory from those of `source` to `target`, which may be the same.

    target: None to write nothing, and only report.
    """

    def __init__(self, source: StoragePath, target: Path | None, report: RepairReport) -> None:
        self._source, self._target, self._report = source, target, report

    def has_clean_shutdown(self) -> bool:
        """Whether a broker has shut down cleanly, and so has flushed all logs."""
        marker = read_if_there(self._source / CLEAN_SHUTDOWN)
        return marker is not None and _is_sound(parse_clean_shutdown, marker, CLEAN_SHUTDOWN)

    def begin(self, changing: TopicPartition) -> None:
        """Before a partition changes in place: if a broker starts in between, it recovers the whole log."""
        if self._target is None:
            return
        (self._target / CLEAN_SHUTDOWN).unlink(missing_ok=True)
        offsets, _ = sound_offsets(read_if_there(self._source / RECOVERY_POINT_CHECKPOINT) or b"")
        offsets[changing] = 0
        replace_file(self._target / RECOVERY_POINT_CHECKPOINT, log_start_offsets_to_bytes(offsets))

    def write(self, bounds: Mapping[TopicPartition, LogBounds], *, only: bool = False) -> None:
        """Write all files. bounds: of the repaired logs. only: these are not all logs of the directory.

        Raises OSError.
        """
        for name in OFFSET_CHECKPOINTS:
            self._write_checkpoint(name, bounds, only)
        for name in (META_PROPERTIES, *_COPIED):
            data = read_if_there(self._source / name)
            if (
                name == META_PROPERTIES
                and data is not None
                and not _is_sound(parse_meta_properties, data, name)
            ):
                self._report.notes.append(
                    f"{name}: damaged: a broker does not start before it is written again"
                )
            elif data is not None:
                self._put(name, data)
        if not only:
            marker = read_if_there(self._source / CLEAN_SHUTDOWN) or b""
            if not _is_sound(parse_clean_shutdown, marker, CLEAN_SHUTDOWN):
                self._report.mended.append(f"{CLEAN_SHUTDOWN}: damaged, written empty")
                marker = b""
            self._put(CLEAN_SHUTDOWN, marker if self._report.is_lossless else b"")

    def report_others(self) -> None:
        """Report what else is in the directory."""
        in_place = self._source == self._target
        for path in files_of(self._source):
            if path.is_dir():
                if TopicPartition.from_folder_name(path.name) is not None or path.name == _INDEX_CACHE:
                    continue
                if _LEFT_BEHIND.fullmatch(path.name):
                    self._report.notes.append(
                        f"{path.name}: a log that a broker has put aside, left {'as it is' if in_place else 'out'}"
                    )
                else:
                    self._report.notes.append(
                        f"{path.name}: not a partition: a broker does not start with this folder"
                        + ("" if in_place else ", left out")
                    )
            elif path.name not in _KNOWN and not in_place and not path.name.startswith("."):
                self._report.notes.append(f"{path.name}: not a file of a broker, left out")

    def _write_checkpoint(self, name: str, bounds: Mapping[TopicPartition, LogBounds], only: bool) -> None:
        data = read_if_there(self._source / name)
        if data is None:
            if name == LOG_START_OFFSET_CHECKPOINT and isinstance(self._source, RemotePath):
                self._write_log_starts_of_view(self._source, bounds)
            return
        offsets, is_sound = sound_offsets(data)
        if not is_sound:
            self._report.mended.append(
                f"{name}: damaged, written with the {len(offsets)} entries that are sound"
            )
            if name == LOG_START_OFFSET_CHECKPOINT:
                offsets |= self._lost_log_starts(offsets, bounds)
        kept = {}
        for one, offset in offsets.items():
            found = bounds.get(one)
            if found is None:
                if only:
                    kept[one] = offset
                continue
            corrected = _corrected(name, offset, found)
            if corrected is not None:
                kept[one] = corrected
            if corrected != offset:
                became = "left out" if corrected is None else f"now {corrected}"
                self._report.mended.append(f"{name}: {one}: offset {offset} is beyond the log, {became}")
        if name == RECOVERY_POINT_CHECKPOINT:
            kept.update({one: found.end_offset for one, found in bounds.items()})
        if kept != offsets or not is_sound or self._source != self._target:
            self._put(name, log_start_offsets_to_bytes(kept))

    def _write_log_starts_of_view(
        self, source: RemotePath, bounds: Mapping[TopicPartition, LogBounds]
    ) -> None:
        """Write the log start offsets that tiered storage has, for logs whose first batch has deleted records."""
        starts = {one: source.storage.log_start_offset(source / str(one)) for one in bounds}
        within = {one: start for one, start in starts.items() if start > bounds[one].start_offset}
        if within:
            self._put(LOG_START_OFFSET_CHECKPOINT, log_start_offsets_to_bytes(within))

    def _lost_log_starts(
        self, sound: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, LogBounds]
    ) -> dict[TopicPartition, int]:
        """Return the entries that partitions in tiered storage have lost: their leader epochs begin with the log."""
        name, found = LOG_START_OFFSET_CHECKPOINT, {}
        for one, log in bounds.items():
            if one not in sound and log.epochs_start is not None and log.epochs_start < log.start_offset:
                found[one] = log.epochs_start
                self._report.mended.append(
                    f"{name}: {one}: offset {log.epochs_start}, rebuilt from its leader epochs"
                )
        self._report.notes.append(
            f"{name}: damaged: a log whose entry is lost starts at its first local segment: deleted records are read "
            "again, and if its leader epochs are lost, too, a broker deletes its segments in tiered storage"
        )
        return found

    def _put(self, name: str, data: bytes) -> None:
        if self._target is not None and (
            self._target != self._source or read_if_there(self._source / name) != data
        ):
            replace_file(self._target / name, data)


def _corrected(name: str, offset: int, bounds: LogBounds) -> int | None:
    """Return the offset of a checkpoint within the repaired log; None if the partition gets no entry."""
    if name == LOG_START_OFFSET_CHECKPOINT:
        return offset if offset <= bounds.end_offset else None
    if name == _CLEANED:
        return offset if offset <= bounds.active_base_offset else None
    return min(offset, bounds.end_offset)


def sound_offsets(data: bytes) -> tuple[dict[TopicPartition, int], bool]:
    """Parse a checkpoint file. Returns the entries of all lines that are sound, and whether the file is."""
    try:
        return parse_offset_checkpoint(data, ""), True
    except CheckpointError:
        pass
    found = {}
    for line in data.split(b"\n"):
        fields = line.split()
        if len(fields) == 3 and all(one.isdigit() and len(one) <= _MOST_DIGITS for one in fields[1:]):
            name = f"{fields[0].decode('utf-8', 'replace')}-{int(fields[1])}"
            partition = TopicPartition.from_folder_name(name)
            if partition is not None:
                found[partition] = int(fields[2])
    return found, False


def _is_sound(parse: Callable[[bytes, str], object], data: bytes, name: str) -> bool:
    """Whether a file is one that a broker reads. parse: the function that reads it."""
    try:
        parse(data, name)
    except BrokerFileError:
        return False
    return True
