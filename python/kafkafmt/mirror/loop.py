"""The loop of a mirror: move batches from the source to the target, and commit only what has arrived.

A partition that fails is stopped and paused, and the others continue. If the target is slow, partitions are paused,
too, so that memory is bounded. The consumer is polled all the same, so that it stays in its group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import kafka.errors as kafka_errors
import structlog

from _kafkafmt.batches.scan import BatchRun
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.gaps import OffsetsGone, SourceDamage
from kafkafmt.mirror.beginnings import Beginnings
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.handlers import HandlerError
from kafkafmt.mirror.memory import HeldMemory
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.other_members import OtherMembers
from kafkafmt.mirror.protocols import PartitionError, Source, SourceRun, Target
from kafkafmt.mirror.refused_runs import begin_of, refusal_message
from kafkafmt.mirror.statistics import Statistics, Stopped, Unreached
from kafkafmt.mirror.targets.topic_messages import report_unknown_records
from kafkafmt.mirror.upkeep import TopicUpkeep
from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

_POLL_SECONDS = 0.5
# The poll timeout while acknowledgements are expected soon.
_SHORT_POLL_SECONDS = 0.05
# One partition may have this fraction of the memory under way: 1/4.
_SHARE = 4
# Revoked partitions are drained for this time at most, because the group waits meanwhile.
_REVOKED_SECONDS = 10.0
_RETRY_SECONDS = 1.0

# Returns the runs that the target takes in place of a source's run.
Transform = Callable[[TopicPartition, BatchRun], Iterator[BatchRun]]
Report = Callable[[Statistics], None]


class Mirror:
    """Moves batches until `end` is called or, if it does not follow, until the end of the source is reached.

    memory: counts the bytes that are held.
    upkeep: prepares the topics at the target, and says which are not mirrored.
    transform: called with each run of the source, before the target takes it.
    report: called every `progress_interval` seconds; never if that is 0.
    """

    def __init__(
        self,
        options: MirrorOptions,
        source: Source,
        target: Target,
        memory: HeldMemory,
        *,
        upkeep: TopicUpkeep,
        transform: Transform,
        report: Report,
    ) -> None:
        self._options = options
        self._source, self._target = source, target
        self._beginnings = Beginnings(options, source, target)
        self._others = OtherMembers(options, source)
        self._upkeep = upkeep
        self._transform, self._report = transform, report
        self._max_under_way = options.memory.under_way_bytes
        self._most_decompressed = options.memory.max_decompressed_bytes
        self._memory = memory
        self.statistics = target.statistics
        self._assigned: set[TopicPartition] = set()
        self._started: set[TopicPartition] = set()  # of `_assigned`: only their offsets are committed
        self._full: set[TopicPartition] = set()
        self._is_all_paused = False
        self._committed: dict[TopicPartition, int] = {}
        self._is_ending = False
        self._is_idle = True
        self._commit_due = time.monotonic() + options.commit_interval
        self._report_due = time.monotonic() + (options.progress_interval or float("inf"))
        self._begin_due = 0.0
        self._has_lost = False  # whether partitions must begin again that the target has lost

    def end(self) -> None:
        """Make `run` wait for the batches under way, and return."""
        self._is_ending = True

    def run(self) -> None:
        """Move batches until the end. Batches that have arrived are committed, also if an error ends it.

        Raises MirrorError or OSError if the whole mirror cannot continue.
        """
        try:
            self._run_rounds()
        except Exception:  # after a KeyboardInterrupt, positions may be after batches that were not taken
            self._finish(has_failed=True)
            raise
        self._finish()
        self._report_unreached()

    def _run_rounds(self) -> None:
        while not self._is_ending:
            partitions = self._source.partitions()
            if self._is_done(partitions):
                return
            self._begin_partitions(partitions)
            self._move()
            self._begin_rewound_again()
            self._collect()
            self._pause_or_resume()
            self._commit_and_report(time.monotonic())
            self._begin_lost_again()

    def revoke(self, topic_partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Drain partitions that another mirror takes over. Return the offsets that may be committed."""
        mine = [one for one in topic_partitions if one in self._started]
        offsets = {one: self._acknowledged(one) for one in mine} if self._drain(mine) else {}
        self._forget(topic_partitions)
        return offsets

    def _drain(self, topic_partitions: Iterable[TopicPartition]) -> bool:
        """Wait some time until batches under way have arrived. Return whether those that have are durable.

        Nothing more of these partitions is sent.
        """
        self._target.drain(_REVOKED_SECONDS)
        self._collect()
        self._target.finish(topic_partitions)
        return self._make_durable()

    def _forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._target.forget(topic_partitions)
        for one in topic_partitions:
            self._assigned.discard(one)
            self._started.discard(one)
            self._beginnings.failed.pop(one, None)
            self._full.discard(one)
            self._committed.pop(one, None)
            self.statistics.stopped.pop(one, None)
            self.statistics.lag.pop(one, None)

    def _is_done(self, partitions: Sequence[TopicPartition] | None) -> bool:
        if partitions is None or not self._assigned.issuperset(partitions):
            return partitions is None and self._others.stand_still(self._assigned)
        active = [one for one in partitions if one not in self.statistics.stopped]
        if self._options.is_following:
            return bool(partitions) and not active and not self.statistics.left_out_topics
        if not self._is_idle or any(self._target.pending(one) is not None for one in active):
            return False
        self._source.refresh_positions()
        if left := [one for one in active if not self._source.is_at_end(one)]:
            self._source.lower_goals(left)
            return False
        return not self._others.left(self._assigned) or self._others.stand_still(self._assigned)

    def _begin_lost_again(self) -> None:
        """Begin partitions again whose batches the target has dropped or lost."""
        if lost := list(self._target.take_lost(self._assigned)):
            self._source.pause(lost)
            self._begin_again(lost)
            self._has_lost = True

    def _begin_rewound_again(self) -> None:
        """Begin partitions again whose log was truncated at the source below the mirror's position."""
        rewound = self._source.take_rewound() & self._started - self.statistics.stopped.keys()
        if rewound:
            self._drain(rewound)
            self._begin_again(rewound)

    def _begin_again(self, topic_partitions: Collection[TopicPartition]) -> None:
        unbegun = {one: self._beginnings.unbegun(one, self._committed.get(one)) for one in topic_partitions}
        self._forget(topic_partitions)
        self._beginnings.failed.update(unbegun)
        self._begin_due = time.monotonic() + _RETRY_SECONDS

    def _begin_partitions(self, partitions: Sequence[TopicPartition] | None) -> None:
        """Begin newly assigned partitions at the positions where they were left, and forget those that are gone."""
        if partitions is None:
            return
        known = self._assigned | self._beginnings.failed.keys()
        if gone := known.difference(partitions):  # such as a folder that was deleted
            if started := gone & self._started:
                self._drain(started)
            self._forget(gone)
        new = [one for one in partitions if one not in self._assigned]
        if not new or time.monotonic() < self._begin_due:
            return
        bounds: Mapping[TopicPartition, tuple[int, int]] = {}
        try:
            bounds = self._source.bounds(sorted(new))
            topics = {one.topic for one in new}
            refused = self._upkeep.prepare(topics, again=self._beginnings.has_failed)
            admitted = [one for one in new if one.topic not in refused]
            mine = self._target.acquire(admitted)
            if len(mine) < len(admitted):
                self._begin_due = time.monotonic() + _RETRY_SECONDS
            positions = self._beginnings.positions({one: bounds[one] for one in mine})
            for one in new:
                if one.topic in refused:
                    positions[one] = Stopped(one, bounds[one][0], *refused[one.topic])
            self._target.make_durable()
        except kafka_errors.RetriableError as error:
            self._begin_due = time.monotonic() + _RETRY_SECONDS
            self._beginnings.fail(new, bounds)
            _log.warning("partitions could not be started, and are tried again", error=str(error))
            return
        finally:  # the target may keep where a partition begins, also if others could not be started
            for gone_offsets in self._beginnings.take_gone():
                self._note_gone(gone_offsets)
        self._beginnings.failed.clear()
        self._has_lost = False
        unknown = self._target.take_unknown_records()
        report_unknown_records(unknown, appends=self._options.appends)
        for topic_partition, position in positions.items():
            self._assigned.add(topic_partition)
            if isinstance(position, Stopped):
                # With --append unknown records stop no partition. A refused topic was reported once.
                is_reported = topic_partition in unknown and not self._options.appends
                is_reported = is_reported or topic_partition.topic in refused
                self._stop(position, is_reported=is_reported)
                continue
            self._started.add(topic_partition)
            self._source.seek(topic_partition, position)
            if not self._is_all_paused:
                self._source.resume([topic_partition])
        self._beginnings.is_first = False
        self._commit_due = 0.0  # a mirror that begins at the end must not begin there again after a restart

    def _keep_up(self) -> None:
        """Stop topics that close a loop by now, and sync the configuration of the others."""
        refused = self._upkeep.refresh()
        for one in [one for one in self._started if one.topic in refused]:
            self._stop(Stopped(one, self._acknowledged(one), *refused[one.topic]), is_reported=True)

    def _move(self) -> None:
        """Pass the batches that the source returns to the target."""
        waits = self._is_all_paused or bool(self._full) or not self._options.is_following
        self._is_idle = True
        for found in self._source.poll(_SHORT_POLL_SECONDS if waits else _POLL_SECONDS):
            if self._is_idle:  # the first run of this poll
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
            "offsets were deleted at the source before they were read",
            topic=gone.topic_partition.topic,
            partition=gone.topic_partition.partition,
            from_offset=gone.from_offset,
            to_offset=gone.to_offset,
        )

    def _take(self, found: SourceRun) -> None:
        topic_partition, run, _ = found
        position: int | None = None
        try:
            for moved in self._transform(topic_partition, run):
                self._target.take(topic_partition, moved)
                position = int(moved.index["last_offset"][-1]) + 1
        except HandlerError as error:
            number = int(run.index["last_offset"].searchsorted(error.resume_offset))
            message = refusal_message(error, self._options)
            self._stop(Stopped(topic_partition, begin_of(found, self._most_decompressed, number), message))
            raise MirrorError(message) from error.__cause__
        except (PartitionError, KafkaFormatError) as error:
            offset = error.base_offset if isinstance(error, KafkaFormatError) else error.offset
            begin = begin_of(found, self._most_decompressed) if position is None else position
            self._stop(
                Stopped(topic_partition, max(offset or 0, begin), refusal_message(error, self._options))
            )
            return
        except Exception as error:  # the source's position is after the run already
            self._stop(
                Stopped(
                    topic_partition,
                    begin_of(found, self._most_decompressed),
                    str(error) or type(error).__name__,
                )
            )
            raise
        held = self._target.held_bytes()
        self._memory.under_way(held)
        if held > self._max_under_way:  # a folder then returns no more runs in this poll
            self._pause_all()
        elif self._target.held_bytes(topic_partition) > self._max_under_way // _SHARE:
            self._full.add(topic_partition)
            self._source.pause([topic_partition])

    def _meet_damage(self, damage: SourceDamage) -> None:
        topic_partition, offset, next_offset, message = damage
        if self._options.on_corrupt != "skip":
            self._stop(Stopped(topic_partition, offset, message))
            return
        is_last = not self._options.is_following and self._source.is_at_end(topic_partition)
        if next_offset is None and not is_last:
            self._stop(
                Stopped(topic_partition, offset, f"{message}; the offset of the next batch is not known")
            )
            return
        self.statistics.skipped.append(damage)
        _log.warning(
            "damage was skipped",
            partition=str(topic_partition),
            first_offset=offset,
            next_offset=next_offset,
            error=message,
        )
        if next_offset is not None:
            self._source.seek(topic_partition, next_offset)

    def _stop(self, stopped: Stopped, *, is_reported: bool = False) -> None:
        self.statistics.stopped[stopped.topic_partition] = stopped
        self._source.pause([stopped.topic_partition])
        self._full.discard(stopped.topic_partition)
        if is_reported:
            return
        _log.error(
            "a partition was stopped",
            partition=str(stopped.topic_partition),
            offset=stopped.offset,
            error=stopped.message,
        )

    def _collect(self) -> None:
        """Process the target's acknowledgements and failures."""
        for stopped in self._target.advance():
            self._stop(stopped)
        self._memory.under_way(self._target.held_bytes())

    def _pause_or_resume(self) -> None:
        most = self._max_under_way
        held = self._target.held_bytes()
        stopped = self.statistics.stopped
        if self._is_all_paused:
            if held > most // 2:
                return
            self._is_all_paused = False
            self._source.resume(self._assigned.difference(stopped, self._full))
        elif held > most:
            self._pause_all()
            return
        room = [one for one in self._full if self._target.held_bytes(one) <= most // _SHARE // 2]
        self._full.difference_update(room)
        self._source.resume(room)

    def _pause_all(self) -> None:
        self._is_all_paused = True
        self._source.pause(self._assigned)

    def _commit_and_report(self, now: float) -> None:
        if now >= self._commit_due:
            self._stop_lost_topics()
            self._commit()
        if self._upkeep.is_due(now):
            self._keep_up()
        if now >= self._report_due:
            self._report_due = now + self._options.progress_interval
            self.measure_lag()
            self._report(self.statistics)

    def _stop_lost_topics(self) -> None:
        """Stop partitions whose topic was deleted while it was mirrored: a new topic's offsets begin at 0."""
        for one, message in self._source.lost_topics().items():
            if one in self.statistics.stopped:
                continue
            if one in self._assigned:
                offset = self._acknowledged(one)
            else:
                offset = self._source.reached_by_others([one])[one]
                self._assigned.add(one)
            self._stop(Stopped(one, offset, message))

    def _acknowledged(self, topic_partition: TopicPartition) -> int:
        """Return the source's offset before which all batches have arrived, or were left out."""
        pending = self._target.pending(topic_partition)
        if pending is None:
            pending = self._target.not_durable(topic_partition)
        if pending is not None:
            return pending
        stopped = self.statistics.stopped.get(topic_partition)
        return self._source.position(topic_partition) if stopped is None else stopped.offset

    def _commit(self, *, is_last: bool = False, has_failed: bool = False) -> None:
        """Commit the offsets of batches that have arrived, once they are durable."""
        self._commit_due = time.monotonic() + self._options.commit_interval
        self._source.refresh_positions()
        self._collect()
        if not self._make_durable():
            return
        offsets = {one: self._acknowledged(one) for one in self._started}
        changed = {one: offset for one, offset in offsets.items() if self._committed.get(one) != offset}
        if changed:
            self._target.keep_positions(changed)
            self._source.commit(changed)
            self._committed.update(changed)
        self._target.complete_commit(is_last=is_last, has_failed=has_failed)

    def _make_durable(self) -> bool:
        try:
            self._target.make_durable()
        except kafka_errors.RetriableError as error:
            _log.warning(
                "batches that arrived could not be made durable, and are tried again", error=str(error)
            )
            return False
        return True

    def _report_unreached(self) -> None:
        """Report the partitions that have not reached their end, although they were not stopped.

        A mirror that follows has no ends to reach. It reports those that it could not begin.
        """
        if self._options.is_following:
            events = self._beginnings.failures()
            ends = {one: found for one, found in self._beginnings.ends_of_failed().items() if one in events}
        else:
            left = self._others.left(self._assigned)
            ends = {
                one: (self._acknowledged(one) if one in self._assigned else left.get(one, goal), goal)
                for one, goal in self._source.goals().items()
            }
            events = dict.fromkeys(ends, "a partition did not reach the end that it had at the start")
        for one, (reached, goal) in sorted(ends.items()):
            if reached < goal and one not in self.statistics.stopped:
                self.statistics.unreached.append(Unreached(one, reached, goal))
                _log.error(events[one], partition=str(one), from_offset=reached, to_offset=goal)

    def measure_lag(self) -> None:
        """Update the lag of all partitions in the statistics."""
        for one in self._assigned:
            if one.topic in self.statistics.left_out_topics:
                self.statistics.lag.pop(one, None)
                continue
            lag = self._source.lag(one, self._acknowledged(one))
            if lag is not None:
                self.statistics.lag[one] = lag
        for one, (reached, end) in self._beginnings.ends_of_failed().items():
            self.statistics.lag[one] = max(end - reached, 0)
        self.statistics.lag.update(self._others.lag(self._assigned))

    def _finish(self, *, has_failed: bool = False) -> None:
        self._target.drain(self._options.shutdown_timeout)
        self._collect()
        self._target.finish(self._started)
        try:
            self._commit(is_last=True, has_failed=has_failed)
            self._begin_lost_again()
            if self._has_lost and not has_failed:  # the offset map must not end with what was lost
                self._begin_due = 0.0
                self._begin_partitions(self._source.partitions())
            self._collect_gone()
        finally:
            self.measure_lag()
