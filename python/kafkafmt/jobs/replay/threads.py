"""Merge partitions in several threads, and join what they have merged.

Each thread has its own readers, and its share of the plan's total ("Summary" of Memory Management in Kafka Streams). It
reads, decompresses and merges its partitions, one step ahead of the caller, who writes meanwhile. Kernels and codecs do
that without the GIL. The order is that of one merge: its next record is the first of the next records of the threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.streams.merge import join_merged
from kafkafmt._util.closing import Closing
from kafkafmt.jobs.replay.merging import Merge
from kafkafmt.streams import Merged
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

# A thread uses the buffer whose records the caller writes, and the buffers from which it merges on.
BUFFERS_AHEAD = 1


class JoinedMerge(Closing):
    """Merges in threads, with the methods of a Merge that a replay calls. Closes the merges.

    merges: one for each thread, with partitions of its own, and `buffers_ahead=BUFFERS_AHEAD`.

    `assign` and `revoke` may be called at any time. Records that a thread has taken ahead are then read again.
    """

    def __init__(self, merges: Sequence[Merge]) -> None:
        self._lanes = [_Lane(merge) for merge in merges]
        self._ranks = {one: rank for rank, one in enumerate(self.partitions)}

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions, sorted."""
        return sorted(one for lane in self._lanes for one in lane.merge.partitions)

    @property
    def owned(self) -> list[TopicPartition]:
        """All partitions, sorted."""
        return self.partitions

    @property
    def read_bytes(self) -> int:
        """The bytes of batches that were read."""
        return sum(lane.merge.read_bytes for lane in self._lanes)

    @property
    def peak_bytes(self) -> int:
        """The sum of the most bytes that each thread has reserved."""
        return sum(lane.merge.peak_bytes for lane in self._lanes)

    def assign(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Add these partitions, each to the merge that can read it. Raises as `Merge.assign`."""
        wanted = {*topic_partitions}
        for lane in self._lanes:
            lane.change(set(), wanted.intersection(lane.merge.partitions))

    def revoke(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Remove these partitions. One that is assigned again continues after its last record that was returned."""
        gone = {*topic_partitions}
        for lane in self._lanes:
            lane.change(gone, set())

    def take(self) -> Merged | None:
        """Return the next records; None after the last one. Raises as `Merge.take`.

        They are valid until the next call.
        """
        lanes = [lane for lane in self._lanes if lane.look(self._ranks)]
        if not lanes:
            return None
        heads = [lane.head for lane in lanes]
        records, nexts = join_merged(
            [head.records for head in heads], [lane.next for lane in lanes], [lane.ranks for lane in lanes]
        )
        for lane, first in zip(lanes, nexts, strict=True):
            lane.next = first
        return Merged([one for head in heads for one in head.topic_partitions], records)

    def leave(self) -> None:
        """End the reading after the last record."""
        for lane in self._lanes:
            lane.merge.leave()

    def close(self) -> None:
        """End the threads, drop all buffers, and release all memory. If one raises, the others are closed too."""
        with ExitStack() as stack:
            for lane in self._lanes:
                stack.callback(lane.close)


class _Lane:
    """A merge with its thread: `head` has the records that are joined now, from `next` on."""

    def __init__(self, merge: Merge) -> None:
        self.merge = merge
        self.next = 0
        self.ranks: NDArray[np.int32] = np.zeros(0, np.int32)
        self._thread = ThreadPoolExecutor(1, "merge")
        self._head: Merged | None = None
        self._coming: Future[Merged | None] | None = None
        self._offsets: dict[TopicPartition, int] = {}

    @property
    def head(self) -> Merged:
        assert self._head is not None
        return self._head

    def change(self, gone: AbstractSet[TopicPartition], come: AbstractSet[TopicPartition]) -> None:
        """Remove and add partitions. The others continue after their last record that was joined."""
        assigned = {*self.merge.assigned}
        wanted = (assigned - gone) | come
        if wanted == assigned:
            return
        offsets = self._take_back()
        self.merge.revoke(assigned)
        self.merge.assign(wanted, offsets)
        if wanted:
            self._coming = self._thread.submit(self.merge.take)

    def _take_back(self) -> dict[TopicPartition, int]:
        """Drop what was taken and not joined. Returns the first offset of it, by partition."""
        coming, self._coming = self._coming, None
        ahead = [(self._head, self.next), (None if coming is None else coming.result(), 0)]
        self._head = None
        offsets: dict[TopicPartition, int] = {}
        for merged, number in ahead:
            while merged is not None and number < len(merged):
                run = merged.run(number)
                if run.topic_partition not in offsets:
                    offsets[run.topic_partition] = next(run.records()).offset
                number += run.stop - run.first
        # A partition that was revoked keeps its offset for when it comes back.
        self._offsets.update(
            {one: at for one in self.merge.assigned if (at := self.merge.position(one)) is not None}
        )
        self._offsets.update(offsets)
        return self._offsets

    def look(self, ranks: Mapping[TopicPartition, int]) -> bool:
        """Let `head` have records that are left. Returns False if there are none."""
        if self._head is not None and self.next < len(self._head):
            return True
        self._head = None  # before the thread takes more: its buffer may be released
        if self._coming is None:
            return False
        self._head, self._coming = self._coming.result(), None
        if self._head is None:
            return False
        self._coming = self._thread.submit(self.merge.take)
        self.next = 0
        self.ranks = np.array([ranks[one] for one in self._head.topic_partitions], np.int32)
        return True

    def close(self) -> None:
        self.merge.stop()
        self._thread.shutdown(cancel_futures=True)
        self._head = None
        self.merge.close()
