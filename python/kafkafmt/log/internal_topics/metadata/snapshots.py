"""Snapshots of the metadata (KIP-630): files of batches, `<end offset>-<epoch>.checkpoint`, beside the segments.

The first record of a snapshot is a control record, the header. The last one is the footer: without it the snapshot is
incomplete. Offsets in a snapshot are numbers within it.

`bootstrap.checkpoint`, in the log directory itself, has the same form. `kafka-storage format` writes it, and the first
controller appends its records to the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import CorruptRecordError
from kafkafmt.storage import StoragePath, storage_of
from kafkafmt.types import ControlRecordType

if TYPE_CHECKING:
    from _kafkafmt.records.decode import Record
    from kafkafmt.records.base import Records

SUFFIX = ".checkpoint"
BOOTSTRAP = f"bootstrap{SUFFIX}"
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint", re.ASCII)


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """A snapshot: the metadata below `end_offset`. epoch: of the leader when the record before that was written."""

    path: StoragePath
    end_offset: int
    epoch: int

    @classmethod
    def at(cls, path: StoragePath) -> MetadataSnapshot | None:
        """Return the snapshot at a path; None if the name of the file is not that of a snapshot."""
        if path.name == BOOTSTRAP:
            return cls(path, 0, 0)
        match = _NAME.fullmatch(path.name)
        return None if match is None else cls(path, int(match[1]), int(match[2]))

    def records(self) -> Iterator[Record]:
        """Yield all records, the header first and the footer last. CRCs are checked.

        Raises CorruptRecordError if the file is damaged or incomplete: perhaps after many records. Raises OSError.
        """
        storage = storage_of(self.path)
        size = self.path.stat().st_size
        with storage.open_records(
            self.path,
            0,
            size,
            topic_partition=None,
            max_decompressed_bytes=DEFAULT_MAX_DECOMPRESSED_BYTES,
        ) as found:
            last: Record | None = None
            for record in found.records(control=True):
                if last is None and _type(record) != ControlRecordType.SNAPSHOT_HEADER:
                    raise _damaged(found, 0, "expected the header of a snapshot, found another record")
                last = record
                yield record
            if found.valid_bytes < size:
                left = size - found.valid_bytes
                raise _damaged(
                    found, found.valid_bytes, f"expected a whole batch in the last {left} bytes, found a part"
                )
            if last is None or _type(last) != ControlRecordType.SNAPSHOT_FOOTER:
                raise _damaged(found, size, "expected the footer of a snapshot, found the end of the file")


def snapshots_in(folder: StoragePath) -> list[MetadataSnapshot]:
    """Return the snapshots in a folder, the newest first, without `bootstrap.checkpoint`."""
    with storage_of(folder).entries(folder) as entries:
        paths = [
            storage_of(folder).path_of(folder, entry) for entry in entries if _NAME.fullmatch(entry.name)
        ]
    found = (MetadataSnapshot.at(path) for path in paths)
    return sorted(
        (one for one in found if one is not None),
        key=lambda one: (one.end_offset, one.epoch),
        reverse=True,
    )


def _type(record: Record) -> ControlRecordType | None:
    return None if record.control is None else record.control.type


def _damaged(records: Records, position: int, message: str) -> Exception:
    return records.with_source(CorruptRecordError(message, position=position))
