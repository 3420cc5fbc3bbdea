"""A cluster as a target that gets each record exactly once (`--exactly-once`).

One transaction of the target has the batches since the last commit, of all partitions, and the ranges of the offset map
for them. A reader of the map with `read_committed` therefore knows exactly the records that such a reader of the topics
sees. A mirror resumes there. `kafkafmt.mirror.claims` says how other mirrors are excluded before.

If anything goes wrong with a transaction, its producer is closed, and with it all batches since the last commit. The
next producer has another transactional id. All partitions begin again, where the map says they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import kafka.errors as kafka_errors
import structlog

from kafkafmt.client.transactions import REFUSALS
from kafkafmt.mirror.claims import Claim, ClaimedOffsetMapStore, claim_value, fence
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.group_name import derived_group
from kafkafmt.mirror.offset_map import OffsetMap
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import PartitionError, Source, SourceTopic
from kafkafmt.mirror.statistics import Moved, Statistics, Stopped, Way
from kafkafmt.mirror.targets.cluster import ClusterTarget, failure_message
from kafkafmt.mirror.targets.committed import committed_records
from kafkafmt.mirror.targets.sender import Sender, Sent
from kafkafmt.mirror.targets.target_topics import TargetTopics
from kafkafmt.records.runs import slice_run
from kafkafmt.records.trimming import base_offset_of

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.client.base_producer import BaseProducer
    from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

# How long a commit may take, and before it the batches that are in flight.
_COMMIT_SECONDS = 15.0
_INIT_SECONDS = 60.0
_ABORT_SECONDS = 5.0
_ID_CHARACTERS = 16


class TransactionalSender(Sender, Protocol):
    """Passes batches, or their records, to a transactional producer."""

    @property
    def producer(self) -> BaseProducer:
        """The producer."""

    def send_keyed(self, topic: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Send records of keys and values to partition 0 of a topic."""


class TransactionLostError(kafka_errors.RetriableError):  # type: ignore[misc]
    """The transaction was given up. All partitions begin again."""


class TransactionalTarget(ClusterTarget):
    """Sends batches in transactions, which it commits with their ranges of the offset map.

    store: of the offset map.
    open_sender: opens a sender whose producer has this transactional id.
    source: says which member of which group this mirror is.

    Raises MirrorError if the target has no transactions.
    """

    _sender: TransactionalSender

    def __init__(
        self,
        cluster: MirrorCluster,
        store: ClaimedOffsetMapStore,
        open_sender: Callable[[str], TransactionalSender],
        statistics: Statistics,
        options: MirrorOptions,
        source: Source,
    ) -> None:
        self._store, self._open_sender, self._source = store, open_sender, source
        self._at, self._names = cluster, options.names
        self._follows = options.is_following
        self._most_decompressed = options.memory.max_decompressed_bytes
        membership = source.membership()
        self._prefix = derived_group(source.name, cluster.id) if membership is None else membership.group
        self._ids: list[str] = []  # the transactional ids of this process; the last one is in use
        self._order: int | None = None  # of its claims
        self._is_open = self._is_lost = self._has_loss = self._is_idle = False
        self._uncommitted: dict[TopicPartition, int] = {}  # the first offset of each in the open transaction
        self._counted: list[tuple[TopicPartition, Moved, Way, int]] = []  # of the open transaction
        self._marked: set[TopicPartition] = (
            set()
        )  # whose log ends with a marker, once the transaction is over
        self._finished: set[TopicPartition] = set()
        self._refused: dict[TopicPartition, Stopped] = {}
        self._given_up: set[TopicPartition] = set()
        store.write = self._write
        store.create()
        topics = TargetTopics(cluster, options.names)
        offsets = OffsetMap(store, options.names, options.exact_offsets)
        super().__init__(topics, offsets, self._open(), statistics, options)

    def _open(self) -> TransactionalSender:
        transactional_id = f"{self._prefix}-{uuid4().hex[:_ID_CHARACTERS]}"
        sender = self._open_sender(transactional_id)
        try:
            sender.producer.init_transactions(_INIT_SECONDS)
        except BaseException as error:
            sender.close(0)
            if isinstance(error, kafka_errors.TransactionalIdAuthorizationFailedError):
                raise MirrorError(
                    f"--exactly-once needs transactions at the target, and the right to write with transactional ids "
                    f"that begin with {self._prefix}: {error}"
                ) from None
            raise
        self._ids.append(transactional_id)
        return sender

    # Partitions begin

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool = False) -> None:
        if self._has_loss:
            raise TransactionLostError("the transaction was given up")
        if self._is_lost:
            self._offsets.forget_all()  # they may have changes of the transaction
            self._sender = self._open()
            self._is_lost = False
        super().prepare(topics, again=again)

    def acquire(self, topic_partitions: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        """Claim partitions, and fence the mirrors that have claimed them before (see `kafkafmt.mirror.claims`)."""
        if not topic_partitions:
            return topic_partitions
        self.make_durable()
        own_id = self._ids[-1]
        keys = [self._key(one) for one in topic_partitions]
        self._store.claim(keys, own_id, claim_value(self._source.membership(), self._order))
        try:
            self._commit()
        except TransactionLostError as error:
            if isinstance(error.__cause__, kafka_errors.TopicAuthorizationFailedError):
                raise MirrorError(f"the offset map cannot be written: {error}") from None
            raise
        self._store.read_claims()
        mine: list[TopicPartition] = []
        rivals: list[tuple[TopicPartition, str]] = []
        for one in topic_partitions:
            claims = self._store.claims(self._key(one))
            if (own := claims.get(own_id)) is None:
                raise self._lose("another mirror has fenced this one")
            self._order = own.order if self._order is None else min(self._order, own.order)
            if (newer := self._newer_than(own, claims.values())) is None:
                mine.append(one)
                rivals += [(one, other) for other in claims if other != own_id]
            else:
                self._give_up(one, newer)
        for rival in sorted({rival for _, rival in rivals}):
            fence(self._at, rival)
        for one, rival in rivals:
            self._store.drop_claim(self._key(one), rival)
        self._store.read()
        self._offsets.forget(mine)
        self._given_up.difference_update(mine)
        return mine

    def _key(self, topic_partition: TopicPartition) -> TopicPartition:
        """Return the name of a partition in the map, in which topics with two names at the target are two."""
        return topic_partition._replace(topic=self._names.map_key(topic_partition.topic))

    def _newer_than(self, own: Claim, claims: Iterable[Claim]) -> Claim | None:
        """Return a claim of another process to which this mirror must leave the partition; None without one."""
        others = (one for one in claims if one.transactional_id not in self._ids)
        return next((one for one in others if not own.is_newer(one, self._source.has_member)), None)

    def _give_up(self, topic_partition: TopicPartition, newer: Claim) -> None:
        """Leave a partition to a mirror with a newer claim. Raises MirrorError for a source without groups."""
        if newer.membership is None:
            raise MirrorError(
                f"another mirror or restore of this source was started after this one, and has taken over "
                f"{topic_partition}: its transactional id is {newer.transactional_id}"
            )
        self._store.drop_claim(self._key(topic_partition), self._ids[-1])
        if topic_partition not in self._given_up:
            self._given_up.add(topic_partition)
            _log.warning(
                "another mirror of the group sends a partition, which is tried again while it is assigned here",
                partition=str(topic_partition),
                transactional_id=newer.transactional_id,
                generation=newer.membership.generation,
            )

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        super().begin(topic_partition, position)
        self._marked.discard(topic_partition)

    def _records_after(self, topic_partition: TopicPartition, first: int, end: int) -> int:
        """Count the records that are committed: offsets of markers and of aborted records are no records."""
        at_target = self._cluster.at_target(topic_partition)
        return committed_records(self._at, at_target, first) if end > first else 0

    # Batches

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        if self._is_lost:  # the run is read again
            return
        self._is_idle = False
        refused = self._refused.get(topic_partition)
        if refused is not None:
            number = int(run.index["last_offset"].searchsorted(refused.offset))
            if number < len(run):
                if number:
                    self._send(topic_partition, slice_run(run, 0, number))
                del self._refused[topic_partition]
                raise PartitionError(refused.message, refused.offset)
        self._send(topic_partition, run)

    def _send(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        under_way = self._partitions[topic_partition].under_way
        before = len(under_way)
        try:
            self._begin()
            super().take(topic_partition, run)
        except TransactionLostError:
            return
        except PartitionError as error:
            cause = error.__context__
            if not isinstance(cause, kafka_errors.KafkaError):
                raise
            # A part of the run may be in the transaction, and is not in the map.
            is_begun = len(under_way) > before
            offset = (
                under_way[-1].next_offset if is_begun else base_offset_of(run, 0, self._most_decompressed)
            )
            if isinstance(cause, REFUSALS):
                stopped = Stopped(topic_partition, max(offset, error.offset or 0), str(error))
                self._refused[topic_partition] = stopped
            self._lose(str(error))
        finally:
            if len(under_way) > before:
                self._uncommitted.setdefault(topic_partition, under_way[before].first_offset)
                self._marked.add(topic_partition)

    def advance(self) -> Iterator[Stopped]:
        if self._is_lost:
            return
        yield from super().advance()
        # A mirror that ends at the end of the source does not wait for the commit interval there.
        if self._is_idle and self._is_open and not self._follows and not self._has_under_way():
            with suppress(kafka_errors.RetriableError):
                self.make_durable()
        self._is_idle = True

    def pending(self, topic_partition: TopicPartition) -> int | None:
        return self._uncommitted.get(topic_partition)

    def _count(self, topic_partition: TopicPartition, sent: Sent) -> None:
        self._counted.append((topic_partition, sent.moved, sent.way, sent.max_timestamp))

    def _fail(self, topic_partition: TopicPartition, sent: Sent, error: Exception) -> Iterator[Stopped]:
        """Give the transaction up. The partitions whose batches were refused are stopped before them next time."""
        for one, partition in self._partitions.items():
            under_way = partition.under_way
            refusal = next(filter(None, map(_refusal, under_way)), None)
            if under_way and refusal is None and self._names.target(one.topic) in _denied_topics(error):
                refusal = under_way[0].first_offset, error
            if refusal is not None:
                self._refused[one] = Stopped(one, refusal[0], failure_message(refusal[1]))
        self._lose(f"{type(error).__name__}: {error}")
        return iter(())

    def _save_lost(self) -> None:
        """Give the transaction up: the map without the lost records is in the next one."""
        self._lose("the target has lost records")

    # Transactions

    def finish(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._finished.update(topic_partitions)

    def make_durable(self) -> None:
        if self._is_lost:
            raise TransactionLostError("the transaction was given up")
        if self._is_open:
            self._sender.producer.flush(_COMMIT_SECONDS)
            for _ in super().advance():
                pass
            if self._is_lost:
                raise TransactionLostError("batches could not be sent")
            if self._has_under_way():
                raise kafka_errors.KafkaTimeoutError("batches are not acknowledged yet")
        for one in self._finished:
            self._close(one)
        self._offsets.save()
        self._store.save_dropped()
        self._commit()
        self._offsets.confirm()
        self._finished.clear()

    def _close(self, topic_partition: TopicPartition) -> None:
        """Let the map end after the marker of the transaction, and drop the claim: the next mirror fences nobody."""
        known = self._offsets.partition(topic_partition)
        if topic_partition in self._marked and self._sender.keeps_partitions:
            assert known.end is not None
            assert known.target_end is not None
            known.anchor(known.end, known.target_end + 1)
            self._marked.discard(topic_partition)
        known.close()
        self._store.drop_claim(self._key(topic_partition), self._ids[-1])

    def _begin(self) -> None:
        if self._is_open:
            return
        try:
            self._sender.producer.begin_transaction()
        except kafka_errors.KafkaError as error:
            raise self._lose(str(error)) from None
        self._is_open = True

    def _write(self, topic: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        self._begin()
        try:
            self._sender.send_keyed(topic, records)
        except kafka_errors.KafkaError as error:
            raise self._lose(str(error)) from None

    def _commit(self) -> None:
        if not self._is_open:
            return
        try:
            self._sender.producer.commit_transaction(_COMMIT_SECONDS)
        except kafka_errors.KafkaError as error:
            raise self._lose(f"{type(error).__name__}: {error}") from error
        self._is_open = False
        for counted in self._counted:
            self.statistics.count(*counted)
        self._counted.clear()
        self._uncommitted.clear()

    def _lose(self, reason: str) -> TransactionLostError:
        """Give the open transaction up, and the producer. Return the error to raise."""
        self._is_open, self._is_lost, self._has_loss = False, True, True
        for partition in self._partitions.values():
            partition.under_way.clear()
            partition.held_bytes = 0
        for state in (
            self._uncommitted,
            self._counted,
            self._marked,
            self._finished,
            self._topics,
        ):
            state.clear()
        self._configured.clear()  # the next sender knows no topic
        self._store.keep_claims()
        self._held_by_all = 0
        self._sender.close(0)
        _log.warning("a transaction was given up, and its batches are sent again", reason=reason)
        return TransactionLostError(reason)

    def take_lost(self, topic_partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        lost = super().take_lost(topic_partitions)
        if not self._has_loss:
            return lost
        self._has_loss = False
        return topic_partitions

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        forgotten = list(topic_partitions)
        if any(one in self._uncommitted for one in forgotten):
            self._lose("partitions were taken away before their batches were committed")
        super().forget(forgotten)
        self._finished.difference_update(forgotten)
        if self._is_lost:  # its claims must stay until it is fenced
            return
        for one in forgotten:  # those that never began are in no `finish`
            self._store.drop_claim(self._key(one), self._ids[-1])

    def close(self) -> None:
        if self._is_open:  # so that readers need not wait for the end of the transaction
            with suppress(kafka_errors.KafkaError):
                self._sender.producer.abort_transaction(_ABORT_SECONDS)
        super().close()


def _denied_topics(error: Exception) -> Collection[str]:
    """Return the topics that the mirror may not write, if that is why the transaction was aborted."""
    is_denied = isinstance(error, kafka_errors.TopicAuthorizationFailedError) and error.args
    return error.args[0] if is_denied and isinstance(error.args[0], set) else ()


def _refusal(sent: Sent) -> tuple[int, Exception] | None:
    """Return the source's offset of the first batch that a broker refused, and the error; None if there is none."""
    done = 0
    for future in sent.futures:
        failure = future.sent_failure()
        if failure is not None and isinstance(failure[1], REFUSALS):
            if sent.sources is None:
                return sent.first_offset, failure[1]
            number = int(sent.counts.cumsum().searchsorted(done + failure[0], "right"))
            return int(sent.sources[number]), failure[1]
        done += len(future)
    return None
