"""What a repair did: what it kept, and what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

LossKind: TypeAlias = Literal[
    "corrupt", "invalid", "truncated tail", "zero tail", "out of order", "duplicate", "overlap", "no file"
]


@dataclass(frozen=True)
class LostRange:
    """A range of bytes that is left out.

    kind: as that of `kafkafmt.log.Damage`, or
        "out of order": the offsets contradict those of more batches around it;
        "duplicate": all offsets are kept from other bytes, and all records but those that compaction removed;
        "overlap": an earlier segment has some of the offsets;
        "no file": a folder, a FIFO or a broken link has the name of a segment. Its range has no bytes.
    path: the file. position, end_position: the range in it.
    first_offset, last_offset: the lowest and the highest offset that are not kept; None if no offset is missing, or if
        it is unknown. After compaction not each offset between them had a record.
    is_lost: records may be lost. Not set if no offset is missing, and for the incomplete end of a log, which a broker
        cuts off, too.
    records: the number of records according to headers that can still be read; None if there are none.
    keys: the first keys that can still be read, base64 if they are not UTF-8. They are not vouched for by a CRC.
    message: what is wrong.
    """

    kind: LossKind
    path: str
    position: int
    end_position: int
    first_offset: int | None
    last_offset: int | None
    is_lost: bool
    records: int | None
    keys: list[str]
    message: str


@dataclass
class PartitionReport:
    """What was kept of a partition, and what is lost.

    path: the folder that was read.
    first_offset, last_offset: of the kept batches; None if there is none.
    start_offset, end_offset: the base offset of the first segment; the offset of the next record.
    segments, batches, records, size_in_bytes: what is kept. Records of compressed batches below v2 are not counted.
    moved_batches: sound batches that were put back to the place of their offsets.
    lost: the ranges that are left out, by file and position.
    mended: a line for each file beside the segments that was wrong, missing or left out.
    notes: possible faults that no repair can mend: gaps between segments, transactions that stay open.
    is_changed: the repaired folder differs from the source.
    has_lost_epochs: the leader epochs of segments in tiered storage are lost. A broker may delete these segments.
    """

    topic: str | None
    partition: int | None
    path: str
    first_offset: int | None = None
    last_offset: int | None = None
    start_offset: int = 0
    end_offset: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_in_bytes: int = 0
    moved_batches: int = 0
    lost: list[LostRange] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_changed: bool = False
    has_lost_epochs: bool = False

    @property
    def is_lossless(self) -> bool:
        """Whether no record is lost, and none in tiered storage may be."""
        return not self.has_lost_epochs and not any(one.is_lost for one in self.lost)


@dataclass
class RepairReport:
    """What a repair did: a report for each partition, and what was mended beside the partitions.

    backups: the folders with what was replaced in place.
    """

    partitions: list[PartitionReport] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    backups: list[str] = field(default_factory=list)

    @property
    def is_lossless(self) -> bool:
        """Whether no record is lost, and none in tiered storage may be."""
        return all(one.is_lossless for one in self.partitions)

    def lost(self) -> Iterator[LostRange]:
        """Iterate over all ranges whose records may be lost."""
        for one in self.partitions:
            yield from (lost for lost in one.lost if lost.is_lost)
