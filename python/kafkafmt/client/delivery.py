"""The outcome of a batch that was sent: it is acknowledged, sent again, split, or has failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors

from kafkafmt.client.accumulator.raw_batches import RawBatches
from kafkafmt.client.clock import monotonic_ms
from kafkafmt.client.errors import RecordTooLargeError
from kafkafmt.client.sequence_numbers import take_numbers
from kafkafmt.client.transactions import REFUSALS, TOO_LARGE
from kafkafmt.records.batch import only_batch

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata

    from kafkafmt.client.accumulator import ProducerBatch, RecordAccumulator
    from kafkafmt.client.limits import TopicLimits
    from kafkafmt.client.metrics import SenderMetrics
    from kafkafmt.client.produce_requests import ProducedPartition
    from kafkafmt.client.transactions import Transactions

log = logging.getLogger(__name__)

_SUCCESSES = (0, kafka_errors.DuplicateSequenceNumberError.errno)


class Delivery:
    """Handles the answers for batches in the sender's thread. The batches are not in flight any more.

    retries: how often a batch is sent again at most.
    """

    def __init__(
        self,
        accumulator: RecordAccumulator,
        transactions: Transactions | None,
        limits: TopicLimits,
        cluster: ClusterMetadata,
        metrics: SenderMetrics,
        retries: float,
    ) -> None:
        self._accumulator = accumulator
        self._transactions = transactions
        self._limits = limits
        self._cluster = cluster
        self._metrics = metrics
        self._retries = retries

    def answered(self, batch: ProducerBatch, produced: ProducedPartition) -> None:
        """Handle the answer of a broker."""
        if produced.error_code in _SUCCESSES:
            self.acknowledged(batch, produced.base_offset, produced.log_append_time_ms)
        else:
            self.failed(batch, _error_of(batch, produced), produced)

    def acknowledged(self, batch: ProducerBatch, base_offset: int = -1, log_append_time_ms: int = -1) -> None:
        """Complete a batch that a broker has.

        For a duplicate batch a broker returns the batch's largest timestamp as time of the append, whatever the topic's
        timestamp type is. Then the time is not known.
        """
        transactions = self._transactions
        if transactions is not None:
            for earlier, offset in transactions.numbers.acknowledged(
                batch, base_offset, is_current=not transactions.is_stale(batch)
            ):
                log.debug("%s: %r was delivered before it was refused", batch.topic_partition, earlier)
                if earlier.complete(offset):
                    self._accumulator.deallocate(earlier)
            if unprovable := transactions.numbers.take_unprovable(batch.topic_partition):
                transactions.fail(self._accumulator.possibly_delivered(unprovable[0]))
                self._fail_in_doubt(unprovable)
        if batch.is_done:
            return
        if (
            log_append_time_ms != -1
            and batch.may_have_arrived
            and log_append_time_ms == only_batch(bytes(batch.data)).max_timestamp
        ):
            log_append_time_ms = -1
        if batch.complete(base_offset, log_append_time_ms):
            self._accumulator.deallocate(batch)

    def failed(
        self, batch: ProducerBatch, error: Exception, produced: ProducedPartition | None = None
    ) -> None:
        """Send a batch again, in parts if it is too large, or fail it. produced: the answer; None without one."""
        if not batch.is_done:
            self._handle(batch, error, produced)
        if isinstance(error, kafka_errors.InvalidMetadataError):
            if isinstance(error, kafka_errors.UnknownTopicOrPartitionError):
                log.warning(
                    "%s: not found; the topic may not exist, or may not be described", batch.topic_partition
                )
            self._cluster.request_update()
            if produced is not None and produced.leader_id >= 0:
                self._follow_leader(batch, produced)

    def _follow_leader(self, batch: ProducerBatch, produced: ProducedPartition) -> None:
        """Send the batch to the leader that the broker named, at once (KIP-951)."""
        if self._cluster.update_partition_leader(
            batch.topic_partition, produced.leader_id, produced.leader_epoch
        ):
            batch.last_attempt_ms = float("-inf")

    def _handle(self, batch: ProducerBatch, error: Exception, produced: ProducedPartition | None) -> None:
        now_ms = monotonic_ms()
        is_late = batch.has_reached_delivery_timeout(self._accumulator.options.delivery_timeout_ms, now_ms)
        if isinstance(error, TOO_LARGE) and batch.record_count > 1 and not is_late:
            log.warning("%s: %r is too large (%s), and is split", batch.topic_partition, batch, error)
            self._split(batch, now_ms)
            return
        if self._handle_sequence_error(batch, error, produced, now_ms):
            log.debug("%s: %r was refused by its sequence numbers: %s", batch.topic_partition, batch, error)
        elif not is_late and self._can_retry(batch, error):
            log.warning(
                "%s: %r failed, and is sent again (%s attempts left): %s",
                batch.topic_partition,
                batch,
                self._retries - batch.attempts - 1,
                error,
            )
            self._retry(batch, now_ms)
        else:
            self._fail(batch, error, produced)
            return
        self._metrics.retried(batch)

    def _can_retry(self, batch: ProducerBatch, error: Exception) -> bool:
        return (
            isinstance(error, kafka_errors.RetriableError)
            and batch.attempts < self._retries
            and (self._transactions is None or self._transactions.can_retry(batch))
        )

    def _retry(self, batch: ProducerBatch, now_ms: float) -> None:
        transactions = self._transactions
        self._accumulator.reenqueue(batch, now_ms)
        if transactions is None:
            return
        if (
            batch.producer_state is None
        ):  # its numbers were taken back in flight: no broker can have appended it
            self._number_again(transactions, batch)
        else:
            transactions.numbers.will_retry(batch)

    def _number_again(self, transactions: Transactions, batch: ProducerBatch) -> None:
        """Give a batch that was not appended the next numbers when it is sent again."""
        take_numbers(batch)
        transactions.numbers.forget(batch)

    def _handle_sequence_error(
        self, batch: ProducerBatch, error: Exception, produced: ProducedPartition | None, now_ms: float
    ) -> bool:
        """Send a batch again that its broker refused because of its numbers. Return False if it must fail."""
        transactions = self._transactions
        if transactions is None:
            return False
        if isinstance(error, kafka_errors.OutOfOrderSequenceNumberError):
            return self._handle_out_of_order(transactions, batch, now_ms)
        numbers = transactions.numbers
        if not isinstance(error, kafka_errors.UnknownProducerIdError) or transactions.is_stale(batch):
            return False
        # The broker has deleted all records of the producer by retention, and begins with 0 again (KAFKA-5793).
        last_acked_offset = numbers.last_acked_offset(batch.topic_partition)
        if produced is None or produced.log_start_offset <= last_acked_offset:
            return False
        numbers.take_back_after(batch)
        numbers.set_next(batch.topic_partition, 0)
        numbers.send_singly(batch.topic_partition)
        self._accumulator.reenqueue(batch, now_ms)
        self._number_again(transactions, batch)
        return True

    def _handle_out_of_order(self, transactions: Transactions, batch: ProducerBatch, now_ms: float) -> bool:
        """Send a batch again that was refused as out of sequence, or suspend it. Return False if it must fail."""
        numbers = transactions.numbers
        is_in_doubt = batch.may_have_arrived
        if batch.producer_state is None:
            self._accumulator.reenqueue(batch, now_ms)
            self._number_again(transactions, batch)
        elif numbers.is_behind_another(batch):
            self._accumulator.reenqueue(batch, now_ms)
            batch.may_have_arrived = is_in_doubt
            numbers.will_retry(batch)
        elif batch.in_doubt is batch and numbers.has_later(batch):
            numbers.suspend(batch, batch.created_ms + self._accumulator.options.delivery_timeout_ms)
        elif batch.in_doubt is None and transactions.is_stale(batch) and not transactions.is_transactional:
            self._accumulator.reenqueue(batch, now_ms)
            self._number_again(transactions, batch)
        else:
            return False
        return True

    def _split(self, batch: ProducerBatch, now_ms: float) -> None:
        transactions = self._transactions
        if transactions is not None:
            if batch.in_doubt is not None:
                transactions.numbers.send_singly(batch.topic_partition)
            elif batch.producer_state is not None:
                transactions.numbers.take_back_after(batch)
            transactions.numbers.forget(batch)
        self._limits.invalidate(batch.topic_partition.topic)
        self._accumulator.split_and_reenqueue(batch, now_ms)
        self._accumulator.deallocate(batch)

    # Final failures

    def _fail(self, batch: ProducerBatch, error: Exception, produced: ProducedPartition | None) -> None:
        transactions = self._transactions
        if transactions is not None:
            transactions.batch_failed(error, batch)
            transactions.numbers.forget(batch)
            if isinstance(error, REFUSALS) and batch.in_doubt is None and batch.producer_state is not None:
                transactions.numbers.take_back_after(batch)
                transactions.take_back(batch.topic_partition, batch.producer_state)
            self._fail_in_doubt(transactions.numbers.take_suspended(batch.topic_partition))
        if self._complete_exceptionally(batch, error, produced):
            self._accumulator.deallocate(batch)
        self._metrics.failed(batch)

    def _fail_in_doubt(self, batches: Iterable[ProducerBatch]) -> None:
        """Fail suspended batches: no answer can tell any more whether a broker has them."""
        for batch in batches:
            if batch.complete_exceptionally(self._accumulator.possibly_delivered(batch)):
                self._accumulator.deallocate(batch)

    def _complete_exceptionally(
        self, batch: ProducerBatch, error: Exception, produced: ProducedPartition | None
    ) -> bool:
        if isinstance(error, kafka_errors.OutOfOrderSequenceNumberError) and batch.in_doubt is not None:
            return batch.complete_exceptionally(self._accumulator.possibly_delivered(batch))
        if isinstance(error, TOO_LARGE) and batch.record_count == 1:
            return batch.complete_exceptionally(self._too_large(batch, error))
        error_of = _error_by_record(error, produced)
        if isinstance(batch, RawBatches):
            return batch.complete_exceptionally(_reason(error, map(error_of, range(batch.record_count))))
        return batch.complete_exceptionally(error, error_of)

    def _too_large(self, batch: ProducerBatch, error: Exception) -> RecordTooLargeError:
        limit = self._limits.max_message_bytes(batch.topic_partition.topic)
        known = "is not known here" if limit is None else f"was {limit}"
        return RecordTooLargeError(
            f"{batch.topic_partition}: a record that takes {batch.size_in_bytes} bytes in a batch of its own: "
            f"its broker refused it ({type(error).__name__}); max.message.bytes {known}"
        )


def _error_of(batch: ProducerBatch, produced: ProducedPartition) -> Exception:
    error_type = kafka_errors.for_code(produced.error_code)
    message = produced.error_message
    if error_type is kafka_errors.TopicAuthorizationFailedError:
        message = batch.topic_partition.topic
    elif error_type is kafka_errors.ClusterAuthorizationFailedError:
        message = "The producer is not authorized to do idempotent sends"
    error: Exception = error_type() if message is None else error_type(message)
    return error


def _error_by_record(error: Exception, produced: ProducedPartition | None) -> Callable[[int], Exception]:
    """Return the function that gives the error of each record (KIP-467)."""
    if produced is None or not produced.record_errors:
        return lambda _: error
    return _record_errors(error, produced.record_errors, produced.error_message)


def _record_errors(
    error: Exception, record_errors: Sequence[tuple[int, str | None]], error_message: str | None
) -> Callable[[int], Exception]:
    messages = dict(record_errors)
    error_type: type[Exception] = type(error) if len(record_errors) == 1 else kafka_errors.InvalidRecordError

    part_of_invalid: Exception = kafka_errors.KafkaError(
        "Failed to append record because it was part of a batch which had one more more invalid records"
    )

    def error_of(index: int) -> Exception:
        if index not in messages:
            return part_of_invalid
        return error_type(messages[index] or error_message or getattr(error, "description", str(error)))

    return error_of


def _reason(error: Exception, errors: Iterable[Exception]) -> Exception:
    """Return the first error that a broker gave for a single record (KIP-467), else the error of the batch."""
    return next((one for one in errors if type(one) is not kafka_errors.KafkaError), error)
