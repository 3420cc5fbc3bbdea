"""The loop: what a source hands out goes to the target, and what has arrived is committed, no more.

A partition that can be mirrored no further is held, and the others go on. Where the target is slow its partitions are
held too, while the consumer is polled all the same: it stays in its group, and memory is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import kafka.errors as kafka_errors
import structlog

from _kafkafmt.scan import BatchRun
from kafkafmt.errors import DecompressionLimitError, KafkaFormatError
from kafkafmt.log.reading import SourceDamage, first_offset
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.handlers import HandlerError
from kafkafmt.mirror.memory import HeldMemory
from kafkafmt.mirror.moving import (
    OffsetsGone,
    PartitionError,
    Source,
    SourceRun,
    Stopped,
    Target,
    Unreached,
)
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.sizes import size_text
from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

_POLL_SECONDS = 0.5
# Where something may have arrived soon, and is waited for.
_SHORT_POLL_SECONDS = 0.05
# What one partition may have under way, of the memory for all.
_SHARE = 4
# Partitions that the group takes away are finished within that time: the group waits.
_REVOKED_SECONDS = 10.0
_RETRY_SECONDS = 1.0

# Makes of a run what is taken in its place.
Transform = Callable[[TopicPartition, BatchRun], Iterator[BatchRun]]
Report = Callable[[Statistics], None]


class Mirror:
    """Moves batches until it is told to `end`, or until all is moved where it does not follow.

    memory: told of what is held. transform: between the source and the target. report: called every
    `progress_interval` seconds, if that is any.
    """

    def __init__(
        self,
        options: MirrorOptions,
        source: Source,
        target: Target,
        memory: HeldMemory,
        *,
        transform: Transform,
        report: Report,
    ) -> None:
        self._options = options
        self._source, self._target = source, target
        self._transform, self._report = transform, report
        self._most_under_way = options.memory.under_way_bytes
        self._memory = memory
        self.statistics = target.statistics
        self._begun: set[TopicPartition] = set()
        self._not_begun: set[TopicPartition] = (
            set()
        )  # of those that were to be begun: nothing is committed of them
        self._begins_first = True
        self._full: set[TopicPartition] = set()
        self._is_all_held = False
        self._committed: dict[TopicPartition, int] = {}
        self._is_told_to_end = False
        self._is_idle = True
        self._commit_due = time.monotonic() + options.commit_interval
        self._report_due = time.monotonic() + (options.progress_interval or float("inf"))
        self._begin_due = 0.0
        self._gone_at_begin: list[OffsetsGone] = []
        self._left: dict[TopicPartition, int] | None = None
        self._left_since = 0.0

    def end(self) -> None:
        """Have `run` finish what is under way, and return."""
        self._is_told_to_end = True

    def run(self) -> None:
        """Raises MirrorError and OSError for what keeps all of it from going on; what has arrived is committed."""
        try:
            while not self._is_told_to_end and not self._is_done():
                self._begin_partitions()
                self._move()
                self._collect()
                self._hold_or_go_on()
                self._tend(time.monotonic())
        finally:
            self._finish()
        self._tell_unreached()

    def give_up(self, topic_partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Finish what is under way of partitions that become another mirror's; what of them may be committed."""
        mine = [one for one in topic_partitions if one in self._begun - self._not_begun]
        offsets = {one: self._arrived(one) for one in mine} if self._settle() else {}
        self._let_go(topic_partitions)
        return offsets

    def _settle(self) -> bool:
        """Have what is under way arrive, within some time; is what has arrived there for good?"""
        self._target.settle(_REVOKED_SECONDS)
        self._collect()
        return self._make_durable()

    def _let_go(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._target.forget(topic_partitions)
        for one in topic_partitions:
            self._begun.discard(one)
            self._not_begun.discard(one)
            self._full.discard(one)
            self._committed.pop(one, None)
            self.statistics.stopped.pop(one, None)
            self.statistics.lag.pop(one, None)

    def _is_done(self) -> bool:
        partitions = self._source.partitions()
        if partitions is None or not self._begun.issuperset(partitions):
            return partitions is None and self._others_stand_still()
        going_on = [one for one in partitions if one not in self.statistics.stopped]
        if self._options.is_following:
            return bool(partitions) and not going_on
        if not self._is_idle or any(self._target.pending(one) is not None for one in going_on):
            return False
        self._source.learn_positions()
        if not all(map(self._source.is_at_end, going_on)):
            return False
        return not self._left_to_others() or self._others_stand_still()

    def _left_to_others(self) -> dict[TopicPartition, int]:
        """The partitions that others of the group have and have not brought to the end; and how far they are."""
        goals = self._source.goals()
        others = goals.keys() - self._begun
        if not others:
            return {}
        reached = self._source.reached_by_others(others)
        return {one: reached[one] for one in others if reached[one] < goals[one]}

    def _others_stand_still(self) -> bool:
        """Has nothing changed for a time in what others of the group are to do? Not of a mirror that follows."""
        if self._options.is_following:
            return False
        left, now = self._left_to_others(), time.monotonic()
        if left != self._left:
            if left and self._source.partitions() is not None:
                _log.info("waiting for other members of the group", partitions=len(left))
            self._left, self._left_since = left, now
        return now - self._left_since > self._source.patience

    def _begin_partitions(self) -> None:
        """Have partitions that have become this mirror's go on where they were left."""
        partitions = self._source.partitions()
        if partitions is None:
            return
        gone = self._begun.difference(partitions)  # as a folder is that was deleted
        if gone:
            self._settle()
            self._let_go(gone)
        new = [one for one in partitions if one not in self._begun]
        if not new or time.monotonic() < self._begin_due:
            return
        self._gone_at_begin.clear()
        try:
            self._target.prepare(self._source.topics())
            positions = {
                topic_partition: self._position(topic_partition, *bounds)
                for topic_partition, bounds in self._source.bounds(new).items()
            }
            self._target.make_durable()
        except kafka_errors.RetriableError as error:
            self._begin_due = time.monotonic() + _RETRY_SECONDS
            _log.warning("partitions could not be begun, and are tried again", error=str(error))
            return
        for one in self._gone_at_begin:
            self._note_gone(one)
        for topic_partition, position in positions.items():
            self._begun.add(topic_partition)
            if isinstance(position, Stopped):
                self._not_begun.add(topic_partition)
                self._stop(position)
                continue
            self._source.seek(topic_partition, position)
            if not self._is_all_held:
                self._source.go_on([topic_partition])
        self._begins_first = False
        self._commit_due = 0.0  # lest a mirror that begins at the end begins there again

    def _position(self, topic_partition: TopicPartition, low: int, high: int) -> int | Stopped:
        """Where a partition goes on, which the target is told."""
        begins_behind: OffsetsGone | None = None
        try:
            self._target.identify(topic_partition, self._source.topic_id(topic_partition))
            position = self._target.resume_offset(topic_partition)
            if position is None and self._options.beginning == "committed":
                position = self._source.committed(topic_partition)
            if position is None:
                # What has appeared since then is all newer than the mirror.
                position = high if self._options.beginning == "latest" and self._begins_first else low
            if position > high and position > (end := self._source.log_end(topic_partition)):
                raise PartitionError(
                    f"the source ends at offset {end}, and {position} is where to go on: "
                    "expected the source of what is at the target"
                )
            if position < low:
                begins_behind = OffsetsGone(topic_partition, position, low)
                position = low
            self._target.begin(topic_partition, position)
            if begins_behind is not None:
                self._gone_at_begin.append(begins_behind)
        except (PartitionError, KafkaFormatError) as error:
            return Stopped(topic_partition, low, str(error))
        return position

    def _move(self) -> None:
        """Hand over what the source has."""
        waits = self._is_all_held or bool(self._full) or not self._options.is_following
        self._is_idle = True
        for found in self._source.poll(_SHORT_POLL_SECONDS if waits else _POLL_SECONDS):
            if self._is_idle:  # the first of what has come
                self._memory.fetched(self._source.fetched_bytes)
                self._is_idle = False
            if found.topic_partition in self.statistics.stopped:
                continue
            if isinstance(found, SourceDamage):
                self._meet_damage(found)
            else:
                self._take(found)
        self._memory.fetched(self._source.fetched_bytes)
        self._collect_gone()

    def _collect_gone(self) -> None:
        for gone in self._source.gone():
            if gone.topic_partition not in self.statistics.stopped:
                self._note_gone(gone)

    def _note_gone(self, gone: OffsetsGone) -> None:
        self.statistics.gone.append(gone)
        _log.error(
            "offsets were deleted at the source before they were mirrored",
            topic=gone.topic_partition.topic,
            partition=gone.topic_partition.partition,
            from_offset=gone.from_offset,
            to_offset=gone.to_offset,
        )

    def _take(self, found: SourceRun) -> None:
        topic_partition, run = found
        position = first_offset(run)
        try:
            for moved in self._transform(topic_partition, run):
                self._target.take(topic_partition, moved)
                position = int(moved.index["last_offset"][-1]) + 1
        except HandlerError as error:
            number = int(run.index["last_offset"].searchsorted(error.resume_offset))
            self._stop(Stopped(topic_partition, first_offset(run, number), str(error)))
            raise MirrorError(str(error)) from error.__cause__
        except OSError as error:
            self._stop(Stopped(topic_partition, first_offset(run), str(error)))
            raise
        except (PartitionError, KafkaFormatError) as error:
            offset = error.base_offset if isinstance(error, KafkaFormatError) else error.offset
            said = self._told(error)
            self._stop(Stopped(topic_partition, position if offset is None else max(offset, position), said))
            return
        held = self._target.held_bytes()
        self._memory.under_way(held)
        if held > self._most_under_way:  # a folder hands out no more of others then
            self._hold_all()
        elif self._target.held_bytes(topic_partition) > self._most_under_way // _SHARE:
            self._full.add(topic_partition)
            self._source.hold([topic_partition])

    def _told(self, error: Exception) -> str:
        if not isinstance(error, DecompressionLimitError):
            return str(error)
        most, total = self._options.memory.max_decompressed_bytes, size_text(self._options.memory_bytes)
        return f"{error}: with --memory {total} a batch may decompress to {most} bytes, and with more to more"

    def _meet_damage(self, damage: SourceDamage) -> None:
        topic_partition, offset, next_offset, message = damage
        if self._options.on_corrupt == "stop":
            self._stop(Stopped(topic_partition, offset, message))
            return
        is_last = not self._options.is_following and self._source.is_at_end(topic_partition)
        if next_offset is None and not is_last:
            self._stop(Stopped(topic_partition, offset, f"{message}; where to go on behind it is not known"))
            return
        self.statistics.skipped.append(damage)
        _log.warning(
            "damage was passed over",
            partition=str(topic_partition),
            first_offset=offset,
            next_offset=next_offset,
            error=message,
        )
        if next_offset is not None:
            self._source.seek(topic_partition, next_offset)

    def _stop(self, stopped: Stopped) -> None:
        self.statistics.stopped[stopped.topic_partition] = stopped
        self._source.hold([stopped.topic_partition])
        self._full.discard(stopped.topic_partition)
        _log.error(
            "a partition is mirrored no further",
            partition=str(stopped.topic_partition),
            offset=stopped.offset,
            error=stopped.message,
        )

    def _collect(self) -> None:
        """Take in what has arrived."""
        for stopped in self._target.advance():
            self._stop(stopped)
        self._memory.under_way(self._target.held_bytes())

    def _hold_or_go_on(self) -> None:
        most = self._most_under_way
        held = self._target.held_bytes()
        stopped = self.statistics.stopped
        if self._is_all_held:
            if held > most // 2:
                return
            self._is_all_held = False
            self._source.go_on(self._begun.difference(stopped, self._full))
        elif held > most:
            self._hold_all()
            return
        room = [one for one in self._full if self._target.held_bytes(one) <= most // _SHARE // 2]
        self._full.difference_update(room)
        self._source.go_on(room)

    def _hold_all(self) -> None:
        self._is_all_held = True
        self._source.hold(self._begun)

    def _tend(self, now: float) -> None:
        if now >= self._commit_due:
            self._stop_recreated()
            self._commit()
        if now >= self._report_due:
            self._report_due = now + self._options.progress_interval
            self.measure_lag()
            self._report(self.statistics)

    def _stop_recreated(self) -> None:
        """Stop partitions whose topic became another one while it was mirrored: offsets begin anew there."""
        for one in self._source.recreated():
            if one in self._begun and one not in self.statistics.stopped:
                message = "the topic was deleted and created again at the source while it was mirrored"
                self._stop(Stopped(one, self._arrived(one), message))

    def _arrived(self, topic_partition: TopicPartition) -> int:
        """The source's offset that all in front of has arrived of, or is not wanted."""
        pending = self._target.pending(topic_partition)
        if pending is not None:
            return pending
        stopped = self.statistics.stopped.get(topic_partition)
        return self._source.position(topic_partition) if stopped is None else stopped.offset

    def _commit(self) -> None:
        """Commit what has arrived, once it is durable."""
        self._commit_due = time.monotonic() + self._options.commit_interval
        self._source.learn_positions()
        self._collect()
        if not self._make_durable():
            return
        offsets = {one: self._arrived(one) for one in self._begun - self._not_begun}
        changed = {one: offset for one, offset in offsets.items() if self._committed.get(one) != offset}
        if changed:
            self._source.commit(changed)
            self._committed.update(changed)

    def _make_durable(self) -> bool:
        try:
            self._target.make_durable()
        except kafka_errors.RetriableError as error:
            _log.warning("what has arrived could not be kept, and is the next time", error=str(error))
            return False
        return True

    def _tell_unreached(self) -> None:
        """Note the partitions that are not where they were to be, though they have not been stopped."""
        left = self._left_to_others()
        for one, goal in sorted(self._source.goals().items()):
            if one in self.statistics.stopped:
                continue
            reached = self._arrived(one) if one in self._begun else left.get(one, goal)
            if reached < goal:
                self.statistics.unreached.append(Unreached(one, reached, goal))
                _log.error(
                    "a partition was not mirrored to the end that it had at the start",
                    partition=str(one),
                    from_offset=reached,
                    to_offset=goal,
                )

    def measure_lag(self) -> None:
        for one in self._begun:
            lag = self._source.lag(one, self._arrived(one))
            if lag is not None:
                self.statistics.lag[one] = lag
        goals = self._source.goals()
        left = self._left_to_others()
        for one in goals.keys() - self._begun:
            self.statistics.lag[one] = goals[one] - left.get(one, goals[one])

    def _finish(self) -> None:
        self._target.settle(self._options.shutdown_timeout)
        self._commit()
        self._collect_gone()
        self.measure_lag()
