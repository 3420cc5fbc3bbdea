"""Where a mirror begins partitions: at the offsets that the target has, at committed ones, or where the options say."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.gaps import OffsetsGone
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import FROM_START, PartitionError, Source, Target
from kafkafmt.mirror.statistics import Stopped
from kafkafmt.types import TopicPartition


@dataclass
class Beginnings:
    """Finds where partitions begin, and begins them there at the target.

    gone: deleted offsets that were found since it was cleared.
    is_first: whether no partition has begun yet.
    """

    options: MirrorOptions
    source: Source
    target: Target
    gone: list[OffsetsGone] = field(default_factory=list)
    is_first: bool = True

    def position(self, topic_partition: TopicPartition, low: int, high: int) -> int | Stopped:
        """Return where a partition continues, and begin it there at the target; or why it is stopped."""
        gone: OffsetsGone | None = None
        try:
            self.target.identify(topic_partition, self.source.topic_id(topic_partition))
            position = self.target.resume_offset(topic_partition)
            if position is None and self.options.beginning == "committed":
                position = self.source.committed(topic_partition)
            if position is None:
                position = self._first_position(topic_partition, low, high)
            elif position == FROM_START:
                position = low
            if position > high and position > (end := self.source.log_end(topic_partition)):
                raise PartitionError(
                    f"the source ends at offset {end}, and the mirror continues at {position}: "
                    "expected the source of the records at the target"
                )
            if position < low:
                gone = OffsetsGone(topic_partition, position, low)
                position = low
            self.target.begin(topic_partition, position)
            if gone is not None:
                self.gone.append(gone)
        except (PartitionError, KafkaFormatError) as error:
            return Stopped(topic_partition, low, str(error))
        return position

    def _first_position(self, topic_partition: TopicPartition, low: int, high: int) -> int:
        """Return where a partition begins that was never mirrored, and of which no offset is committed."""
        timestamp_ms = self.options.times.start_ms
        if timestamp_ms is not None:
            found = self.source.find_timestamp(topic_partition, timestamp_ms)
            return high if found is None else max(min(found, high), low)
        # With `latest`, partitions that appear later begin at their start: all their records are new.
        return high if self.options.beginning == "latest" and self.is_first else low
