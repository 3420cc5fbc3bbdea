"""The topics that are served: partitions of one stored segment each, with the indexes of a broker."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import BUILD
from bench.segments import Segment, StoredSegment, repeated, stored
from kafkafmt.log import PartitionLogWriter

ROOT = BUILD / "serve"
LOGS = ROOT / "logs"


@dataclass(frozen=True)
class Topic:
    """Every partition holds the records of the same segment, in bytes of its own."""

    name: str
    folders: Sequence[Path]
    records_a_partition: int
    value_size: int

    @property
    def ends(self) -> dict[int, int]:
        """The end offset of each partition."""
        return dict.fromkeys(range(len(self.folders)), self.records_a_partition)

    @property
    def records(self) -> int:
        return self.records_a_partition * len(self.folders)

    @property
    def gigabytes(self) -> float:
        """Of values: the same in every format and with every codec."""
        return self.records * self.value_size / 1e9


def topic_of(segment: Segment, partitions: int, directory: Path = LOGS, copies: int = 1) -> Topic:
    """A topic in a log directory; its partitions are made where they are absent.

    copies: how often a partition has the records of the segment.
    """
    source = stored(segment)
    name = f"bench-{segment.name}" + ("" if copies == 1 else f"-{copies}")
    folders = [directory / f"{name}-{number}" for number in range(partitions)]
    for folder in folders:
        if not folder.exists():
            _write(source, folder, copies)
    return Topic(name, folders, source.records * copies, segment.value_size)


def _write(source: StoredSegment, folder: Path, copies: int) -> None:
    """All of the folder or nothing of it."""
    partial = folder.parent / f"writing-{folder.name}"
    shutil.rmtree(partial, ignore_errors=True)
    with TemporaryDirectory(dir=BUILD) as temporary, PartitionLogWriter(partial) as writer:
        copied = Path(temporary) / "copied"
        repeated(source, copies, copied)
        writer.append(copied.read_bytes())
    partial.rename(folder)
