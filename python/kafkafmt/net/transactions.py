"""kafka-python's TransactionManager, as the accumulator's source of sequence numbers.

It differs where kafka-python gives up more than it must. What a broker refused was not appended: its sequence
numbers are free, and go to the next records of the partition, of which no others are in flight. What failed
otherwise may have arrived or not: an idempotent producer goes on under a new epoch (KIP-360), a transaction aborts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.producer.transaction_manager import TransactionManager, TransactionState, TxnRequestHandler

from kafkafmt.accumulator import ProducerState

if TYPE_CHECKING:
    from typing_extensions import Self

    from kafkafmt.net.sender_accumulator import SenderBatch
    from kafkafmt.types import TopicPartition

TOO_LARGE = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)

# What a broker says of a batch that it looked at and did not append.
REFUSALS = (
    *TOO_LARGE,
    kafka_errors.CorruptRecordError,
    kafka_errors.InvalidRecordError,
    kafka_errors.InvalidTimestampError,
    kafka_errors.InvalidTopicError,
    kafka_errors.PolicyViolationError,
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.UnsupportedCompressionTypeError,
    kafka_errors.UnsupportedForMessageFormatError,
)


class ProducerTransactions(TransactionManager):  # type: ignore[misc]
    """Transactions, idempotence, and the `Sequences` of a RecordAccumulator."""

    @classmethod
    def like(cls, manager: TransactionManager) -> Self:
        """One in the place of a manager that was not used yet."""
        return cls(
            transactional_id=manager.transactional_id,
            transaction_timeout_ms=manager.transaction_timeout_ms,
            retry_backoff_ms=manager.retry_backoff_ms,
            api_version=manager._api_version,
            metadata=manager._metadata,
        )

    # The accumulator asks

    def may_send(self, topic_partition: TopicPartition) -> bool:
        return self.producer_id_and_epoch.is_valid and bool(
            self.is_send_to_partition_allowed(topic_partition)
        )

    def assign(self, topic_partition: TopicPartition, count: int) -> ProducerState:
        current = self.producer_id_and_epoch
        sequence = self.sequence_number(topic_partition)
        self.increment_sequence_number(topic_partition, count)
        return ProducerState(current.producer_id, current.epoch, sequence, self.is_transactional())

    def is_current(self, state: ProducerState) -> bool:
        return bool(self.has_producer_id_and_epoch(state.producer_id, state.producer_epoch))

    def take_back(self, topic_partition: TopicPartition, state: ProducerState) -> None:
        # Under another producer id or epoch, or one that is about to come, its numbers mean nothing any more.
        if self.is_current(state) and not self.is_bumping_epoch():
            self.set_sequence_number(topic_partition, state.base_sequence)

    def fail(self, error: Exception) -> None:
        if self.is_transactional() and not self.has_fatal_error():
            self.transition_to_abortable_error(error)

    # The sender asks

    def classify_batch_error(
        self, error: Exception | type[Exception], batch: SenderBatch, log_start_offset: int = -1
    ) -> Any:
        """What becomes of the producer when a batch fails for good."""
        found = super().classify_batch_error(error, batch, log_start_offset)
        error_type = error if isinstance(error, type) else type(error)
        if self.is_transactional():
            # Kafka-python would commit a transaction without the records whose retries are over.
            return self.ERROR_CLASS_ABORTABLE if found == self.ERROR_CLASS_RETRIABLE else found
        if found == self.ERROR_CLASS_FATAL and error_type in self._FATAL_ERRORS:
            return found
        is_refused = issubclass(error_type, REFUSALS) and not batch.is_in_doubt
        if is_refused or not batch.has_sequence:
            return self.ERROR_CLASS_RETRIABLE  # it fails, and nothing else does
        if not self.producer_id_and_epoch.match(batch):
            return self.ERROR_CLASS_RETRIABLE
        if self._supports_epoch_bump():
            return self.ERROR_CLASS_NEEDS_EPOCH_BUMP
        return self.ERROR_CLASS_NEEDS_PRODUCER_ID_RESET

    def next_request_handler(self, has_incomplete_batches: bool) -> TxnRequestHandler | None:
        """What to ask next; asked again where the request or its answer is lost, in whatever way."""
        handler = super().next_request_handler(has_incomplete_batches)
        if handler is not None:
            handler.on_complete = partial(_complete, handler)
        return handler

    def put_back(self, handler: TxnRequestHandler) -> None:
        """Have a request that was not sent be the next one again."""
        with self._lock:
            self._enqueue_request(handler)

    def reset_producer_id(self) -> None:
        """Ask for another producer id: kafka-python forgets the old one, but would never ask."""
        with self._lock:
            super().reset_producer_id()
            self._current_state = TransactionState.UNINITIALIZED


def _complete(handler: TxnRequestHandler, correlation_id: int, response: Any) -> None:
    """Kafka-python asks again after a lost connection alone: after a timeout the producer would be of no more use."""
    if isinstance(response, kafka_errors.RetriableError):
        response = kafka_errors.KafkaConnectionError(str(response))
    type(handler).on_complete(handler, correlation_id, response)
