"""Segments that are written to a local folder, the spool, until they are full or old enough to be stored elsewhere.

Nothing is flushed here: a segment counts only after it is stored. The spool of a run that was killed is removed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt.log.batch_writer import BatchWriter
from kafkafmt.log.indexes import AbortedTransaction, transaction_entries
from kafkafmt.log.segment import (
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from kafkafmt.mirror.leader_epochs import begun_epochs

if TYPE_CHECKING:
    from uuid import UUID

    import numpy as np
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.log.checkpoints import LeaderEpoch
    from kafkafmt.log.producer_states import OpenProducer, ProducerStates
    from kafkafmt.types import TopicPartition


@dataclass(frozen=True)
class SealedSegment:
    """A segment to which nothing more is appended.

    files: its local files by suffix.
    leader_epochs: leader epoch and its first offset in this segment.
    open_transactions: those that are open at its end.
    has_compressed: whether a batch is compressed.
    end_snapshot: the bytes of the `.snapshot` with the states of producers at its end.
    """

    topic_partition: TopicPartition
    topic_id: UUID | None
    base_offset: int
    next_offset: int
    max_timestamp_ms: int
    size_in_bytes: int
    files: Mapping[str, Path]
    leader_epochs: tuple[LeaderEpoch, ...]
    open_transactions: tuple[OpenProducer, ...]
    has_compressed: bool
    end_snapshot: bytes


@dataclass
class SpooledSegment:
    """A segment that grows in a folder of its own. producers: the states of the log's producers, which it updates."""

    folder: Path
    topic_partition: TopicPartition
    topic_id: UUID | None
    base_offset: int
    producers: ProducerStates
    opened: float = field(default_factory=time.monotonic)
    max_timestamp_ms: int = -1
    has_compressed: bool = False

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.path = self.folder / segment_file_name(self.base_offset)
        self._snapshot = self.producers.snapshot()
        self._writer = BatchWriter(self.path, self.base_offset)
        self._indexes: defaultdict[str, bytes] = defaultdict(bytes)
        self._aborted: list[AbortedTransaction] = []
        self._epochs: list[LeaderEpoch] = []
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    @property
    def size_in_bytes(self) -> int:
        """The bytes of its batches."""
        return self._writer.size_in_bytes

    def fitting(self, rows: NDArray[np.void], segment_bytes: int) -> int:
        """Return how many batches fit, as `BatchWriter.fitting`."""
        return self._writer.fitting(rows, segment_bytes)

    def append_run(self, run: BatchRun, first: int, stop: int) -> None:
        """Append batches `first` to before `stop` of a run, which have no gap between them.

        Raises as `SegmentWriter.append`. After an error the segment is unchanged.
        """
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        rows = run.index[first:stop]
        aborted: list[AbortedTransaction] = []
        tracker = None
        if rows["is_transactional"].any():
            aborted, tracker = self.producers.aborted_by(run, first, stop)
        self._writer.append_run(self._descriptor, run, first, stop)
        self.producers.add(run, first, stop, tracker)
        self._aborted += aborted
        self.max_timestamp_ms = max(self.max_timestamp_ms, int(rows["max_timestamp"].max()))
        self.has_compressed = self.has_compressed or bool(rows["codec"].any())
        known = self._epochs[-1].epoch if self._epochs else -1
        self._epochs += begun_epochs(run, first, stop, known)

    def release(self) -> None:
        """Close the file, until the next append."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """Close the file, and remove the folder. Raises OSError."""
        self.release()
        shutil.rmtree(self.folder)

    def seal(self) -> SealedSegment:
        """Write the indexes, and close the segment. Raises OSError; then it may be sealed again."""
        os.truncate(self.path, self.size_in_bytes)  # cut off the bytes of a failed append
        self.release()
        for suffix, rows in self._writer.index_entries().items():
            self._indexes[suffix] += rows.tobytes()
        contents = dict(self._indexes)
        if self._aborted:
            contents[TRANSACTION_INDEX_SUFFIX] = transaction_entries(self._aborted).tobytes()
        contents[SNAPSHOT_SUFFIX] = self._snapshot
        files = {suffix: self.path.with_suffix(suffix) for suffix in contents}
        for suffix, data in contents.items():
            files[suffix].write_bytes(data)
        return SealedSegment(
            self.topic_partition,
            self.topic_id,
            self.base_offset,
            self._writer.next_offset,
            self.max_timestamp_ms,
            self.size_in_bytes,
            {**files, LOG_SUFFIX: self.path},  # readers see a segment once its .log is there: it comes last
            tuple(self._epochs),
            self.producers.open_producers(),
            self.has_compressed,
            self.producers.snapshot(),
        )
