"""The state of idempotence and transactions, which requests read and change (KIP-98)."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Collection, Mapping
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import kafka.errors as kafka_errors
from kafka.protocol.metadata import CoordinatorType

from kafkafmt.client.sequence_numbers import SequenceNumbers

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata

    from kafkafmt.client.in_flight import InFlightBatches
    from kafkafmt.types import TopicPartition

log = logging.getLogger(__name__)

NO_PRODUCER_ID = NO_EPOCH = -1
# Brokers from this version on give a transactional producer the next epoch (KIP-360).
_BUMPS_EPOCHS = (2, 5)


class State(Enum):
    """The state of a producer, named as KafkaProducer names it in errors."""

    UNINITIALIZED = 0
    INITIALIZING = 1
    READY = 2
    IN_TRANSACTION = 3
    COMMITTING_TRANSACTION = 4
    ABORTING_TRANSACTION = 5
    ABORTABLE_ERROR = 6
    FATAL_ERROR = 7


COMPLETING = (State.COMMITTING_TRANSACTION, State.ABORTING_TRANSACTION)
ERRORS = (State.ABORTABLE_ERROR, State.FATAL_ERROR)
_SENDING = (State.READY, State.IN_TRANSACTION)
# The states before each state.
_BEFORE: Mapping[State, Collection[State]] = {
    State.UNINITIALIZED: (),
    State.INITIALIZING: (State.UNINITIALIZED, *COMPLETING),
    State.READY: (State.INITIALIZING, *COMPLETING),
    State.IN_TRANSACTION: (State.READY,),
    State.COMMITTING_TRANSACTION: (State.IN_TRANSACTION,),
    State.ABORTING_TRANSACTION: (State.IN_TRANSACTION, State.ABORTABLE_ERROR),
    State.ABORTABLE_ERROR: (State.IN_TRANSACTION, State.COMMITTING_TRANSACTION, State.ABORTABLE_ERROR),
    State.FATAL_ERROR: tuple(State),
}


class OpenTransaction:
    """One transaction, to which a thread sends records while another one may end it.

    is_open: whether it takes records. Once it does not, it never does again.
    """

    __slots__ = ("_error", "is_open")

    def __init__(self) -> None:
        self.is_open = True
        self._error: Exception | None = None

    def end(self, error: Exception | None) -> None:
        """Take no more records. error: why the transaction cannot be committed; None if it can."""
        if self.is_open:
            self._error = error
            self.is_open = False

    def ensure_open(self) -> None:
        """Raise an error if it takes no more records: KafkaError after a failure, else IllegalStateError."""
        if self.is_open:
            return
        if self._error is not None:
            raise failed_before(self._error)
        raise kafka_errors.IllegalStateError(
            "Cannot perform a 'send': the transaction in which it was called has ended. What was not "
            "appended is not sent."
        )


def failed_before(error: Exception) -> Exception:
    """Return the error of a `send` after an error of the producer."""
    failed: Exception = kafka_errors.KafkaError(
        "Cannot perform send because at least one previous transactional or idempotent request has failed with errors.",
        error,
    )
    return failed


class Result:
    """The outcome of a request, for the thread that waits for it."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self.error: Exception | None = None

    def done(self, error: Exception | None = None) -> None:
        """Set the outcome, unless it was set before."""
        if not self._done.is_set():
            self.error = error
            self._done.set()

    @property
    def has_failed(self) -> bool:
        """Whether the request has failed."""
        return self.error is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds. Return whether the request is done. Raises its error."""
        is_done = self._done.wait(timeout)
        if self.error is not None:
            raise self.error
        return is_done


class Request(Protocol):
    """A request in the queue. Those with a lower priority are sent first."""

    @property
    def priority(self) -> int: ...

    @property
    def result(self) -> Result: ...


class TransactionState:
    """The state of a producer, and the requests that wait.

    transactional_id: None for a producer that is only idempotent.
    broker_version: of the bootstrap broker.
    cluster: the metadata, which keeps the addresses of coordinators.

    last_error: why the producer is in an error state; else None.
    numbers: the sequence numbers under the current producer id and epoch.
    """

    def __init__(
        self,
        transactional_id: str | None,
        *,
        in_flight: InFlightBatches,
        broker_version: tuple[int, ...],
        cluster: ClusterMetadata | None = None,
        transaction_timeout_ms: int = 60_000,
        retry_backoff_ms: float = 100,
    ) -> None:
        self.transactional_id = transactional_id
        # As kafka-python: a timeout is of no use without transactions.
        self.transaction_timeout_ms = 0 if transactional_id is None else transaction_timeout_ms
        self.retry_backoff_ms = retry_backoff_ms
        self.can_bump_epoch = broker_version >= _BUMPS_EPOCHS
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_EPOCH
        self.last_error: Exception | None = None
        self.numbers = SequenceNumbers(in_flight)
        self._cluster = cluster
        self._state = State.UNINITIALIZED
        self._transaction: OpenTransaction | None = None  # of IN_TRANSACTION and the states after it
        self._lock = threading.RLock()
        self._requests: list[tuple[int, int, Any]] = []  # a heap
        self._request_numbers = count()
        self._coordinators: dict[CoordinatorType, str] = {}
        self._is_started = False  # a broker knows of the transaction
        self._needs_new_epoch = False
        self._new_partitions: set[TopicPartition] = set()
        self._pending_partitions: set[TopicPartition] = set()
        self._partitions: set[TopicPartition] = set()
        self._closed_by: Exception | None = None

    @property
    def is_transactional(self) -> bool:
        return self.transactional_id is not None

    @property
    def has_fatal_error(self) -> bool:
        return self._state is State.FATAL_ERROR

    @property
    def has_abortable_error(self) -> bool:
        return self._state is State.ABORTABLE_ERROR

    @property
    def is_settled(self) -> bool:
        """Whether no request waits, and records may be sent."""
        return self._state in _SENDING and not self._requests and not self._new_partitions

    @property
    def is_completing(self) -> bool:
        return self._state in COMPLETING

    @property
    def is_aborting(self) -> bool:
        return self._state is State.ABORTING_TRANSACTION

    @property
    def is_new_transaction(self) -> bool:
        """Whether no partition was added to the transaction yet."""
        return not self._partitions

    def _transition_to(self, target: State, error: Exception | None = None) -> None:
        if self._state not in _BEFORE[target]:
            raise kafka_errors.KafkaError(
                f"TransactionalId {self.transactional_id}: Invalid transition attempted from state "
                f"{self._state.name} to state {target.name}"
            )
        log.debug("transition from %s to %s: %s", self._state.name, target.name, error)
        self.last_error = error
        self._state = target
        if target is State.IN_TRANSACTION:
            self._transaction = OpenTransaction()
        elif self._transaction is not None:
            self._transaction.end(error)

    def transition_to_fatal_error(self, error: Exception) -> None:
        """Refuse all that follows with this error."""
        with self._lock:
            log.error("the producer cannot continue: %s", error)
            self._transition_to(State.FATAL_ERROR, error)

    def transition_to_abortable_error(self, error: Exception) -> None:
        """Let the open transaction end by an abort only. Does nothing without one, or if it aborts already."""
        with self._lock:
            if self._state in _BEFORE[State.ABORTABLE_ERROR]:
                self._transition_to(State.ABORTABLE_ERROR, error)

    # Requests

    def enqueue(self, request: Request) -> Result:
        """Send a request, now or again, after those with a lower priority. Return its result.

        The request fails if the sender has ended: nobody would send it.
        """
        with self._lock:
            if self._closed_by is not None:
                request.result.done(self._closed_by)
                return request.result
            heapq.heappush(self._requests, (request.priority, next(self._request_numbers), request))
        return request.result

    def forget_coordinator(self, kind: CoordinatorType) -> None:
        """Look a coordinator up again before the next request to it."""
        self._coordinators.pop(kind, None)

    # Responses. The lock is held.

    def set_coordinator(self, kind: CoordinatorType, key: str, found: Any) -> None:
        """Set the coordinator that was looked up. found: its address, as the response has it."""
        assert self._cluster is not None
        self._coordinators[kind] = self._cluster.add_coordinator(found, kind, key)

    def set_producer_id(self, producer_id: int, epoch: int) -> None:
        """Send what follows under this id and epoch, with sequence numbers from 0 on."""
        log.info("producer id %d, epoch %d", producer_id, epoch)
        self.producer_id, self.epoch = producer_id, epoch
        self.numbers.reset()
        if self._state is not State.FATAL_ERROR:
            self._transition_to(State.READY)

    def partitions_answered(self, partitions: Collection[TopicPartition], *, is_added: bool) -> None:
        """Note that partitions were added to the transaction, or could not be."""
        self._pending_partitions.difference_update(partitions)
        if is_added:
            self._partitions.update(partitions)
            self._is_started = True

    def offsets_added(self) -> None:
        """Note that the transaction has offsets of a group."""
        self._is_started = True

    def complete(self) -> bool:
        """End the transaction. Return whether the next one needs another epoch, which must be requested.

        Batches of an aborted transaction may have been appended or not, and so have used their numbers or not.
        """
        self._is_started = False
        self._new_partitions.clear()
        self._pending_partitions.clear()
        self._partitions.clear()
        needs_new_epoch = self._needs_new_epoch and self.is_aborting
        self._needs_new_epoch = False
        self._transition_to(State.INITIALIZING if needs_new_epoch else State.READY)
        return needs_new_epoch
