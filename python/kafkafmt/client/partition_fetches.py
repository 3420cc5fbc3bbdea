"""The caller's side of fetching: what to fetch by the positions of a consumer, and what to return of what has arrived.

`sync` compares the positions with what the engine fetches. A position that is not where the last returned batch ended
is a seek: the partition gets a new generation, and what was fetched for the earlier one is dropped. `take` returns
data only of partitions that are assigned and fetchable, and only at their positions.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

import kafka.errors as kafka_errors
from kafka.structs import OffsetAndMetadata

from kafkafmt.client.errors import CorruptFetchedBatchError
from kafkafmt.client.fetch_engine import OTHER_ID
from kafkafmt.client.fetch_targets import Target
from kafkafmt.errors import CorruptRecordError
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata
    from kafka.consumer.subscription_state import SubscriptionState, TopicPartitionState
    from kafka.structs import TopicPartition as KafkaTopicPartition

    from kafkafmt.client.fetch_engine import FetchEngine
    from kafkafmt.client.fetch_metrics import FetchMetrics
    from kafkafmt.client.fetch_queue import Fetched, FetchQueue
    from kafkafmt.client.offset_resets import OffsetResets

log = logging.getLogger(__name__)


class Part(Protocol):
    """The data of one partition in one response, opened: batches or records.

    next_fetch_offset, leader_epoch: of the position after what was taken. records_read: taken so far. False once all
    is taken.
    """

    next_fetch_offset: int
    leader_epoch: int
    records_read: int

    def __bool__(self) -> bool: ...
    @property
    def bytes_left(self) -> int: ...
    def drain(self) -> None: ...


class ConsumerState(NamedTuple):
    """What a consumer knows beside its fetches."""

    subscriptions: SubscriptionState
    cluster: ClusterMetadata
    resets: OffsetResets
    metrics: FetchMetrics


@dataclass(slots=True)
class _Followed:
    """A partition that is fetched.

    key: as it is assigned. next_offset: of the next data to return.
    """

    key: KafkaTopicPartition
    state: TopicPartitionState
    generation: int
    next_offset: int
    is_paused: bool


@dataclass(slots=True)
class _Waiting:
    """Data that has arrived.

    error: was raised while other data was returned, after the last record. The next call raises it. An error before a
    record is not kept: the next call may take the record in another way.
    """

    fetched: Fetched
    part: Any = None
    error: Exception | None = None

    @property
    def size_in_bytes(self) -> int:
        return self.part.bytes_left if self.part is not None else len(self.fetched.records)


class PartitionFetches:
    """What a consumer fetches and returns. Only the caller's thread calls it, but for `mark_changed`.

    open_part: opens the data of a partition.
    retry_s: how long a partition waits after an error that was raised, before it is fetched again.
    """

    def __init__(
        self,
        state: ConsumerState,
        engine: FetchEngine,
        queue: FetchQueue,
        open_part: Callable[[Fetched, FetchMetrics], Part],
        retry_s: float,
    ) -> None:
        self._subscriptions, self._cluster, self._resets, self._metrics = state
        self._engine = engine
        self._queue = queue
        self._open_part = open_part
        self._retry_s = retry_s
        self._followed: dict[KafkaTopicPartition, _Followed] = {}
        self._generation = 0
        self._waiting: deque[_Waiting] = deque()
        self._parked: dict[KafkaTopicPartition, deque[_Waiting]] = {}  # of paused partitions
        self._pinned: dict[str, UUID] = {}
        self.is_changed = True
        self.fetched_by_name: set[str] = set()
        self.unknown_topics: set[str] = set()
        # The positions before the last `take`.
        self.positions_before: dict[KafkaTopicPartition, OffsetAndMetadata] = {}

    def mark_changed(self) -> None:
        """Compare the positions soon, because partitions or positions have changed. Any thread may call this."""
        self.is_changed = True

    def sync(self) -> None:
        """Tell the engine what to fetch, by the assignment and the positions."""
        self.is_changed = False
        targets: dict[TopicPartition, Target] = {}
        wanted = set()
        for key in self._subscriptions.assigned_partitions():
            state = self._subscriptions.assignment.get(key)
            position = None if state is None else state.position
            if position is None or state.awaiting_validation or not (state.paused or state.is_fetchable()):
                continue
            wanted.add(key)
            followed = self._followed.get(key)
            if followed is None or followed.state is not state or followed.next_offset != position.offset:
                targets[key] = self._begin(key, state)
            elif followed.is_paused != state.paused:
                followed.is_paused = state.paused
                targets[key] = Target(
                    position.offset, position.leader_epoch, followed.generation, state.paused
                )
        self._unfollow([key for key in self._followed if key not in wanted])
        if targets:
            self._engine.fetch(targets)
            self._drop_stale()

    def _begin(self, key: KafkaTopicPartition, state: TopicPartitionState, delay_s: float = 0.0) -> Target:
        """Fetch a partition from its position on, as a new generation."""
        self._generation += 1
        position = state.position
        self._followed[key] = _Followed(key, state, self._generation, position.offset, state.paused)
        return Target(position.offset, position.leader_epoch, self._generation, state.paused, delay_s)

    def _unfollow(self, keys: list[KafkaTopicPartition]) -> None:
        """Fetch partitions no more, and drop what was fetched. `sync` begins those anew that are still wanted."""
        if keys:
            for key in keys:
                del self._followed[key]
            self._engine.forget(keys)
            self._drop_stale()
            self.is_changed = True

    def _restart(self, key: KafkaTopicPartition) -> None:
        """Fetch a partition from its position again, after the time for a retry."""
        state = self._subscriptions.assignment.get(key)
        if state is None or state.position is None:
            self.is_changed = True
            return
        self._engine.fetch({key: self._begin(key, state, self._retry_s)})
        self._drop_stale()

    def _drop_stale(self) -> None:
        """Drop what was fetched for earlier generations."""
        for key in [key for key in self._parked if key not in self._followed]:
            self._release(self._parked.pop(key))
        for key in list(self._parked):
            self._parked[key] = self._keep_current(self._parked[key])
        self._waiting = self._keep_current(self._waiting)

    def _keep_current(self, items: deque[_Waiting]) -> deque[_Waiting]:
        stale = [item for item in items if self._follow(item.fetched) is None]
        if not stale:
            return items
        self._release(stale)
        return deque(item for item in items if self._follow(item.fetched) is not None)

    def _follow(self, fetched: Fetched) -> _Followed | None:
        """Return the partition that data was fetched of, if that has still the same generation."""
        followed = self._followed.get(fetched.topic_partition)
        return followed if followed is not None and followed.generation == fetched.generation else None

    def _release(self, items: deque[_Waiting] | list[_Waiting]) -> None:
        for item in items:
            if item.part is not None:
                item.part.drain()
            fetched = item.fetched
            fetched.release()
            fetched.records = memoryview(b"")

    def pin(self, topic: str, topic_id: UUID | None) -> None:
        """Fetch a topic by this id alone, and drop what was fetched before."""
        if self._pinned.get(topic) == topic_id:
            return
        if topic_id is None:
            del self._pinned[topic]
        else:
            self._pinned[topic] = topic_id
        self._engine.pin(topic, topic_id)
        self._unfollow([key for key in self._followed if key.topic == topic])

    @property
    def fetched_bytes(self) -> int:
        """The bytes that were fetched and not returned yet. Any thread may ask; others may add some meanwhile."""
        parked = [item for items in list(self._parked.values()) for item in items.copy()]
        return self._queue.size_in_bytes + sum(
            item.size_in_bytes for item in [*self._waiting.copy(), *parked]
        )

    # Take

    def take(self, most: int, take: Callable[[Any, int], list[Any]]) -> dict[KafkaTopicPartition, list[Any]]:
        """Take up to `most` records, and move the positions after them.

        take: takes that many, or fewer, of an opened part.

        Raises the error of a partition if there is no data before it; else the next call raises it.
        """
        taken: dict[KafkaTopicPartition, list[Any]] = {}
        self.positions_before = {}
        while most > 0 and (ready := self._first()) is not None:
            item, followed = ready
            try:
                most -= self._take_of(item, followed, most, take, taken)
            except Exception as error:
                if not taken:
                    self._release([self._waiting.popleft()])
                    self._restart(followed.key)
                    raise
                if not item.part:
                    item.error = error
                break
            except BaseException:  # an interrupt: nothing is returned
                self._undo()
                raise
            if not item.part and self._waiting and self._waiting[0] is item:
                self._release([self._waiting.popleft()])
        return taken

    def _undo(self) -> None:
        """Fetch what was taken again."""
        for key, position in self.positions_before.items():
            state = self._subscriptions.assignment.get(key)
            if state is not None and state.position is not None:
                state.position = position
        self._unfollow(list(self._followed))

    def _first(self) -> tuple[_Waiting, _Followed] | None:
        """Return the first item of a partition that is not paused, if it is still wanted. Drop those that are not."""
        self._admit()
        while self._waiting:
            item = self._waiting[0]
            followed = self._follow(item.fetched)
            if followed is None:
                self._release([self._waiting.popleft()])
            elif self._is_wanted(item, followed):
                if not followed.state.paused:
                    return item, followed
                self._parked.setdefault(followed.key, deque()).append(self._waiting.popleft())
            else:
                self._unfollow([followed.key])
        return None

    def _is_wanted(self, item: _Waiting, followed: _Followed) -> bool:
        """Return whether a partition is still assigned, and the data that comes next is at its position."""
        state = followed.state
        offset = item.fetched.offset if item.part is None else item.part.next_fetch_offset
        return (
            self._subscriptions.assignment.get(followed.key) is state
            and (state.paused or state.is_fetchable())
            and state.position is not None
            and state.position.offset == followed.next_offset == offset
        )

    def _admit(self) -> None:
        """Take what has arrived, and what was parked of partitions that are not paused any more."""
        for key in list(self._parked):
            state = self._subscriptions.assignment.get(key)
            if state is None or not state.paused:
                self._waiting.extendleft(reversed(self._parked.pop(key)))
        while (fetched := self._queue.pop()) is not None:
            if self._follow(fetched) is None:
                fetched.release()
            else:
                self._waiting.append(_Waiting(fetched))

    def _take_of(
        self,
        item: _Waiting,
        followed: _Followed,
        most: int,
        take: Callable[[Any, int], list[Any]],
        taken: dict[KafkaTopicPartition, list[Any]],
    ) -> int:
        """Take records of the first item. Return their number."""
        if item.error is not None:
            raise item.error
        if item.part is None:
            item.part = self._open(item.fetched, followed)
            if item.part is None:
                return 0
        part, before = item.part, item.part.records_read
        found = take(part, most)
        state = followed.state
        if found:
            self.positions_before.setdefault(followed.key, state.position)
            taken.setdefault(followed.key, []).extend(found)
        followed.next_offset = part.next_fetch_offset
        state.position = OffsetAndMetadata(part.next_fetch_offset, "", part.leader_epoch)
        if state.highwater is not None:
            self._metrics.record_lag(state.highwater - part.next_fetch_offset)
        return int(part.records_read - before)

    def _open(self, fetched: Fetched, followed: _Followed) -> Part | None:
        """Open what was fetched, or handle its error as kafka-python does. Return None if there is no data."""
        key = followed.key
        if fetched.error_code:
            self._handle_error(fetched, key)
            return None
        if fetched.is_diverging:
            log.info(
                "the log of %s has changed before offset %d: validating the position", key, fetched.offset
            )
            self._validate(key)
            return None
        if fetched.high_watermark >= 0:
            followed.state.highwater = fetched.high_watermark
        if not len(fetched.records):
            return None
        if key.topic in self._pinned and not fetched.is_by_id:
            self.fetched_by_name.add(key.topic)
        self._engine.take(fetched.topic_partition, fetched.generation, len(fetched.records))
        return self._open_part(fetched, self._metrics)

    def _validate(self, key: KafkaTopicPartition) -> None:
        """Validate a position against the leader's log (KIP-320) before the partition is fetched again."""
        self._cluster.request_update()
        if self._subscriptions.request_position_validation(key):
            self._unfollow([key])  # the position may be the same afterwards
        else:  # the position has no epoch
            self._restart(key)

    def _handle_error(self, fetched: Fetched, key: KafkaTopicPartition) -> None:
        """Handle the error of a partition. Raises those that the caller must know."""
        error = kafka_errors.for_code(fetched.error_code)
        self._subscriptions.move_partition_to_end(key)
        if fetched.error_code in OTHER_ID:
            if key.topic in self._pinned:
                self.unknown_topics.add(key.topic)
        elif error in (kafka_errors.FencedLeaderEpochError, kafka_errors.UnknownLeaderEpochError):
            self._validate(key)
        elif error is kafka_errors.OffsetOutOfRangeError:
            if not self._subscriptions.has_default_offset_reset_policy():
                raise kafka_errors.OffsetOutOfRangeError({key: fetched.offset})
            log.info("offset %d is out of range for %s", fetched.offset, key)
            self._resets.begin(key, fetched.offset)
            self._subscriptions.request_offset_reset(key)
            self._unfollow([key])  # the new position may be the refused one
        elif error is kafka_errors.TopicAuthorizationFailedError:
            raise kafka_errors.TopicAuthorizationFailedError({key.topic})
        elif error is kafka_errors.CorruptRecordError:
            damage = CorruptRecordError("its broker found it damaged (CORRUPT_MESSAGE)")
            raise CorruptFetchedBatchError(damage, TopicPartition(*key), fetched.offset, None)
        elif issubclass(error, kafka_errors.RetriableError):
            self._cluster.request_update()
            self._restart(key)
        else:
            raise error("Unexpected error while fetching data")

    def release_parked(self) -> bool:
        """Drop the data of paused partitions, whose memory others wait for. It is fetched again after a resume.

        If there is none, ask the other users of the budget for bytes. Return whether data was dropped.
        """
        if not self._engine.is_waiting_for_memory:
            return False
        if not self._parked:
            self._engine.ask_for_memory()
            return False
        self._unfollow([key for key in self._parked if key in self._followed])
        return True

    def close(self) -> None:
        """Drop everything that was fetched."""
        self._unfollow(list(self._followed))
        self._queue.close()
