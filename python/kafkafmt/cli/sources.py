"""Find the segments and other record files for the paths on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from kafkafmt._util.files import NotRegularFileError
from kafkafmt.cli.output import notify
from kafkafmt.cli.values import NEEDS_PYARROW
from kafkafmt.errors import CorruptRecordError, KafkaFormatError
from kafkafmt.log import Segment, SegmentRecords
from kafkafmt.log.broker_files.kinds import known_names
from kafkafmt.log.directory import no_segments_message
from kafkafmt.log.listing import Listing
from kafkafmt.log.overlaps import LowestOffsets
from kafkafmt.log.topics import Topics, is_chosen, selection_error, topics_left_out_in_words
from kafkafmt.storage import StoragePath, Storages
from kafkafmt.storage.locations import without_secrets
from kafkafmt.types import TopicPartition


@dataclass(frozen=True)
class SourceFile:
    """A file of record batches, which is read up to its present end.

    segment: as it was listed; None for a file that is no segment.
    """

    path: StoragePath
    segment: Segment | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def is_active(self) -> bool:
        """Whether a broker may still write to the file: the last segment of a log, and a file outside a log."""
        return self.segment is None or self.segment.is_active

    @property
    def topic_partition(self) -> TopicPartition | None:
        """The partition by the name of the folder; None for another name, and for a file outside a log."""
        return None if self.segment is None else self.segment.topic_partition

    @property
    def size_in_bytes(self) -> int:
        """The current size of the file; 0 if it was deleted."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def is_overlapped(self, lowest: LowestOffsets) -> bool:
        """Return whether earlier segments contain offsets of this one."""
        if self.segment is None or lowest.reached_before(self.path) <= self.segment.base_offset:
            return False
        return self._reaches(self.segment.base_offset)

    def may_hold(self, first_offset: int | None, end_offset: int | None) -> bool:
        """Return whether the file may contain offsets from `first_offset` to before `end_offset`."""
        if self.segment is None:
            return True
        if end_offset is not None and self.segment.base_offset >= end_offset:
            return False
        next_base_offset = self.segment.next_base_offset
        if first_offset is None or next_base_offset is None or next_base_offset > first_offset:
            return True
        return self._reaches(first_offset)

    def _reaches(self, offset: int) -> bool:
        """Return whether the file has offsets from `offset` on. True if that cannot be read."""
        try:
            return Segment(self.path).find_next_offset() > offset
        except (KafkaFormatError, FileNotFoundError, NotRegularFileError):
            return True

    def open(self, start: int = 0, end: int | None = None) -> SegmentRecords:
        """Open the records from byte `start` to `end`. Raises NotRegularFileError for a broken link."""
        if self.segment is not None:
            self.segment.ensure_regular()
        return SegmentRecords(self.path, start, end, is_active=self.is_active)


def find_sources(
    paths: Sequence[str], topics: tuple[str, ...] | None = None, *, includes_internal: bool = False
) -> list[SourceFile]:
    """Return the files that paths name, in the given order: files, partition folders, log directories, patterns.

    topics: names and globs, of which the topic of a file must match one. Without it, Kafka's own topics of a log
    directory are left out and reported, unless `includes_internal` is true.

    Raises click.ClickException for a path without any, for a file that contains no record batch, and for a name or a
    glob that matches no topic.
    """
    storages, listing = Storages(), Listing(with_others=True)
    try:
        wanted = "*" if topics is None and includes_internal else topics
        partitions: set[TopicPartition | None] = set()
        found = [one for path in paths for one in _sources_of(path, storages, listing, wanted, partitions)]
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    except ImportError:
        raise click.ClickException(f"{' '.join(map(without_secrets, paths))}: {NEEDS_PYARROW}") from None
    problem = None if topics is None else selection_error(partitions, topics, is_empty=not found)
    if problem is not None:
        raise click.ClickException(f"{' '.join(map(without_secrets, paths))}: {problem}")
    return [one for one in dict.fromkeys(found) if topics is None or one.segment is not None]


def _sources_of(
    name: str, storages: Storages, listing: Listing, topics: Topics, partitions: set[TopicPartition | None]
) -> Iterator[SourceFile]:
    """Yield the files of a path. partitions: gets those of all segments, chosen or not."""
    path = Path(name) if Path(name).exists() else storages.locate(name)
    segments, others = listing.find(path)
    if name.endswith("/"):  # only folders match
        others = []
    if not segments and not others:
        raise click.ClickException(no_segments_message(path) if path.is_dir() else f"{path}: no file matches")
    partitions.update(one.topic_partition for one in segments)
    chosen = [one for one in segments if is_chosen(one.topic_partition, topics, is_named=one.is_named)]
    if topics is None:
        left_out = topics_left_out_in_words(segments, chosen, f"'{path}/__*' names them")
        if left_out is not None:
            notify(left_out)
    yield from (SourceFile(one.path, one) for one in chosen)
    for other in others:
        source = SourceFile(other)
        if not _holds_batches(source):
            names = f"kafkafmt inspect knows files beside segments by their names: {', '.join(known_names())}"
            raise click.ClickException(f"{other}: no log: there is no record batch in it. {names}")
        yield source


def _holds_batches(source: SourceFile) -> bool:
    """Return whether a file is empty, begins with a batch, or contains a valid batch later."""
    with source.open() as records:
        try:
            if not records.size_in_bytes or next(records.runs(), None) is not None:
                return True
        except KafkaFormatError:
            pass
        return records.position_after(CorruptRecordError("", position=-1)) < records.size_in_bytes
