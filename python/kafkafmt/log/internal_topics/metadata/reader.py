"""Read the metadata of a cluster: the newest snapshot at or below the wanted offset, then the log after it.

KRaft does not store the high watermark. So the log of a quorum with several voters may end with records that are not
committed, and that another leader may remove. Everything below the end offset of a snapshot is committed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.internal_topics.latest import end_offset_at
from kafkafmt.log.internal_topics.metadata.cluster import ClusterMetadata
from kafkafmt.log.internal_topics.metadata.snapshots import SUFFIX, MetadataSnapshot, snapshots_in
from kafkafmt.log.internal_topics.metadata.state import MetadataState, Quorum
from kafkafmt.log.listing import segment_entries
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.topics import METADATA_LOG
from kafkafmt.records.batch import RecordBatch
from kafkafmt.storage import RemotePath, StoragePath, storage_of, storage_path
from kafkafmt.types import ControlRecordType, check_int, milliseconds

if TYPE_CHECKING:
    from datetime import datetime


def cluster_metadata(
    source: str | os.PathLike[str] | RemotePath,
    *,
    end_offset: int | None = None,
    timestamp: int | datetime | None = None,
) -> ClusterMetadata:
    """Read the metadata of a KRaft cluster.

    source: the folder `__cluster_metadata-0`, a log directory that has it, or a snapshot (`.checkpoint`); a path or
        a URI.
    end_offset: read the records below it; by default all.
    timestamp: read the records before the first one with a later timestamp (milliseconds, or an aware datetime).

    The log may end with records that are not committed; see this module. A snapshot that is damaged is left out, and
    `ClusterMetadata.warnings` says so. Raises KafkaFormatError for a damaged log, and for a damaged snapshot that is
    the source. Raises FileNotFoundError if there is no such file, or no metadata. Raises ValueError for an offset or a
    timestamp that the metadata does not reach back to, for both of them together, and for one with a snapshot.
    """
    path = storage_path(source)
    if end_offset is not None:
        check_int("end_offset", end_offset)
        if timestamp is not None:
            raise ValueError("end_offset, timestamp: expected one of them, found both")
    last_ms = None if timestamp is None else milliseconds(timestamp)
    if path.name.endswith(SUFFIX) and not path.is_dir():
        if end_offset is not None or timestamp is not None:
            raise ValueError(f"{path}: expected no offset and no timestamp for a snapshot, found one")
        return _read_snapshot_file(path)
    return _MetadataFolder(metadata_folder(path)).read(end_offset, last_ms)


def metadata_folder(path: StoragePath) -> StoragePath:
    """Return the folder of the metadata log in a log directory, or `path` if it is that folder itself.

    Raises FileNotFoundError if it is neither.
    """
    within = path / str(METADATA_LOG)
    if within.is_dir():
        return within
    if not path.is_dir():
        reason = "expected a folder or a .checkpoint file" if path.exists() else "no such file or folder"
        raise FileNotFoundError(errno.ENOENT, reason, str(path))
    with storage_of(path).entries(path) as found:
        entries = list(found)
    if any(segment_entries(path, entries)) or any(entry.name.endswith(SUFFIX) for entry in entries):
        return path
    raise FileNotFoundError(
        errno.ENOENT, f"no metadata of a cluster here, and no folder {METADATA_LOG}", str(path)
    )


def _read_snapshot_file(path: StoragePath) -> ClusterMetadata:
    snapshot = MetadataSnapshot.at(path)
    if snapshot is None:
        raise ValueError(f"{path}: expected a name as 00000000000000000123-0000000001{SUFFIX}")
    state = MetadataState()
    state.add_snapshot(snapshot)
    return state.result(path)


class _MetadataFolder:
    """A folder with the segments of the metadata log and its snapshots."""

    def __init__(self, path: StoragePath) -> None:
        self._path = path
        self._log = PartitionLog(path, from_segment_start=True)
        self._warnings: list[str] = []

    def read(self, end_offset: int | None, last_ms: int | None) -> ClusterMetadata:
        """Read the metadata below an offset, up to a timestamp (both may be None)."""
        snapshots = snapshots_in(self._path)
        log_start = self._log_start()
        if last_ms is not None:
            end_offset = end_offset_at(self._log, last_ms)
        state = self._begun(snapshots, end_offset, last_ms)
        is_complete = self._is_complete(state, log_start, end_offset, last_ms)
        begins_at = state.end_offset
        self._add_leaders(state.quorum, begins_at)
        for record in self._log.records(begins_at, end_offset, control=True):
            state.add(record, self._path)
        return state.result(self._path, is_complete=is_complete, warnings=self._warnings)

    def _is_complete(
        self, state: MetadataState, log_start: int | None, end_offset: int | None, last_ms: int | None
    ) -> bool:
        """Return whether no records before those of the log are missing; if some are, a warning says which.

        Raises ValueError if all records within the bounds are missing.
        """
        if log_start is None:
            if state.snapshot is None and (end_offset is not None or last_ms is not None):
                raise ValueError(f"{self._path}: no segments here, and no readable snapshot within the bound")
            return state.snapshot is not None
        if log_start <= state.end_offset:
            return True
        if end_offset is not None and end_offset <= log_start and state.snapshot is None:
            raise ValueError(f"{self._path}: the metadata before offset {log_start} is no longer here")
        self._warnings.append(
            f"{self._path}: the records from offset {state.end_offset} to before {log_start} are missing"
        )
        return False

    def _add_leaders(self, quorum: Quorum, end_offset: int) -> None:
        """Add the leaders of the quorum before the offset where reading begins: snapshots lack them.

        All else about the quorum is in the snapshot, and is newer there. Damage is a warning, and the leader is then
        unknown: the rest of the metadata does not depend on these records.
        """
        try:
            for run in self._log.runs(end_offset=end_offset):
                for number in run.index["is_control"].nonzero()[0].tolist():
                    batch = RecordBatch(run, number)
                    batch.ensure_valid()
                    for record in batch:
                        if (
                            record.control is not None
                            and record.control.type == ControlRecordType.LEADER_CHANGE
                        ):
                            quorum.add(record)
        except KafkaFormatError as error:
            quorum.leader = None
            error.path = error.path or str(self._path)
            place = f"the records from offset {end_offset} on"
            self._warnings.append(f"{error}; the leader of the quorum is taken from {place}")

    def _log_start(self) -> int | None:
        """Return the base offset of the first segment; None without segments."""
        segments = self._log.segments()
        return segments[0].base_offset if segments else None

    def _begun(
        self, snapshots: Iterable[MetadataSnapshot], end_offset: int | None, last_ms: int | None
    ) -> MetadataState:
        """Return the state after the newest complete snapshot within the bounds; an empty one if there is none."""
        for snapshot in snapshots:
            if end_offset is not None and snapshot.end_offset > end_offset:
                continue
            state = MetadataState()
            try:
                state.add_snapshot(snapshot)
            except (KafkaFormatError, OSError) as error:
                self._warnings.append(f"{error}; an earlier snapshot or the log is read instead")
                continue
            if last_ms is None or (state.last_timestamp_ms or 0) <= last_ms:
                return state
        return MetadataState()
