"""kafka-python's TransactionManager, which gives the accumulator its sequence numbers.

It fails less than kafka-python's. A batch that a broker refused was not appended. Its sequence numbers go to the next
records of the partition, which has no other batch in flight. A batch that failed otherwise may have been appended: an
idempotent producer then continues with a new epoch (KIP-360), and a transaction aborts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import kafka.errors as kafka_errors
from kafka.producer.transaction_manager import TransactionManager, TransactionState, TxnRequestHandler

from kafkafmt.client.accumulator import ProducerState

if TYPE_CHECKING:
    from typing_extensions import Self

    from kafkafmt.types import TopicPartition

TOO_LARGE = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)

# The errors of a broker that has validated a batch and not appended it.
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


class SentBatch(Protocol):
    """The properties of a sent batch that transactions read. kafka-python's `match` compares id and epoch."""

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def has_sequence(self) -> bool: ...

    @property
    def is_in_doubt(self) -> bool: ...


class ProducerTransactions(TransactionManager):  # type: ignore[misc]
    """The state of transactions and idempotence; the `Sequences` of a RecordAccumulator."""

    @classmethod
    def replacing(cls, manager: TransactionManager) -> Self:
        """Create a ProducerTransactions in place of a manager that was not used yet."""
        return cls(
            transactional_id=manager.transactional_id,
            transaction_timeout_ms=manager.transaction_timeout_ms,
            retry_backoff_ms=manager.retry_backoff_ms,
            api_version=manager._api_version,
            metadata=manager._metadata,
        )

    # Called by the accumulator

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
        # Under another producer id or epoch, also one that was requested, sequence numbers begin again.
        if self.is_current(state) and not self.is_bumping_epoch():
            self.set_sequence_number(topic_partition, state.base_sequence)

    def fail(self, error: Exception) -> None:
        if self.is_transactional() and not self.has_fatal_error():
            self.transition_to_abortable_error(error)

    # Called by the sender

    def classify_batch_error(
        self, error: Exception | type[Exception], batch: SentBatch, log_start_offset: int = -1
    ) -> Any:
        """Return what the final failure of a batch means for the producer: one of the ERROR_CLASS constants."""
        found = super().classify_batch_error(error, batch, log_start_offset)
        error_type = error if isinstance(error, type) else type(error)
        if self.is_transactional():
            # kafka-python would commit a transaction without the records that failed after their retries.
            return self.ERROR_CLASS_ABORTABLE if found == self.ERROR_CLASS_RETRIABLE else found
        if found == self.ERROR_CLASS_FATAL and error_type in self._FATAL_ERRORS:
            return found
        is_refused = issubclass(error_type, REFUSALS) and not batch.is_in_doubt
        if is_refused or not batch.has_sequence:
            return self.ERROR_CLASS_RETRIABLE  # only this batch fails
        if not self.producer_id_and_epoch.match(batch):
            return self.ERROR_CLASS_RETRIABLE
        if self._supports_epoch_bump():
            return self.ERROR_CLASS_NEEDS_EPOCH_BUMP
        return self.ERROR_CLASS_NEEDS_PRODUCER_ID_RESET

    def next_request_handler(self, has_incomplete_batches: bool) -> TxnRequestHandler | None:
        """Return the next request, or None. It is sent again after any retriable error, such as a timeout."""
        handler = super().next_request_handler(has_incomplete_batches)
        if handler is not None:
            handler.on_complete = partial(_complete, handler)
        return handler

    def put_back(self, handler: TxnRequestHandler) -> None:
        """Make a request that was not sent the next one again."""
        with self._lock:
            self._enqueue_request(handler)

    def reset_producer_id(self) -> None:
        """Forget the producer id, and request another one, which kafka-python would not do."""
        with self._lock:
            super().reset_producer_id()
            self._current_state = TransactionState.UNINITIALIZED


def _complete(handler: TxnRequestHandler, correlation_id: int, response: Any) -> None:
    """Handle a response, and any retriable error as a lost connection.

    kafka-python retries after a lost connection only: after a timeout the producer could not send any more.
    """
    if isinstance(response, kafka_errors.RetriableError):
        response = kafka_errors.KafkaConnectionError(str(response))
    type(handler).on_complete(handler, correlation_id, response)
