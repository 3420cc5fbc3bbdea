"""The offsets at which a mirror of a cluster that does not follow ends: the ends of the partitions at its start.

With an end in time, a partition ends before its first record at or after that time, within a batch if need be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.mirror.protocols import SourceRun
from kafkafmt.records.trimming import runs_before
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.mirror.addresses import ClusterAddress
    from kafkafmt.mirror.clusters import MirrorCluster
    from kafkafmt.mirror.options import MirrorOptions

_log = structlog.get_logger()


class Goals:
    """The ends of all selected partitions; none if the mirror follows.

    ends: by partition. starts: the first offsets when the mirror started.
    """

    def __init__(self, cluster: MirrorCluster, address: ClusterAddress, options: MirrorOptions) -> None:
        self.ends: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        # Ends in time. A batch that contains one is cut.
        self._cuts: dict[TopicPartition, int] = {}
        if not options.is_following:
            self._read(cluster, address, options)

    def _read(self, cluster: MirrorCluster, address: ClusterAddress, options: MirrorOptions) -> None:
        topics = filter(address.matches, cluster.topic_names())
        # With the admin client, as the consumer would ask for one topic per request, and assign what it has by then.
        partitions = cluster.partitions(topics)
        bounds = cluster.bounds(partitions, is_committed=options.is_committed)
        self.starts = {one: start for one, (start, _) in bounds.items()}
        self.ends = {one: end for one, (_, end) in bounds.items()}
        if options.times.end_ms is not None:
            for one, at in cluster.offsets_at(bounds, options.times.end_ms).items():
                if at is not None:
                    self._cuts[one] = self.ends[one] = max(min(at, self.ends[one]), self.starts[one])

    def lower(self, topic_partition: TopicPartition, end: int, reached: int) -> None:
        """End a partition at the end of its log, if that is lower: the log has lost records.

        reached: the offset up to which records were mirrored. A warning has those after it.
        """
        goal = self.ends.get(topic_partition, end)
        if end >= goal:
            return
        self.ends[topic_partition] = end
        if (first := max(end, reached)) < goal:
            _log.warning(
                "the source has lost records before they were mirrored, as after an unclean leader election",
                partition=str(topic_partition),
                from_offset=first,
                to_offset=goal,
            )

    def bounded(self, topic_partition: TopicPartition, position: int) -> int:
        """Return a position, but at most an end in time: the next mirror begins there."""
        return min(position, self._cuts.get(topic_partition, position))

    def before_cut(
        self, topic_partition: TopicPartition, run: BatchRun, position: int
    ) -> Iterator[SourceRun | SourceDamage]:
        """Yield a run without the records from an end in time on; damage for a batch that cannot be cut.

        position: the source's position before the run.
        """
        cut = self._cuts.get(topic_partition)
        if cut is None:
            yield SourceRun(topic_partition, run, position)
            return
        try:
            for part in runs_before(run, cut):
                yield SourceRun(topic_partition, part, position)
                position = int(part.index["last_offset"][-1]) + 1
        except KafkaFormatError as error:
            yield SourceDamage(topic_partition, position, cut, str(error))
