"""The state of an idempotent or transactional producer, which gives the accumulator its sequence numbers.

States and errors are those of KafkaProducer. It opens no connection: `next_request` returns what to send, and the
response goes to `handle_outcome` of the request.

A batch that a broker refused was not appended. Its sequence numbers go to the next records of the partition. A batch
that failed otherwise may have been appended: an idempotent producer then continues with a new producer id, and a
transaction aborts. After the abort the producer gets a new epoch (KIP-360). Brokers before 2.5 give it none: it cannot
continue, because its next sequence numbers are not known.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

from kafkafmt.client.accumulator import ProducerState
from kafkafmt.client.transaction_requests import (
    AddOffsets,
    AddPartitions,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    TransactionRequest,
)
from kafkafmt.client.transaction_state import (
    ERRORS,
    NO_EPOCH,
    NO_PRODUCER_ID,
    OpenTransaction,
    Result,
    State,
    TransactionState,
    failed_before,
)

if TYPE_CHECKING:
    from kafkafmt.client.accumulator import ProducerBatch
    from kafkafmt.types import TopicPartition

log = logging.getLogger(__name__)

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
_FATAL = (
    kafka_errors.ClusterAuthorizationFailedError,
    kafka_errors.TransactionalIdAuthorizationFailedError,
    kafka_errors.ProducerFencedError,
    kafka_errors.InvalidTxnStateError,
)


class Consequence(Enum):
    """What the final failure of a batch means for its producer."""

    NONE = "only the batch fails"
    ABORT = "the transaction aborts"
    NEW_PRODUCER_ID = "later records get a new producer id"
    FATAL = "nothing can be sent any more"


class Transactions(TransactionState):
    """The `Sequences` of a RecordAccumulator, and the transactions of a Producer.

    Any thread may call the methods that KafkaProducer has. The sender's thread calls the others.

    Its arguments are those of TransactionState.
    """

    # Called by the producer

    def initialize(self) -> Result:
        """Request a producer id for the transactional id, which ends its earlier transactions."""
        with self._lock:
            self._ensure_transactional()
            if self.is_completing:
                raise kafka_errors.KafkaError(f"Cannot call init_transactions in state {self._state.name}")
            self._transition_to(State.INITIALIZING)
            return self.enqueue(InitProducerId(self))

    def begin(self) -> None:
        """Begin a transaction."""
        with self._lock:
            self._ensure_transactional()
            self._ensure_no_error()
            self._transition_to(State.IN_TRANSACTION)

    def begin_commit(self) -> Result:
        """Commit the transaction once all its records are acknowledged."""
        with self._lock:
            self._ensure_transactional()
            self._ensure_no_error()
            self._transition_to(State.COMMITTING_TRANSACTION)
            return self.enqueue(EndTransaction(self, commits=True))

    def begin_abort(self) -> Result:
        """Abort the transaction once no record of it is in flight."""
        with self._lock:
            self._ensure_transactional()
            if self._state is not State.ABORTABLE_ERROR:
                self._ensure_no_error()
            error = self.last_error
            self._transition_to(State.ABORTING_TRANSACTION)
            self._new_partitions.clear()
            for _, _, request in self._requests:
                if isinstance(request, EndTransaction):  # a commit that an error has made impossible
                    request.result.done(error)
            return self.enqueue(EndTransaction(self, commits=False))

    def abort_open(self) -> bool:
        """Abort the transaction, because the producer closes. Return False if none is open, or it ends already."""
        with self._lock:
            is_open = self._state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR)
            if is_open:
                log.warning(
                    "transactional id %s: the producer closes and aborts its transaction",
                    self.transactional_id,
                )
                self.begin_abort()
            return is_open

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata | str
    ) -> Result:
        """Commit offsets of a group with the transaction. group: its metadata, or its id."""
        if isinstance(group, str):
            group = ConsumerGroupMetadata(group_id=group)
        elif not isinstance(group, ConsumerGroupMetadata):
            raise TypeError(
                f"send_offsets_to_transaction expects group_metadata to be a ConsumerGroupMetadata or a group_id str, "
                f"got {type(group)!r}"
            )
        if not all(isinstance(offset, OffsetAndMetadata) for offset in offsets.values()):
            raise TypeError(f"offsets: expected OffsetAndMetadata for each partition, found {offsets!r}")
        if group.generation_id > 0 and not group.member_id:
            raise ValueError(
                f"Invalid ConsumerGroupMetadata: generation_id={group.generation_id} implies a joined group but "
                "member_id is empty"
            )
        with self._lock:
            self._ensure_transactional()
            self._ensure_no_error()
            if self._state is not State.IN_TRANSACTION:
                raise kafka_errors.KafkaError(
                    "Cannot send offsets to transaction because the producer is not in an active transaction"
                )
            return self.enqueue(AddOffsets(self, group, offsets))

    def open_transaction(self) -> OpenTransaction:
        """Return the open transaction, to which the records of a `send` belong.

        Raises IllegalStateError without one, and KafkaError after an error.
        """
        transaction = self._transaction
        if transaction is not None and transaction.is_open:
            return transaction
        with self._lock:
            if self._state in ERRORS:
                assert self.last_error is not None
                raise failed_before(self.last_error)
            if self.producer_id == NO_PRODUCER_ID:
                raise kafka_errors.IllegalStateError(
                    "Cannot perform a 'send' before completing a call to init_transactions when transactions are "
                    "enabled."
                )
            if self._state is not State.IN_TRANSACTION:
                raise kafka_errors.IllegalStateError(f"Cannot call send in state {self._state.name}")
            assert self._transaction is not None
            return self._transaction

    def add_partition(self, topic_partition: TopicPartition, transaction: OpenTransaction) -> None:
        """Add a partition to a transaction, unless it has it. Raises the error of one that has ended."""
        if transaction.is_open and topic_partition in self._partitions:
            return
        with self._lock:
            transaction.ensure_open()
            if topic_partition not in self._partitions and topic_partition not in self._pending_partitions:
                self._new_partitions.add(topic_partition)

    def _ensure_transactional(self) -> None:
        if not self.is_transactional:
            raise kafka_errors.IllegalStateError(
                "Transactional method invoked on a non-transactional producer."
            )
        if self._closed_by is not None:
            raise kafka_errors.IllegalStateError("Transactional method invoked on a producer that is closed.")

    def _ensure_no_error(self) -> None:
        if self._state in ERRORS:
            raise kafka_errors.KafkaError(
                f"Cannot execute transactional method because we are in an error state: {self.last_error}"
            )

    def close(self, error: Exception) -> None:
        """Fail the requests that wait, and those that come later: the sender has ended."""
        with self._lock:
            self._closed_by = error
            requests, self._requests = self._requests, []
        for _, _, request in requests:
            request.result.done(error)

    # Requests

    def ensure_producer_id(self) -> None:
        """Request a producer id, if the producer is only idempotent and has none."""
        if self._state is State.UNINITIALIZED and not self.is_transactional:
            with self._lock:
                self._transition_to(State.INITIALIZING)
                self.enqueue(InitProducerId(self))

    def next_request(self, has_incomplete: Callable[[], bool]) -> TransactionRequest | None:
        """Take the request to send next.

        has_incomplete: returns whether batches wait or are in flight; called once the end of a transaction is next.

        After an abortable error requests fail, but for one that may have begun the transaction: its response tells
        whether the coordinator must end it.
        """
        if not self._requests and not self._new_partitions:
            return None
        with self._lock:
            if self._new_partitions:
                self.enqueue(AddPartitions(self, self._new_partitions))
                self._pending_partitions |= self._new_partitions
                self._new_partitions.clear()
            request = self._take_request(may_end=False)
            if request is not None or not self._requests:
                return request
        # Without the lock: a signal handler may wait for it, in a thread that has the lock of the batches.
        if has_incomplete():
            return None
        with self._lock:
            return self._take_request(may_end=True)

    def _take_request(self, *, may_end: bool) -> TransactionRequest | None:
        """Take the first request that is to be sent. may_end: also the end of a transaction. The lock is held."""
        while self._requests:
            request: TransactionRequest = self._requests[0][2]
            if isinstance(request, EndTransaction) and not may_end:
                return None
            heapq.heappop(self._requests)
            is_sent_anyway = self.has_abortable_error and (
                isinstance(request, FindCoordinator) or (request.may_begin and request.is_in_doubt)
            )
            if request.result.has_failed:
                continue
            if self._state in ERRORS and not is_sent_anyway:
                request.result.done(self.last_error)
            elif isinstance(request, EndTransaction) and not self._is_started:
                request.complete()
            else:
                return request
        return None

    def handle_outcome(self, request: TransactionRequest, outcome: Any) -> None:
        """Handle the response to a request, or an error."""
        with self._lock:
            request.handle_outcome(outcome)

    def coordinator_of(self, request: TransactionRequest) -> str | None:
        """Return the node that a request goes to; None if it is not known."""
        assert request.coordinator_type is not None
        return self._coordinators.get(request.coordinator_type)

    # Called by the accumulator

    def may_send(self, topic_partition: TopicPartition) -> bool:
        return (
            self.producer_id != NO_PRODUCER_ID
            and self._state is not State.FATAL_ERROR
            and (self.transactional_id is None or topic_partition in self._partitions)
            and self.numbers.may_send(topic_partition)
        )

    def assign(self, topic_partition: TopicPartition, count: int) -> ProducerState:
        base = self.numbers.assign(topic_partition, count)
        return ProducerState(self.producer_id, self.epoch, base, self.is_transactional)

    def is_current(self, state: ProducerState) -> bool:
        return state.producer_id == self.producer_id and state.producer_epoch == self.epoch

    def take_back(self, topic_partition: TopicPartition, state: ProducerState) -> None:
        # Under another producer id or epoch sequence numbers begin again.
        if self.is_current(state):
            self.numbers.set_next(topic_partition, state.base_sequence)

    def fail(self, error: Exception) -> None:
        if self.is_transactional:
            self.transition_to_abortable_error(error)

    # Batches

    def is_stale(self, batch: ProducerBatch) -> bool:
        """Return whether a batch has numbers under another producer id or epoch than the next records."""
        state = batch.producer_state
        return state is not None and not self.is_current(state)

    def can_retry(self, batch: ProducerBatch) -> bool:
        """Return whether a batch may be sent again with the numbers that it has.

        Numbers of an earlier epoch are valid for their partition, because no others are sent to it meanwhile. But a
        transaction does not outlive its epoch.
        """
        return not (self.is_transactional and self.is_stale(batch))

    def consequence_of(self, error: Exception, batch: ProducerBatch) -> Consequence:
        """Return what the final failure of a batch means for the producer."""
        if isinstance(error, _FATAL):
            return Consequence.FATAL
        may_have_used_numbers = self._may_have_used_numbers(error, batch)
        if not self.is_transactional:
            return Consequence.NEW_PRODUCER_ID if may_have_used_numbers else Consequence.NONE
        return Consequence.FATAL if may_have_used_numbers and not self.can_bump_epoch else Consequence.ABORT

    def _may_have_used_numbers(self, error: Exception, batch: ProducerBatch) -> bool:
        """Return whether a broker may have a batch that failed, under the current producer id and epoch."""
        known_as = batch.known_as
        return known_as is not None and self.is_current(known_as) and not _is_refused(error, batch)

    def batch_failed(self, error: Exception, batch: ProducerBatch) -> None:
        """Continue, or not, after the final failure of a batch."""
        with self._lock:
            consequence = self.consequence_of(error, batch)
            if consequence is Consequence.FATAL:
                self.transition_to_fatal_error(error)
            elif consequence is Consequence.ABORT:
                self._needs_new_epoch |= self._may_have_used_numbers(error, batch)
                self.transition_to_abortable_error(error)
            elif consequence is Consequence.NEW_PRODUCER_ID:
                self.reset_producer_id()

    def reset_producer_id(self) -> None:
        """Forget the producer id. `ensure_producer_id` requests another one."""
        with self._lock:
            if self._state is State.READY:
                log.warning(
                    "producer id %d is replaced: a batch that failed may have been appended", self.producer_id
                )
                self.producer_id, self.epoch = NO_PRODUCER_ID, NO_EPOCH
                self.numbers.reset()
                self._state = State.UNINITIALIZED


def _is_refused(error: Exception, batch: ProducerBatch) -> bool:
    """Return whether a broker has certainly not appended a batch that failed with this error."""
    return isinstance(error, REFUSALS) and batch.in_doubt is None
