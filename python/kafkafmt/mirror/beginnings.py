"""Where a mirror begins partitions: at the offsets that the target has, at committed ones, or where the options say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from kafkafmt._util.descriptors import max_open_logs
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.gaps import OffsetsGone
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import FROM_START, PartitionError, Reached, Source, Target
from kafkafmt.mirror.statistics import Stopped
from kafkafmt.types import TopicPartition

_log = structlog.get_logger()


class Unbegun(NamedTuple):
    """A partition that could not begin, or must begin again.

    reached: the source's offset that the target has reached; None if it is not known.
    end: of the source, at the last attempt; None if it is not known.
    has_begun: whether the partition must begin again.
    is_tried: whether an attempt has failed.
    gone_to: failed attempts have found that all offsets before it are deleted.
    """

    reached: int | None = None
    end: int | None = None
    has_begun: bool = False
    is_tried: bool = False
    gone_to: int = 0


@dataclass
class Beginnings:
    """Finds where partitions begin, and begins them there at the target.

    failed: partitions that could not begin, or must begin again, and are tried again.
    is_first: whether no partition has begun yet.
    """

    options: MirrorOptions
    source: Source
    target: Target
    failed: dict[TopicPartition, Unbegun] = field(default_factory=dict)
    is_first: bool = True
    _gone: list[OffsetsGone] = field(default_factory=list)
    _resumed_at: dict[TopicPartition, int] = field(default_factory=dict)  # by the attempt that is under way

    def positions(
        self, bounds: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, int | Stopped]:
        """Return where partitions continue, and begin them there at the target; or why they are stopped."""
        self._resumed_at.clear()
        found: dict[TopicPartition, int | Stopped] = {}
        # The source compares many partitions with few requests. A folder can have the logs of so many open at a time.
        most = max(max_open_logs(), 1)
        left = list(bounds)
        for first in range(0, len(left), most):
            found |= self._positions_of({one: bounds[one] for one in left[first : first + most]})
        return found

    def _positions_of(
        self, bounds: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, int | Stopped]:
        resumed = {one: self._resumed(one, low) for one, (low, _) in bounds.items()}
        reached = {one: found for one, found in resumed.items() if isinstance(found, Reached)}
        kept = self.source.kept_ends(reached) if reached else {}
        positions: dict[TopicPartition, int | Stopped] = {}
        for one, (low, high) in bounds.items():
            found = resumed[one]
            positions[one] = (
                found if isinstance(found, Stopped) else self._begun(one, low, high, found, kept.get(one))
            )
        return positions

    def _resumed(self, topic_partition: TopicPartition, low: int) -> Reached | int | Stopped | None:
        """Return what the target has of a partition; `FROM_START`, or None, as `Target.resume_offset`."""
        try:
            self.target.identify(topic_partition, self.source.topic_id(topic_partition))
            offset = self.target.resume_offset(topic_partition)
            if offset is None or offset == FROM_START:
                return offset
            self._resumed_at[topic_partition] = offset
            return Reached(offset, self.target.last_epoch(topic_partition))
        except (PartitionError, KafkaFormatError) as error:
            return Stopped(topic_partition, low, str(error))

    def _begun(
        self,
        topic_partition: TopicPartition,
        low: int,
        high: int,
        resumed: Reached | int | None,
        kept: int | PartitionError | None,
    ) -> int | Stopped:
        """Begin a partition at the target. Return where, or why it is stopped."""
        gone = None
        try:
            position = (
                self._kept_position(topic_partition, resumed, kept)
                if isinstance(resumed, Reached)
                else resumed
            )
            if position is None and self.options.beginning == "committed":
                position = self.source.committed(topic_partition)
            if position is None:
                position = self._first_position(topic_partition, low, high)
            elif position == FROM_START:
                position = low
            if position > high and position > (end := self.source.log_end(topic_partition)):
                raise PartitionError(
                    f"the source ends at offset {end}, and the mirror continues at {position}: expected the source of "
                    "the records at the target, with all of these records"
                )
            if position < low:
                known = self.failed.get(topic_partition, Unbegun()).gone_to
                gone = OffsetsGone(topic_partition, max(position, known), low) if known < low else None
                position = low
            self.target.begin(topic_partition, position)
            if gone is not None:
                self._gone.append(gone)
        except (PartitionError, KafkaFormatError) as error:
            return Stopped(topic_partition, low, str(error))
        return position

    def _kept_position(
        self, topic_partition: TopicPartition, reached: Reached, kept: int | PartitionError | None
    ) -> int:
        """Return where the mirror continues after `reached`: before it, if the source has lost records.

        Raises PartitionError if the target cannot have the source's new records after those that the source has lost.
        """
        if isinstance(kept, PartitionError):
            raise kept
        position, last = reached
        if kept is None or kept >= position:
            return position
        if not self.target.rewind(topic_partition, kept):
            expected = "records" if last is None else f"leader epoch {last.leader_epoch}"
            raise PartitionError(
                f"the source has lost records that are at the target, as after an unclean leader election: expected "
                f"{expected} up to offset {position} as at the target, found its end at {kept}"
            )
        _log.warning(
            "the source has lost records that were mirrored, as after an unclean leader election: the target keeps "
            "them, and the source's new records follow",
            partition=str(topic_partition),
            from_offset=kept,
            to_offset=position,
        )
        return kept

    def _first_position(self, topic_partition: TopicPartition, low: int, high: int) -> int:
        """Return where a partition begins that was never mirrored, and of which no offset is committed."""
        timestamp_ms = self.options.times.start_ms
        if timestamp_ms is not None:
            found = self.source.find_timestamp(topic_partition, timestamp_ms)
            return high if found is None else max(min(found, high), low)
        # With `latest`, partitions that appear later begin at their start: all their records are new.
        return high if self.options.beginning == "latest" and self.is_first else low

    def take_gone(self) -> list[OffsetsGone]:
        """Return the deleted offsets that attempts have found since the last call."""
        taken, self._gone = self._gone, []
        return taken

    def unbegun(self, topic_partition: TopicPartition, committed: int | None) -> Unbegun:
        """Return how far a partition is that must begin again. committed: by this run; None if nothing was."""
        known = (committed, self.target.pending(topic_partition))
        reached = min((offset for offset in known if offset is not None), default=None)
        lag = None if reached is None else self.source.lag(topic_partition, reached)
        end = None if reached is None or lag is None else reached + lag
        return Unbegun(reached, end, has_begun=True)

    def fail(
        self,
        topic_partitions: Collection[TopicPartition],
        bounds: Mapping[TopicPartition, tuple[int, int]],
    ) -> None:
        """Note that partitions could not begin. bounds: of the source, as far as they are known."""
        earlier = {one: self.failed.get(one, Unbegun()) for one in topic_partitions}
        reached = {one: self._resumed_at.get(one, found.reached) for one, found in earlier.items()}
        unknown = [one for one, offset in reached.items() if offset is None and one in bounds]
        for one, offset in self.source.reached_by_others(unknown).items() if unknown else ():
            reached[one] = max(offset, bounds[one][0])
        gone_to = {gone.topic_partition: gone.to_offset for gone in self._gone}
        self.failed = {
            one: Unbegun(
                reached[one],
                bounds[one][1] if one in bounds else found.end,
                found.has_begun,
                is_tried=True,
                gone_to=gone_to.get(one, found.gone_to),
            )
            for one, found in earlier.items()
        }

    @property
    def has_failed(self) -> bool:
        """Whether an attempt to begin a partition in `failed` has failed, for example because its topic was deleted."""
        return any(one.is_tried for one in self.failed.values())

    def ends_of_failed(self) -> dict[TopicPartition, tuple[int, int]]:
        """Return the offset that was reached, and the end, of the partitions in `failed`, as far as they are known."""
        return {
            one: (found.reached, found.end)
            for one, found in self.failed.items()
            if found.reached is not None and found.end is not None
        }

    def failures(self) -> dict[TopicPartition, str]:
        """Return what to report of partitions in `failed` that were tried, if the mirror ends."""
        return {
            one: f"a partition could not be started {'again ' if found.has_begun else ''}until the mirror ended"
            for one, found in self.failed.items()
            if found.is_tried
        }
