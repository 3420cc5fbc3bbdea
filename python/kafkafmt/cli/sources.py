"""Paths on the command line into the segments and other record files that they stand for."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from kafkafmt.cli.output import tell
from kafkafmt.errors import CorruptRecordError, KafkaFormatError
from kafkafmt.jobs.convert import partition_logs
from kafkafmt.jobs.files import LowestOffsets
from kafkafmt.log import PartitionLog, Segment, SegmentRecords
from kafkafmt.log.directory import no_segments_message
from kafkafmt.log.index_checks import IndexCheck
from kafkafmt.log.segment import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, is_segment_file_name
from kafkafmt.log.topics import left_out_in_words, topic_filter
from kafkafmt.types import TopicPartition


@dataclass(frozen=True)
class Source:
    """A file of record batches.

    next_base_offset: where the next segment of its log begins; None for the last one, whose end a broker may still
    be writing, and for a file that is no segment.
    """

    path: Path
    next_base_offset: int | None = None

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def is_active(self) -> bool:
        return self.next_base_offset is None

    @property
    def topic_partition(self) -> TopicPartition | None:
        return TopicPartition.from_folder_name(self.path.absolute().parent.name) if self._is_segment else None

    @property
    def _is_segment(self) -> bool:
        return is_segment_file_name(self.path.name)

    @property
    def size_in_bytes(self) -> int:
        """The file's size now; 0 once it is deleted."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def is_overlapped(self, lowest: LowestOffsets) -> bool:
        """Do segments before it have offsets that are in it as well?"""
        reached = lowest.reached_before(self.path)
        if reached <= self.base_offset:
            return False
        try:
            return Segment(self.path).find_next_offset() > self.base_offset
        except (KafkaFormatError, FileNotFoundError):
            return True

    @property
    def base_offset(self) -> int:
        """The offset that a segment is named for; 0 of another file."""
        return int(self.path.stem) if self._is_segment else 0

    def may_hold(self, first_offset: int | None, end_offset: int | None) -> bool:
        """Can it hold offsets from `first_offset` to in front of `end_offset`?"""
        if not self._is_segment:
            return True
        begins_behind = end_offset is not None and int(self.path.stem) >= end_offset
        ends_before = (
            first_offset is not None
            and self.next_base_offset is not None
            and self.next_base_offset <= first_offset
            and not self._reaches(first_offset)
        )
        return not begins_behind and not ends_before

    def _reaches(self, offset: int) -> bool:
        """Has it offsets from `offset` on, though the next segment is named for one that is not above it?"""
        try:
            return Segment(self.path).find_next_offset() > offset
        except (KafkaFormatError, FileNotFoundError):
            return True

    def index_check(self) -> IndexCheck:
        """What holds its indexes against it; they are read now."""
        files = [self.path.with_suffix(suffix) for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
        index, time_index = (path.read_bytes() if path.is_file() else None for path in files)
        return IndexCheck(self.base_offset, index, time_index, is_active=self.is_active)

    def open(self, start: int = 0, end: int | None = None) -> SegmentRecords:
        return SegmentRecords(self.path, start, end, is_active=self.is_active)


def find_sources(paths: Sequence[str], *, includes_internal: bool = False) -> list[Source]:
    """The files that paths name: files, partition folders, log directories, patterns. In the order given.

    Of a log directory Kafka's own topics are left out, which is told, unless `includes_internal`.

    Raises click.ClickException for a path without any, and for a file that holds no record batch.
    """
    found = [source for path in paths for source in _sources_of(path, includes_internal)]
    return list(dict.fromkeys(found))


def _sources_of(name: str, includes_internal: bool) -> Iterator[Source]:
    path = Path(name)
    if path.is_dir():
        yield from _sources_in(path, includes_internal)
    elif path.exists():
        yield _source_at(path)
    elif glob.has_magic(name):
        matches = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - a pattern may be absolute
        if not matches:
            raise click.ClickException(f"{name}: no file matches")
        for match in matches:
            yield from _sources_of(match, includes_internal)
    else:
        raise click.ClickException(f"{name}: no such file or folder")


def _sources_in(folder: Path, includes_internal: bool) -> Iterator[Source]:
    logs = partition_logs(folder)
    if not logs:
        raise click.ClickException(no_segments_message(folder))
    if not includes_internal:
        is_meant = topic_filter(None)
        logs = [log for log in logs if log.path == folder or is_meant(_topic(log))]
        told = left_out_in_words(folder, f"'{folder}/__*' names them")
        if told is not None:
            tell(told)
    for log in logs:
        with contextlib.suppress(FileNotFoundError):  # the partition was deleted since it was listed
            yield from _of_log(log.segments())


def _topic(log: PartitionLog) -> str:
    return log.topic_partition.topic if log.topic_partition is not None else ""


def _of_log(segments: Sequence[Segment]) -> Iterator[Source]:
    ends = [*(segment.base_offset for segment in segments[1:]), None]
    for segment, end in zip(segments, ends, strict=False):  # there may be no segments
        yield Source(segment.path, end)


def _source_at(path: Path) -> Source:
    if is_segment_file_name(path.name):
        siblings = _of_log(PartitionLog(path.parent).segments())
        return next((source for source in siblings if source.path == path), Source(path))
    source = Source(path)
    if not _holds_batches(source):
        raise click.ClickException(f"{path}: no log: there is no record batch in it")
    return source


def _holds_batches(source: Source) -> bool:
    """Is it empty, or does it begin with what looks like a batch, or is there a valid one further on?"""
    with source.open() as records:
        try:
            if not records.size_in_bytes or next(records.runs(), None) is not None:
                return True
        except KafkaFormatError:
            pass
        return records.position_after(CorruptRecordError("", position=-1)) < records.size_in_bytes
