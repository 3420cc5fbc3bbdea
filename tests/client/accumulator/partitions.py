"""What stands behind an accumulator in its tests: partitions that take batches as brokers do, and who sends them.

Time is a number that the tests hand in. Everything that a partition takes went through `kafkafmt.MemoryRecords`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import kafkafmt as kf
from kafkafmt.client.accumulator import AccumulatorOptions, ProducerBatch, ProducerState, RecordAccumulator

DAY = 1_700_000_000_000
TP = kf.TopicPartition("clicks", 0)
PRODUCER_ID = 2**40
EVERYTHING = 2**31


class TooLarge(Exception):
    """MESSAGE_TOO_LARGE: nothing was appended."""


class OutOfOrder(Exception):
    """OUT_OF_ORDER_SEQUENCE_NUMBER: records are missing before these."""


def accumulator_of(**options) -> RecordAccumulator:
    """Its own arguments and those of its options, mixed."""
    own = {"budget", "estimator", "max_message_bytes", "held_until_ms", "sequences", "wakeup"}
    arguments = {name: options.pop(name) for name in own & options.keys()}
    return RecordAccumulator(AccumulatorOptions(**options), **arguments)


def append(
    accumulator: RecordAccumulator, value: bytes | None = b"value", tp: kf.TopicPartition = TP, **more
):
    """Append a record; returns its future."""
    return accumulator.append(tp, DAY, None, value, **{"now_ms": 0, **more})[0]


def values_in(batch: ProducerBatch) -> list[bytes | None]:
    return [record.value for record in kf.MemoryRecords(bytes(batch.data)).records()]


class Leaders(dict[kf.TopicPartition, int]):
    """Node 0 leads every partition, but for those that are set."""

    def leader_for_partition(self, partition: kf.TopicPartition) -> int | None:
        return self.get(partition, 0)


class PartitionLog:
    """A partition: refuses what is too large, and from an idempotent producer gaps, and takes nothing twice.

    It looks at the size first, as brokers do, and knows a batch again by its first and last number alone.
    """

    def __init__(self, max_message_bytes: int = EVERYTHING) -> None:
        self.max_message_bytes = max_message_bytes
        self.records: list[kf.Record] = []
        self.batches: list[kf.RecordBatch] = []
        self._taken: dict[tuple[int, int], int] = {}  # base sequence, count: base offset
        self._epoch = -1
        self._next_sequence: int | None = None

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]

    def append(self, data: bytes) -> int:
        """Take a batch, or all of several or none; returns the base offset."""
        batches = list(kf.MemoryRecords(data).batches())
        for batch in batches:
            batch.ensure_valid()
            assert batch.base_offset == 0
        if max(batch.size_in_bytes for batch in batches) > self.max_message_bytes:
            raise TooLarge
        count = sum(batch.count for batch in batches)
        if batches[0].producer_id >= 0:
            self._check_numbers(batches, count)
            sequence = batches[0].base_sequence
            if (sequence, count) in self._taken and sequence != self._next_sequence:
                return self._taken[sequence, count]
            if self._next_sequence not in (None, sequence):
                raise OutOfOrder(f"expected {self._next_sequence}, found {sequence}")
            self._next_sequence = (sequence + count) % 2**31
            self._taken[sequence, count] = len(self.records)
        self.batches += batches
        for batch in batches:
            self.records.extend(batch)
        return len(self.records) - count

    def _check_numbers(self, batches: list[kf.RecordBatch], count: int) -> None:
        """Under one producer and epoch, one behind the other; a new epoch begins anew."""
        sequence = batches[0].base_sequence
        for batch in batches:
            assert (batch.producer_id, batch.producer_epoch) == (PRODUCER_ID, batches[0].producer_epoch)
            assert batch.base_sequence == sequence
            sequence = (sequence + batch.count) % 2**31
        epoch = batches[0].producer_epoch
        if epoch != self._epoch:
            assert epoch > self._epoch, "what has an old epoch goes before what has a new one"
            self._epoch, self._next_sequence = epoch, None
            self._taken.clear()


class Numbering:
    """The sequence numbers of one producer; keeps those partitions waiting that are in `held`."""

    def __init__(self, first: int = 0, *, is_transactional: bool = False) -> None:
        self.first = first
        self.is_transactional = is_transactional
        self.epoch = 3
        self.held: set[kf.TopicPartition] = set()
        self.next: dict[kf.TopicPartition, int] = {}
        self.failures: list[Exception] = []

    def may_send(self, topic_partition: kf.TopicPartition) -> bool:
        return topic_partition not in self.held

    def is_current(self, state: ProducerState) -> bool:
        return state.producer_epoch == self.epoch

    def assign(self, topic_partition: kf.TopicPartition, count: int) -> ProducerState:
        sequence = self.next.get(topic_partition, self.first)
        self.next[topic_partition] = (sequence + count) % 2**31
        return ProducerState(PRODUCER_ID, self.epoch, sequence, self.is_transactional)

    def take_back(self, topic_partition: kf.TopicPartition, state: ProducerState) -> None:
        if self.is_current(state):
            self.next[topic_partition] = state.base_sequence

    def bump_epoch(self) -> None:
        """Number all that follows anew, as after a batch that failed and may have arrived."""
        self.epoch += 1
        self.next.clear()

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


class Sender:
    """Sends what is ready to the partitions, one batch of each in flight, and tells the accumulator what came of it."""

    def __init__(self, accumulator: RecordAccumulator, max_message_bytes: int = EVERYTHING) -> None:
        self.accumulator = accumulator
        self.cluster = Leaders()
        self.logs: defaultdict[kf.TopicPartition, PartitionLog] = defaultdict(
            lambda: PartitionLog(max_message_bytes)
        )
        self.numbering = accumulator._sequences
        self.sent: list[ProducerBatch] = []
        self.refused: Counter[kf.TopicPartition] = Counter()

    def drain(self, now_ms: float = 0, max_size: int = EVERYTHING) -> list[ProducerBatch]:
        """Take what is ready, and mute its partitions."""
        nodes = self.accumulator.ready(self.cluster, now_ms).nodes
        drained = self.accumulator.drain(self.cluster, nodes, max_size, now_ms)
        batches = [batch for of_node in drained.values() for batch in of_node]
        self.accumulator.muted.update(batch.topic_partition for batch in batches)
        return batches

    def answer(self, batch: ProducerBatch, now_ms: float = 0) -> None:
        """Have a batch that was drained arrive at its partition, and act on the answer."""
        self.sent.append(batch)
        self.accumulator.muted.discard(batch.topic_partition)
        try:
            base_offset = self.logs[batch.topic_partition].append(bytes(batch.data))
        except TooLarge as error:
            self.refused[batch.topic_partition] += 1
            if batch.record_count > 1:
                self.accumulator.split_and_reenqueue(batch, now_ms)
            else:
                if self.numbering is not None and batch.in_doubt is None:
                    self.numbering.take_back(batch.topic_partition, batch.producer_state)
                self.fail(batch, error)
        except OutOfOrder as error:
            is_in_doubt = batch.in_doubt is not None
            self.fail(batch, self.accumulator.possibly_delivered(batch) if is_in_doubt else error)
        else:
            batch.complete(base_offset)
        self.accumulator.deallocate(batch)

    def fail(self, batch: ProducerBatch, error: Exception) -> None:
        """A batch failed for good; where a broker may know it, or did not expect it, a new epoch begins."""
        known_as = batch.known_as
        may_be_known = batch.in_doubt is not None or not isinstance(error, TooLarge)
        if may_be_known and known_as is not None and self.numbering.is_current(known_as):
            self.numbering.bump_epoch()
        batch.complete_exceptionally(error)

    def send(self, now_ms: float = 0) -> int:
        """Send until nothing is ready; returns how many batches went."""
        count = 0
        while batches := self.drain(now_ms):
            count += len(batches)
            for batch in batches:
                self.answer(batch, now_ms)
        return count

    def expire(self, now_ms: float) -> list[ProducerBatch]:
        expired = self.accumulator.expired_batches(now_ms)
        for batch in expired:
            batch.complete_exceptionally(TimeoutError("too old"))
            self.accumulator.deallocate(batch)
        return expired


def assert_nothing_left(accumulator: RecordAccumulator) -> None:
    """All memory is back, and no batch is anywhere."""
    assert accumulator.budget.available_bytes == accumulator.budget.total_bytes
    assert not accumulator.has_undrained
    assert not accumulator.has_incomplete
    assert not accumulator.undelivered()


def partitions(count: int, topic: str = "clicks") -> list[kf.TopicPartition]:
    return [kf.TopicPartition(topic, number) for number in range(count)]


def numbered(items: Iterable[int], size: int = 0) -> list[bytes]:
    """Values that tell one from another, of `size` bytes or more."""
    return [b"%d".ljust(size, b".") % item if size == 0 else b"%0*d" % (size, item) for item in items]
