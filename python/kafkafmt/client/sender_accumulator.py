"""Adapt the accumulator and its batches to kafka-python's Sender. No other file knows what the Sender calls.

kafka-python's times are seconds of `time.monotonic`, the accumulator's are milliseconds of the same clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors
from kafka.producer.producer_batch import FinalState

from kafkafmt.client.accumulator import PartitionLeaders, ProducerBatch, RecordAccumulator, Undelivered
from kafkafmt.client.accumulator.raw_batches import RawBatches
from kafkafmt.client.clock import monotonic_ms
from kafkafmt.client.connections import connection_delay_ms
from kafkafmt.client.errors import (
    BufferExhaustedError,
    PossiblyDeliveredError,
    ProducerClosedError,
    RecordTooLargeError,
)
from kafkafmt.client.future import FutureRecordMetadata
from kafkafmt.client.transactions import REFUSALS, TOO_LARGE, ProducerTransactions
from kafkafmt.records.batch import only_batch

if TYPE_CHECKING:
    from kafka.metrics import Metrics
    from typing_extensions import Buffer

    from kafkafmt.client.connections import Connections
    from kafkafmt.client.limits import TopicLimits


class ProducerAccumulator(RecordAccumulator):
    """A RecordAccumulator whose futures and errors are those that users of kafka-python expect."""

    future_type = FutureRecordMetadata
    closed_error = ProducerClosedError
    buffer_exhausted_error = BufferExhaustedError
    record_too_large_error = RecordTooLargeError
    possibly_delivered_error = PossiblyDeliveredError


class SenderBatch:
    """A drained or expired batch for kafka-python's Sender, which also reads it as its `records`.

    data: the bytes of a drained batch. They are kept here because the Sender may expire a batch between draining and
    sending it, and still sends it.
    """

    # The Sender uses the time of draining for a metric only, which `SenderAccumulator.drain` records itself.
    drained = None

    def __init__(self, batch: ProducerBatch, accumulator: SenderAccumulator, data: Buffer = b"") -> None:
        self.batch = batch
        self.topic_partition = batch.topic_partition
        self.created = batch.created_ms / 1000
        self.record_count, self.max_record_size = batch.record_count, batch.max_record_size
        self.attempts = batch.attempts
        self._accumulator = accumulator
        self._data = data

    @property
    def records(self) -> SenderBatch:
        return self

    def buffer(self) -> Buffer:
        return self._data

    def size_in_bytes(self) -> int:
        return self.batch.size_in_bytes

    def compression_rate(self) -> float:
        return self.batch.compression_ratio

    @property
    def producer_id(self) -> int:
        state = self.batch.known_as
        return -1 if state is None else state.producer_id

    @property
    def producer_epoch(self) -> int:
        state = self.batch.known_as
        return -1 if state is None else state.producer_epoch

    @property
    def has_sequence(self) -> bool:
        return self.batch.known_as is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether an earlier attempt may have delivered the records."""
        return self.batch.in_doubt is not None

    @property
    def final_state(self) -> FinalState | None:
        outcome = self.batch.outcome
        if outcome is None:
            return None
        return FinalState.SUCCEEDED if outcome.error is None else FinalState.FAILED

    def in_retry(self) -> bool:
        """Return False always. For an expired batch in retry the Sender would drop the batches it has just drained.

        `ProducerTransactions.classify_batch_error` handles such batches.
        """
        return False

    def has_reached_delivery_timeout(self, delivery_timeout_ms: float) -> bool:
        return self.batch.has_reached_delivery_timeout(delivery_timeout_ms, monotonic_ms())

    def complete(self, base_offset: int, log_append_time: int) -> bool:
        """Complete the batch, which a broker has acknowledged. As `ProducerBatch.complete`.

        log_append_time: milliseconds, -1 for topics with CreateTime. For a duplicate batch a broker returns the
            batch's largest timestamp instead, whatever the topic's timestamp type is: then it is taken as -1.
        """
        may_be_known = log_append_time != -1 and self.batch.may_have_arrived
        if may_be_known and log_append_time == only_batch(bytes(self._data)).max_timestamp:
            log_append_time = -1
        return self.batch.complete(base_offset if self._accumulator.tells_offsets else -1, log_append_time)

    def complete_exceptionally(
        self, top_level_exception: Exception, record_exceptions_fn: Callable[[int], Exception]
    ) -> bool:
        return self._accumulator.fail(self.batch, top_level_exception, record_exceptions_fn)

    def __lt__(self, other: SenderBatch) -> bool:
        return self.batch.order < other.batch.order

    def __str__(self) -> str:
        return repr(self.batch)


class SenderAccumulator:
    """A ProducerAccumulator with the interface and units of kafka-python's accumulator.

    client: connects to the nodes that batches go to. Only connected nodes are ready.
    metrics: kafka-python's registry, or None if it keeps no metrics.
    tells_offsets: whether brokers return offsets; False with acks=0.
    undelivered: the number of records, by partition, that were given up when the sender ended.
    """

    def __init__(
        self,
        accumulator: ProducerAccumulator,
        *,
        client: Connections,
        transactions: ProducerTransactions | None,
        limits: TopicLimits,
        metrics: Metrics | None,
        tells_offsets: bool,
    ) -> None:
        self.accumulator = accumulator
        self.tells_offsets = tells_offsets
        self.muted = accumulator.muted
        self._client = client
        self._transactions = transactions
        self._limits = limits
        self._metrics = metrics
        self._in_flight_expiry_ms = float("inf")
        self._ends_transaction = False
        self.undelivered = Undelivered()

    # Waiting batches

    def ready(self, cluster: PartitionLeaders, now: float) -> tuple[set[int], float, bool]:
        """Return the nodes to send to, in how many seconds to check again, and whether leaders are unknown."""
        now_ms = now * 1000
        if (
            self._ends_transaction
            and self._transactions is not None
            and not self._transactions.is_completing()
        ):
            self._ends_transaction = False
            self.accumulator.end_flush()
        next_ask_ms = self._limits.ask(now_ms)
        check = self.accumulator.ready(cluster, now_ms)
        delays_ms = {node: connection_delay_ms(self._client, node) for node in check.nodes}
        nodes = {node for node, delay_ms in delays_ms.items() if delay_ms == 0}
        next_connect_ms = min(
            (delay_ms for delay_ms in delays_ms.values() if delay_ms > 0), default=float("inf")
        )
        next_check_ms = min(check.next_check_ms, next_ask_ms, next_connect_ms)
        return nodes, next_check_ms / 1000, check.unknown_leaders_exist

    def drain(
        self, cluster: PartitionLeaders, nodes: Collection[int], max_size: int, now: float
    ) -> dict[int, list[SenderBatch]]:
        drained = self.accumulator.drain(cluster, nodes, max_size, now * 1000)
        if self._metrics is not None:
            queue_time = self._metrics.get_sensor("queue-time")
            for batches in drained.values():
                for batch in batches:
                    queue_time.record(now * 1000 - batch.created_ms)
        wrapped = {
            node: [SenderBatch(batch, self, batch.data) for batch in batches]
            for node, batches in drained.items()
        }
        for sent in wrapped.values():
            for one in sent:
                self.maybe_update_next_batch_expiry_time(one)
        return wrapped

    def has_undrained(self) -> bool:
        return self.accumulator.has_undrained

    @property
    def has_incomplete(self) -> bool:
        return self.accumulator.has_incomplete

    # Expiry

    @property
    def delivery_timeout_ms(self) -> float:
        return self.accumulator.options.delivery_timeout_ms

    @property
    def next_expiry_time_ms(self) -> float:
        return min(self.accumulator.next_expiry_ms(), self._in_flight_expiry_ms)

    def reset_next_batch_expiry_time(self) -> None:
        """Do nothing: batches in flight are not looked through before the time of the next expiry."""

    def is_in_flight_expiry_due(self, now: float) -> bool:
        """Return whether a batch in flight may have expired. If so, forget the time of the next expiry.

        The Sender then looks through the batches and calls `maybe_update_next_batch_expiry_time`.
        """
        is_due = now * 1000 >= self._in_flight_expiry_ms
        if is_due:
            self._in_flight_expiry_ms = float("inf")
        return is_due

    def maybe_update_next_batch_expiry_time(self, batch: SenderBatch) -> None:
        expiry_ms = batch.batch.created_ms + self.delivery_timeout_ms
        self._in_flight_expiry_ms = min(self._in_flight_expiry_ms, expiry_ms)

    def expired_batches(self, now: float) -> list[SenderBatch]:
        return [SenderBatch(batch, self) for batch in self.accumulator.expired_batches(now * 1000)]

    # Completed and failed batches

    def deallocate(self, batch: SenderBatch) -> None:
        self.accumulator.deallocate(batch.batch)

    def reenqueue(self, batch: SenderBatch) -> None:
        self.accumulator.reenqueue(batch.batch, monotonic_ms())

    def split_and_reenqueue(self, batch: SenderBatch) -> int:
        self._limits.invalidate(batch.topic_partition.topic)
        return self.accumulator.split_and_reenqueue(batch.batch, monotonic_ms())

    def fail(self, batch: ProducerBatch, error: Exception, error_of: Callable[[int], Exception]) -> bool:
        """Complete a batch that failed finally. If its broker refused it, the next records get its sequence numbers.

        error_of: returns the error of the record with that index in the batch.

        Returns False, and changes nothing, if the batch was done before: later numbers may be assigned by then.
        """
        if batch.is_done:
            return False
        is_in_doubt = batch.in_doubt is not None
        if (
            isinstance(error, REFUSALS)
            and not is_in_doubt
            and self._transactions is not None
            and batch.producer_state is not None
        ):
            self._transactions.take_back(batch.topic_partition, batch.producer_state)
        if is_in_doubt and isinstance(error, kafka_errors.OutOfOrderSequenceNumberError):
            return batch.complete_exceptionally(self.accumulator.possibly_delivered(batch))
        if isinstance(error, TOO_LARGE) and batch.record_count == 1:
            return batch.complete_exceptionally(self._too_large(batch, error))
        if isinstance(batch, RawBatches):
            return batch.complete_exceptionally(_reason(error, map(error_of, range(batch.record_count))))
        return batch.complete_exceptionally(error, error_of)

    def _too_large(self, batch: ProducerBatch, error: Exception) -> RecordTooLargeError:
        topic = batch.topic_partition.topic
        limit = self._limits.max_message_bytes(topic)
        known = "is not known here" if limit is None else f"was {limit}"
        return RecordTooLargeError(
            f"{batch.topic_partition}: a record that takes {batch.size_in_bytes} bytes in a batch of its own: "
            f"its broker refused it ({type(error).__name__}); max.message.bytes {known}"
        )

    # Flush and close

    def flush_in_progress(self) -> bool:
        return self.accumulator.flush_in_progress

    def begin_flush(self) -> None:
        """Send all batches without lingering, for a transaction that ends, until nothing is left."""
        self._ends_transaction = True
        self.accumulator.begin_flush()

    def close(self) -> None:
        self.accumulator.close()

    def abort_incomplete_batches(self) -> None:
        error = kafka_errors.IllegalStateError("Producer is closed forcefully.")
        self.undelivered.update(self.accumulator.abort(error))

    def abort_batches(self, error: Exception) -> None:
        self.accumulator.abort(error)

    def abort_undrained_batches(self, error: Exception) -> None:
        self.accumulator.abort(error, undrained_only=True)


def _reason(error: Exception, errors: Iterable[Exception]) -> Exception:
    """Return the first error that a broker gave for a single record (KIP-467), else the error of the batch."""
    return next((one for one in errors if type(one) is not kafka_errors.KafkaError), error)
