"""The requests of idempotence and transactions (KIP-98, KIP-360, KIP-447): their messages, and what responses mean.

A request reads the `TransactionState` when its message is built, and changes it when the response is handled. It
opens no connection: the sender sends the message, and passes the response on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import kafka.errors as kafka_errors
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from kafkafmt.client.transaction_state import NO_EPOCH, NO_PRODUCER_ID, Result, TransactionState

if TYPE_CHECKING:
    from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

    from kafkafmt.types import TopicPartition

GROUP, TRANSACTION = CoordinatorType.GROUP, CoordinatorType.TRANSACTION
# Later versions are for brokers, or belong to KIP-890, which adds partitions without a request.
_NEWEST_VERSION = 3
_NEWEST_INIT_VERSION = 4
# KIP-360
_BUMPING_VERSION = 3
# After the end of a transaction the next one waits only shortly until the broker has written all markers.
_MARKERS_BACKOFF_MS = 20

_LOST_COORDINATOR = (kafka_errors.CoordinatorNotAvailableError, kafka_errors.NotCoordinatorError)
_FENCED = (kafka_errors.InvalidProducerEpochError, kafka_errors.ProducerFencedError)


class TransactionRequest:
    """A request that is sent until a broker has answered it finally.

    priority: requests with a lower one are sent first.
    coordinator_type: the coordinator that it is sent to; None for any broker.
    retry_backoff_ms: how long the next request waits after an attempt that failed; None after any other.
    may_begin: whether the coordinator begins the transaction with it.
    is_in_doubt: whether the response to an attempt was lost.
    """

    priority: ClassVar[int]
    coordinator_type: CoordinatorType | None = TRANSACTION
    may_begin: ClassVar[bool] = False

    def __init__(self, transactions: TransactionState, result: Result | None = None) -> None:
        self.transactions = transactions
        self.result = result or Result()
        self.retry_backoff_ms: float | None = None
        self.is_in_doubt = False

    @property
    def coordinator_key(self) -> str:
        """The transactional id, or the group, that belongs to the coordinator."""
        return self.transactions.transactional_id or ""

    def message(self) -> Any:
        """Return the message of kafka-python."""
        raise NotImplementedError

    def handle(self, response: Any) -> None:
        """Change the state as the response says. The lock of the transactions is held."""
        raise NotImplementedError

    def handle_outcome(self, outcome: Any) -> None:
        """Handle a response, or the error of a request that was not answered. The lock is held."""
        self.retry_backoff_ms = None
        if not isinstance(outcome, Exception):
            self.handle(outcome)
        elif isinstance(outcome, kafka_errors.RetriableError | kafka_errors.UnknownBrokerIdError):
            self.is_in_doubt = True
            self.retry(loses_coordinator=True)
        elif isinstance(outcome, kafka_errors.UnsupportedVersionError):
            self.fatal(outcome)
        else:
            self.fatal(
                kafka_errors.KafkaError(
                    f"Could not execute transactional request for unknown reasons: {outcome}"
                )
            )

    def retry(self, backoff_ms: float | None = None, *, loses_coordinator: bool = False) -> None:
        """Send the request again. loses_coordinator: after its coordinator was looked up."""
        if loses_coordinator and self.coordinator_type is not None:
            self.transactions.forget_coordinator(self.coordinator_type)
        limit_ms = self.transactions.retry_backoff_ms
        self.retry_backoff_ms = limit_ms if backoff_ms is None else min(backoff_ms, limit_ms)
        self.transactions.enqueue(self)

    def fatal(self, error: Exception) -> None:
        """Fail, and make the producer useless."""
        self.transactions.transition_to_fatal_error(error)
        self.result.done(error)

    def abortable(self, error: Exception) -> None:
        """Fail, and make the transaction abort."""
        self.transactions.transition_to_abortable_error(error)
        self.result.done(error)

    def handle_error(self, error_type: type[Exception], name: str) -> None:
        """Handle an error that means the same in most responses. name: of the response, for a message."""
        if issubclass(error_type, kafka_errors.RetriableError):
            self.retry(loses_coordinator=issubclass(error_type, _LOST_COORDINATOR))
        elif error_type in _FENCED:
            self.fatal(kafka_errors.ProducerFencedError())
        elif error_type in (
            kafka_errors.TransactionalIdAuthorizationFailedError,
            kafka_errors.InvalidTxnStateError,
            kafka_errors.UnsupportedForMessageFormatError,
        ):
            self.fatal(error_type())
        elif error_type is kafka_errors.GroupAuthorizationFailedError:
            self.abortable(error_type(self.coordinator_key))
        elif error_type is kafka_errors.TransactionAbortableError:
            self.abortable(error_type())
        else:
            self.fatal(kafka_errors.KafkaError(f"Unexpected error in {name}: {error_type()}"))


class FindCoordinator(TransactionRequest):
    """Find the broker that coordinates the transactions of an id, or the offsets of a group.

    request: the request that waits for it. Both share a result: if the lookup fails, the request is not sent.
    """

    priority = 0
    coordinator_type = None

    def __init__(self, request: TransactionRequest) -> None:
        super().__init__(request.transactions, request.result)
        assert request.coordinator_type is not None
        self._type, self._key = request.coordinator_type, request.coordinator_key

    @property
    def coordinator_key(self) -> str:
        return self._key

    def message(self) -> FindCoordinatorRequest:
        return FindCoordinatorRequest(key=self._key, key_type=self._type.value, coordinator_keys=[self._key])

    def handle(self, response: Any) -> None:
        found = response.coordinators[0] if response.coordinators else response
        error_type = kafka_errors.for_code(found.error_code)
        if error_type is kafka_errors.NoError:
            self.transactions.set_coordinator(self._type, self._key, found)
        else:
            self.handle_error(error_type, "FindCoordinatorResponse")

    def abortable(self, error: Exception) -> None:
        if self._type is TRANSACTION:  # the coordinator would have to abort
            self.fatal(error)
        else:
            super().abortable(error)


class InitProducerId(TransactionRequest):
    """Get a producer id and epoch. is_bump: the next epoch of the id that the producer has (KIP-360).

    Brokers answer a request without a transactional id with another producer id.
    """

    priority = 1

    def __init__(
        self, transactions: TransactionState, *, is_bump: bool = False, result: Result | None = None
    ) -> None:
        super().__init__(transactions, result)
        self._is_bump = is_bump
        if transactions.transactional_id is None:
            self.coordinator_type = None

    def message(self) -> InitProducerIdRequest:
        transactions = self.transactions
        return InitProducerIdRequest(
            transactional_id=transactions.transactional_id,
            transaction_timeout_ms=transactions.transaction_timeout_ms,
            producer_id=transactions.producer_id if self._is_bump else NO_PRODUCER_ID,
            producer_epoch=transactions.epoch if self._is_bump else NO_EPOCH,
            min_version=_BUMPING_VERSION if self._is_bump else 0,
            max_version=_NEWEST_INIT_VERSION,
        )

    def handle(self, response: Any) -> None:
        error_type = kafka_errors.for_code(response.error_code)
        if error_type is kafka_errors.NoError:
            self.transactions.set_producer_id(response.producer_id, response.producer_epoch)
            self.result.done()
        else:
            self.handle_error(error_type, "InitProducerIdResponse")


class AddPartitions(TransactionRequest):
    """Add partitions to the transaction, before records are sent to them."""

    priority = 2
    may_begin = True

    def __init__(self, transactions: TransactionState, partitions: Iterable[TopicPartition]) -> None:
        super().__init__(transactions)
        self.partitions = frozenset(partitions)

    def message(self) -> AddPartitionsToTxnRequest:
        transactions, topic = self.transactions, AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        numbers: dict[str, list[int]] = defaultdict(list)
        for partition in self.partitions:
            numbers[partition.topic].append(partition.partition)
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactions.transactional_id,
            v3_and_below_producer_id=transactions.producer_id,
            v3_and_below_producer_epoch=transactions.epoch,
            v3_and_below_topics=[topic(name=name, partitions=found) for name, found in numbers.items()],
            max_version=_NEWEST_VERSION,
        )

    def handle(self, response: Any) -> None:
        errors = {
            (topic.name, partition.partition_index): kafka_errors.for_code(partition.partition_error_code)
            for topic in response.results_by_topic_v3_and_below
            for partition in topic.results_by_partition
        }
        failed = {one: error for one, error in errors.items() if error is not kafka_errors.NoError}
        for error_type in failed.values():
            if error_type is kafka_errors.ConcurrentTransactionsError:
                self.retry(_MARKERS_BACKOFF_MS if self.transactions.is_new_transaction else None)
                return
            if issubclass(error_type, kafka_errors.RetriableError) or error_type in _FENCED:
                self.handle_error(error_type, "AddPartitionsToTxnResponse")
                return
            if error_type in (
                kafka_errors.TransactionalIdAuthorizationFailedError,
                kafka_errors.InvalidProducerIdMappingError,
                kafka_errors.InvalidTxnStateError,
            ):
                self.fatal(error_type())
                return
        self.transactions.partitions_answered(self.partitions, is_added=not failed)
        unauthorized = {
            one[0] for one, error in failed.items() if error is kafka_errors.TopicAuthorizationFailedError
        }
        if unauthorized:
            self.abortable(kafka_errors.TopicAuthorizationFailedError(unauthorized))
        elif failed:
            self.abortable(
                kafka_errors.KafkaError(f"Could not add partitions to transaction due to errors: {errors}")
            )
        else:
            self.result.done()


class AddOffsets(TransactionRequest):
    """Add a group's offsets to the transaction. They are committed with it by the next request."""

    priority = 2
    may_begin = True

    def __init__(
        self,
        transactions: TransactionState,
        group: ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        super().__init__(transactions)
        self._group, self._offsets = group, offsets

    def message(self) -> AddOffsetsToTxnRequest:
        transactions = self.transactions
        return AddOffsetsToTxnRequest(
            transactional_id=transactions.transactional_id,
            producer_id=transactions.producer_id,
            producer_epoch=transactions.epoch,
            group_id=self._group.group_id,
            max_version=_NEWEST_VERSION,
        )

    def handle(self, response: Any) -> None:
        error_type = kafka_errors.for_code(response.error_code)
        if error_type is kafka_errors.NoError:
            self.transactions.offsets_added()
            commit = CommitOffsets(self.transactions, self._group, self._offsets, self.result)
            self.transactions.enqueue(commit)
        elif error_type in (
            kafka_errors.UnknownProducerIdError,
            kafka_errors.InvalidProducerIdMappingError,
        ):
            if self.transactions.can_bump_epoch:
                self.abortable(error_type())
            else:
                self.fatal(error_type())
        elif error_type is kafka_errors.GroupAuthorizationFailedError:
            self.abortable(error_type(self._group.group_id))
        else:
            self.handle_error(error_type, "AddOffsetsToTxnResponse")


class CommitOffsets(TransactionRequest):
    """Commit a group's offsets within the transaction (KIP-447)."""

    priority = 2
    coordinator_type = GROUP

    def __init__(
        self,
        transactions: TransactionState,
        group: ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        result: Result,
    ) -> None:
        super().__init__(transactions, result)
        self._group, self._offsets = group, dict(offsets)

    @property
    def coordinator_key(self) -> str:
        return str(self._group.group_id)

    def message(self) -> TxnOffsetCommitRequest:
        transactions, group = self.transactions, self._group
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        partition = topic.TxnOffsetCommitRequestPartition
        commits: dict[str, list[Any]] = defaultdict(list)
        for one, offset in self._offsets.items():
            commits[one.topic].append(
                partition(
                    partition_index=one.partition,
                    committed_offset=offset.offset,
                    committed_leader_epoch=offset.leader_epoch,
                    committed_metadata=offset.metadata,
                )
            )
        return TxnOffsetCommitRequest(
            transactional_id=transactions.transactional_id,
            group_id=group.group_id,
            producer_id=transactions.producer_id,
            producer_epoch=transactions.epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            topics=[topic(name=name, partitions=found) for name, found in commits.items()],
            max_version=_NEWEST_VERSION,
        )

    def handle(self, response: Any) -> None:
        errors = {
            (topic.name, partition.partition_index): kafka_errors.for_code(partition.error_code)
            for topic in response.topics
            for partition in topic.partitions
        }
        retriable = {}
        for one, error_type in errors.items():
            if error_type is kafka_errors.NoError:
                continue
            if issubclass(error_type, kafka_errors.RetriableError):
                retriable[one] = error_type
            elif error_type in (kafka_errors.IllegalGenerationError, kafka_errors.UnknownMemberIdError):
                self.abortable(
                    kafka_errors.CommitFailedError(
                        "Transaction offset commit failed due to consumer group metadata mismatch: "
                        f"{error_type.__name__}"
                    )
                )
                return
            elif error_type is kafka_errors.FencedInstanceIdError:
                self.abortable(error_type())
                return
            else:
                self.handle_error(error_type, "TxnOffsetCommitResponse")
                return
        if not retriable:
            self.result.done()
            return
        self._offsets = {one: at for one, at in self._offsets.items() if tuple(one) in retriable}
        lost = (*_LOST_COORDINATOR, kafka_errors.RequestTimedOutError)
        self.retry(loses_coordinator=any(issubclass(error, lost) for error in retriable.values()))


class EndTransaction(TransactionRequest):
    """Commit or abort the transaction. It is sent once all records are acknowledged or have failed."""

    priority = 3

    def __init__(self, transactions: TransactionState, *, commits: bool) -> None:
        super().__init__(transactions)
        self._commits = commits

    def message(self) -> EndTxnRequest:
        transactions = self.transactions
        return EndTxnRequest(
            transactional_id=transactions.transactional_id,
            producer_id=transactions.producer_id,
            producer_epoch=transactions.epoch,
            committed=self._commits,
            max_version=_NEWEST_VERSION,
        )

    def handle(self, response: Any) -> None:
        error_type = kafka_errors.for_code(response.error_code)
        if error_type is kafka_errors.NoError:
            self.complete()
        else:
            self.handle_error(error_type, "EndTxnResponse")

    def complete(self) -> None:
        """End the transaction without a request. The lock is held."""
        if self.transactions.complete():
            self.transactions.enqueue(InitProducerId(self.transactions, is_bump=True, result=self.result))
        else:
            self.result.done()
