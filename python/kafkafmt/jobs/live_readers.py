"""Read the partitions of a cluster through one budgeted consumer, as `PartitionReaders` reads logs.

A partition without room in its buffer is paused at the consumer, and resumed when it has room ("Deserialized Objects
Buffering", "buffered.bytes.per.partition" of Memory Management in Kafka Streams). The consumer's memory is the part
"Consumer" of the plan. It is divided over:

    fetched   responses on their way, and what the consumer has not returned yet
    handed    batches of the last poll, until each partition has taken its own
    kept      copies of batches for which a partition had no room; without memory for a copy they are fetched again

Without `follows` each partition is read up to the end that it had at the start.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors
from kafka import TopicPartition as KafkaTopicPartition

from _kafkafmt.batches.scan import BatchRun
from kafkafmt._util.closing import Closing
from kafkafmt._util.user_errors import UserError
from kafkafmt.client.errors import CorruptFetchedBatchError
from kafkafmt.errors import CorruptRecordError, KafkaFormatError
from kafkafmt.jobs.readers import Readers
from kafkafmt.log.gaps import OffsetsGone, SourceDamage
from kafkafmt.records.runs import first_offset, joined_runs, slice_run
from kafkafmt.records.trimming import runs_before
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.streams.reservations import Reservation
    from kafkafmt.client.raw_consumer import RawConsumer
    from kafkafmt.jobs.group_member import GroupMember
    from kafkafmt.memory import MemoryBudget

# The shares of Consumer for fetched and for handed batches; the rest is for kept ones.
FETCHED_SHARE = 3 / 8
# A poll waits this long at most, so that a signal and a rebalance are noticed.
_POLL_SECONDS = 0.25
# A cluster that returns nothing for this time, although there are records, is an error.
_PATIENCE_SECONDS = 60.0


class LiveReadError(UserError):
    """The partitions of a cluster cannot be read to their end; the message says why, in one line."""


@dataclass(frozen=True)
class LiveOptions:
    """How partitions of a cluster are read.

    follows: continue at the end of each partition until `LiveReaders.stop`.
    idle_seconds: with `follows`, `read` returns None for a partition from which nothing has arrived for this time, so
        that a merge does not wait for it (`max.task.idle.ms` of Kafka Streams). None: never.
    skips_damage: skip damage and call `on_damage` with it. Otherwise CorruptRecordError is raised.
    starts: where partitions begin, if that is after the start of the log.
    """

    follows: bool = False
    idle_seconds: float | None = None
    skips_damage: bool = False
    on_damage: Callable[[SourceDamage], None] = lambda damage: None
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)


class LiveReaders(Readers, Closing):
    """Read the partitions in `bounds` through `consumer`, which must not read anything yet. Closes the consumer.

    bounds: the first offset of each partition, and the offset after the last record to read, when the reading begins.
        A batch that contains that offset is cut.
    budget: the part Consumer of the plan. `consumer` must have `budget.child("fetched")` as its budget.
    group: shares the partitions with other members of a group; None: all partitions are read here.

    Raises LiveReadError if nothing arrives for a minute, and KafkaError.

    Attributes:
        pauses: how often a partition was paused before its end, because it had no room.
        gone: offsets that were deleted before they were read.
        group: the membership in the group, if there is one.
    """

    def __init__(
        self,
        consumer: RawConsumer,
        bounds: Mapping[TopicPartition, tuple[int, int]],
        options: LiveOptions,
        budget: MemoryBudget,
        group: GroupMember | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = budget
        self.pauses = 0
        self.gone: list[OffsetsGone] = []
        self.group = group
        self._consumer, self._options = consumer, options
        self._bounds = dict(bounds)
        self._ends = {} if options.follows else {one: end for one, (_, end) in bounds.items()}
        self._handed = budget.child("handed").reserve(0)
        self._kept_budget = budget.child("kept", max(int(budget.total_bytes * (1 - 2 * FETCHED_SHARE)), 1))
        self._kept: dict[TopicPartition, Reservation] = {}
        self._pending: defaultdict[TopicPartition, deque[BatchRun]] = defaultdict(deque)
        self._last: dict[TopicPartition, BatchRun] = {}  # read since the last `ready`
        self._positions: dict[TopicPartition, int] = {}
        self._received: dict[TopicPartition, int] = {}  # the offset after the last batch that was received
        self._flowing: set[TopicPartition] = set()
        self._resting: set[TopicPartition] = set()  # found idle, until the next `read`
        self._idle: set[TopicPartition] = set()
        self._empty_since: dict[TopicPartition, float] = {}
        self._silent_seconds = 0.0  # how long polls have waited since something arrived
        self._clock = clock
        self._is_stopped = False
        if group is None:
            consumer.assign([_kafka(one) for one in self.partitions])
            consumer.pause(*map(_kafka, self.partitions))
            for one in self._bounds:
                consumer.seek(_kafka(one), self._start_of(one))
        else:
            group.join(consumer, self._forget)

    @property
    def partitions(self) -> list[TopicPartition]:
        """Return all partitions that are known, sorted."""
        return sorted(self._bounds)

    @property
    def owned(self) -> list[TopicPartition]:
        """Return the partitions that are assigned to this reader, sorted."""
        return self.partitions if self.group is None else sorted(self.group.owned)

    @property
    def is_over(self) -> bool:
        """Whether `stop` was called, or the end of all partitions is known and reached."""
        if self._is_stopped or self.group is None:
            return self._is_stopped or not self._options.follows
        return self.group.is_done

    def stop(self) -> None:
        """Read no more: `ready` returns no partition. A signal handler may call this."""
        self._is_stopped = True

    def ready(self, wanted: Sequence[TopicPartition], *, waits: bool = True) -> Sequence[TopicPartition]:
        """Return the partitions whose `read` returns at once, of `wanted` and of those that were idle.

        If more may follow later, as with a group, it waits a fraction of a second at most. With a group, partitions may
        be assigned and revoked during the call.
        """
        self._last.clear()
        self._resting.clear()
        self._fetch_only(wanted)
        if self._is_stopped or (not wanted and self.group is None and not self._options.follows):
            return ()
        found = self._found(wanted)
        while not found and not self._is_stopped:
            began = self._clock()
            self._poll(_POLL_SECONDS if waits else 0.0)
            self._silent_seconds = (
                0.0 if self._consumer.is_receiving else self._silent_seconds + self._clock() - began
            )
            if self.group is not None:
                self.group.update()
            found = self._found(wanted) or (self._found_late(wanted) if waits else [])
            if not waits or self._options.follows or self.group is not None:
                break
        return found

    def _found_late(self, wanted: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that are at their end, or idle, after a poll that has returned nothing of them.

        Without `follows` no partition is idle: its `read` returns None at its end only.
        """
        for one in wanted:
            self._refresh(one)
        found = self._found(wanted, may_be_idle=self._options.follows)
        self._ensure_heard(wanted, is_found=bool(found))
        return found

    def is_ready(self, topic_partition: TopicPartition) -> bool:
        """Return whether batches of the partition have arrived, or it is at its end, or idle."""
        return topic_partition in self._received and (
            bool(self._pending[topic_partition])
            or self._is_at_end(topic_partition)
            or topic_partition in self._resting
        )

    def read(self, topic_partition: TopicPartition) -> BatchRun | None:
        """Return the next batches; None at the end, or, with `follows`, if nothing arrived for `idle_seconds`."""
        pending = self._pending[topic_partition]
        if not pending:
            if self._options.follows:
                self._idle.add(topic_partition)
            self._resting.discard(topic_partition)
            return None
        run = pending.popleft()
        if not pending and (kept := self._kept.pop(topic_partition, None)) is not None:
            kept.release()
        self._last[topic_partition] = run
        self._positions[topic_partition] = int(run.index["last_offset"][-1]) + 1
        end = self._ends.get(topic_partition)
        if end is not None and not pending and self._received[topic_partition] >= end:
            self._positions[topic_partition] = end  # a batch that was cut may end before
        self._idle.discard(topic_partition)
        self._empty_since.pop(topic_partition, None)
        return run

    def seek(self, topic_partition: TopicPartition, offset: int | None) -> int:
        """Continue at an offset; None is the first one to read. Received batches are used if they are kept."""
        start, _ = self._bounds_of(topic_partition)
        if offset is None:
            offset = self._start_of(topic_partition)
        elif offset < start:
            self.gone.append(OffsetsGone(topic_partition, offset, start))
            offset = start
        if not self._keep_from(topic_partition, offset):
            self.rest(topic_partition)
            self._consumer.seek(_kafka(topic_partition), offset)
            self._received[topic_partition] = offset
        self._positions[topic_partition] = offset
        return offset

    def offset(self, topic_partition: TopicPartition) -> int:
        """Return the offset at which the next read begins."""
        return self._positions.get(topic_partition, self._start_of(topic_partition))

    def end_offset(self, topic_partition: TopicPartition) -> int:
        """Return the offset up to which the partition is read; if it is followed, its current end."""
        if not self._options.follows:
            return self._ends.get(topic_partition, self._bounds_of(topic_partition)[1])
        asked = _kafka(topic_partition)
        return int(self._consumer.end_offsets([asked])[asked])

    def rest(self, topic_partition: TopicPartition) -> None:
        """Drop the batches of the partition; `seek` fetches them again."""
        self._pending.pop(topic_partition, None)
        self._last.pop(topic_partition, None)
        self._received.pop(topic_partition, None)
        self._empty_since.pop(topic_partition, None)
        self._idle.discard(topic_partition)
        if (kept := self._kept.pop(topic_partition, None)) is not None:
            kept.release()

    def meet(self, damage: SourceDamage) -> None:
        """Report damage to `on_damage`. Raises CorruptRecordError if damage is not skipped."""
        if not self._options.skips_damage:
            raise CorruptRecordError(f"{damage.topic_partition} at offset {damage.offset}: {damage.message}")
        self._options.on_damage(damage)

    def leave(self) -> None:
        """Commit the positions of the group, leave it, and close the consumer. `owned` stays as it is."""
        if self.group is not None:
            self.group.commit()
        self.close()

    def close(self) -> None:
        """Close the consumer, without a commit. A second call does nothing."""
        self._is_stopped = True
        if self.group is not None:
            self.group.has_left = True
        self._consumer.close(autocommit=False)

    # What is ready

    def _found(self, wanted: Iterable[TopicPartition], *, may_be_idle: bool = False) -> list[TopicPartition]:
        found = [one for one in self._idle if self._pending[one]]
        now = self._clock()
        for one in wanted:
            if one not in self._received or one in self._idle:  # it was revoked, or is in `found`
                continue
            if may_be_idle and self._is_idle(one, now):
                self._resting.add(one)
            if self.is_ready(one):
                found.append(one)
        return found

    def _is_at_end(self, topic_partition: TopicPartition) -> bool:
        end = self._ends.get(topic_partition)
        return end is not None and self._positions[topic_partition] >= end

    def _is_idle(self, topic_partition: TopicPartition, now: float) -> bool:
        since = self._empty_since.setdefault(topic_partition, now)
        seconds = self._options.idle_seconds
        return seconds is not None and now - since >= seconds

    def _refresh(self, topic_partition: TopicPartition) -> None:
        """Move the position past batches that the consumer leaves out, as control batches at the end."""
        if topic_partition in self._received and not self._pending[topic_partition]:
            position = self._consumer.position(_kafka(topic_partition), timeout_ms=0)
            if position is not None and position > self._positions[topic_partition]:
                self._positions[topic_partition] = self._received[topic_partition] = position
                self._silent_seconds = 0.0

    def _ensure_heard(self, wanted: Sequence[TopicPartition], *, is_found: bool) -> None:
        if is_found or self._options.follows or not any(one in self._received for one in wanted):
            self._silent_seconds = 0.0
        elif self._silent_seconds > _PATIENCE_SECONDS:
            first = wanted[0]
            raise LiveReadError(
                f"{first}: nothing has arrived for {_PATIENCE_SECONDS:.0f} s after offset {self.offset(first)}, "
                f"expected records up to offset {self.end_offset(first)}"
            )

    # The consumer

    def _fetch_only(self, wanted: Iterable[TopicPartition]) -> None:
        """Resume the partitions with room, and pause all others."""
        if self._is_stopped:
            return
        flowing = {
            one for one in (*wanted, *self._idle) if one in self._received and not self._is_at_end(one)
        }
        if paused := self._flowing - flowing:
            self.pauses += sum(not self._is_at_end(one) for one in paused)
            self._consumer.pause(*map(_kafka, paused))
        if resumed := flowing - self._flowing:
            self._consumer.resume(*map(_kafka, resumed))
        self._flowing = flowing

    def _poll(self, seconds: float) -> None:
        self._handed.resize(0)  # all partitions have taken their batches
        try:
            polled = self._consumer.poll_runs(seconds * 1000)
        except CorruptFetchedBatchError as error:
            message = error.message
            self._skip(SourceDamage(error.topic_partition, error.offset, error.next_offset, message))
            return
        except kafka_errors.RetriableError:  # the consumer tries again
            return
        for one, from_offset, to_offset in self._consumer.take_offset_resets():
            if from_offset is not None and from_offset < to_offset:
                self.gone.append(OffsetsGone(TopicPartition(*one), from_offset, to_offset))
        handed = 0
        for one, runs in polled.items():
            topic_partition = TopicPartition(*one)
            for run in joined_runs(runs):
                self._receive(topic_partition, run)
            handed += sum(_size_of(run) for run in self._pending[topic_partition])
        self._handed.resize(handed)

    def _receive(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        """Queue the batches of a run before the end."""
        expected, end = self._received.get(topic_partition), self._ends.get(topic_partition)
        if expected is None:  # the partition was revoked
            return
        if end is not None and expected >= end:
            return
        self._silent_seconds = 0.0
        last_offsets = run.index["last_offset"]
        if last_offsets[0] < expected:  # the consumer has begun the log again
            message = f"the log was truncated before it, and continues with offset {first_offset(run)}"
            self._skip(SourceDamage(topic_partition, expected, None, message))
            return
        self._received[topic_partition] = int(last_offsets[-1]) + 1
        pending = self._pending[topic_partition]
        try:
            pending.extend([run] if end is None else runs_before(run, end))
        except KafkaFormatError as error:  # of a batch that contains the end
            offset = int(pending[-1].index["last_offset"][-1]) + 1 if pending else expected
            self.meet(SourceDamage(topic_partition, offset, end, str(error)))
        if end is not None and int(last_offsets[-1]) >= end and not pending:
            self._positions[topic_partition] = end

    def _skip(self, damage: SourceDamage) -> None:
        """Report damage, and continue after it. If its end is not known, the partition ends after what has arrived."""
        self.meet(damage)
        one, next_offset = damage.topic_partition, damage.next_offset
        if next_offset is None:
            next_offset = self._ends[one] = self._received.get(one, self._positions[one])
        else:
            self._consumer.seek(_kafka(one), next_offset)
            self._received[one] = next_offset
        if not self._pending[one]:
            self._positions[one] = next_offset

    def _keep_from(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Keep copies of the received batches from `offset` on. Returns False if these or the memory are not there."""
        last = self._last.get(topic_partition)
        if last is None or topic_partition not in self._received or first_offset(last) > offset:
            return False
        first = int(last.index["last_offset"].searchsorted(offset))
        runs = [slice_run(last, first, len(last)), *self._pending[topic_partition]]
        kept = self._kept_budget.try_reserve(sum(map(_size_of, runs)))
        if kept is None:
            return False
        if (earlier := self._kept.pop(topic_partition, None)) is not None:
            earlier.release()
        self._kept[topic_partition] = kept
        self._pending[topic_partition] = deque(_copy_of(run) for run in runs if len(run))
        return True

    def _start_of(self, topic_partition: TopicPartition) -> int:
        start, _ = self._bounds_of(topic_partition)
        return max(self._options.starts.get(topic_partition, start), start)

    def _bounds_of(self, topic_partition: TopicPartition) -> tuple[int, int]:
        """Return the bounds of a partition; those of one that was added since the start are requested."""
        found = self._bounds.get(topic_partition)
        if found is None:
            asked = _kafka(topic_partition)
            start = int(self._consumer.beginning_offsets([asked])[asked])
            found = self._bounds[topic_partition] = (start, int(self._consumer.end_offsets([asked])[asked]))
            if not self._options.follows:
                self._ends[topic_partition] = found[1]
        return found

    def _forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that were revoked."""
        for one in topic_partitions:
            self.rest(one)
            self._positions.pop(one, None)
            self._flowing.discard(one)


def _kafka(topic_partition: TopicPartition) -> KafkaTopicPartition:
    return KafkaTopicPartition(*topic_partition)


def _size_of(run: BatchRun) -> int:
    return int(run.index["size"].sum())


def _copy_of(run: BatchRun) -> BatchRun:
    start = int(run.index["position"][0])
    data = memoryview(run.buffer).cast("B")[start - run.origin : run.end_position - run.origin]
    return BatchRun(bytes(data), run.index, start)
