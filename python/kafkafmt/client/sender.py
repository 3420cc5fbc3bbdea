"""Sends the batches of an accumulator, over connections of our own.

All work is done by `Sender.run`, a callback in the I/O thread. It is called whenever something may have changed:
records were appended, a broker has answered, a connection or the metadata has changed, a time has come. It never
waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors

from _kafkafmt.wire.status import MalformedResponseError
from kafkafmt.client.accumulator import Undelivered
from kafkafmt.client.broker_connections import BrokerConnections
from kafkafmt.client.clock import monotonic_ms
from kafkafmt.client.delivery import Delivery
from kafkafmt.client.io_thread import CoalescedCall
from kafkafmt.client.produce_requests import ProduceRequests
from kafkafmt.client.transaction_requests import FindCoordinator

if TYPE_CHECKING:
    from kafkafmt.client.accumulator import ProducerBatch, RecordAccumulator
    from kafkafmt.client.broker_connection import BrokerConnection
    from kafkafmt.client.control_plane import ControlPlane
    from kafkafmt.client.in_flight import InFlightBatches
    from kafkafmt.client.io_thread import IoThread
    from kafkafmt.client.limits import TopicLimits
    from kafkafmt.client.metrics import SenderMetrics
    from kafkafmt.client.transaction_requests import TransactionRequest
    from kafkafmt.client.transactions import Transactions

log = logging.getLogger(__name__)

_NEVER = float("inf")
# From this version of Produce on, the client waits as long as a response says. Before, the broker has waited (KIP-219).
_THROTTLING_VERSION = 6
# After so many requests in a row other callbacks have their turn.
_MAX_ROUNDS = 32


@dataclass(frozen=True)
class SenderOptions:
    """The options of KafkaProducer that the sender needs, under their names.

    mutes: whether a partition has one batch in flight at a time, to keep the order without sequence numbers.
    """

    acks: int
    retries: float
    max_request_size: int
    request_timeout_ms: int
    retry_backoff_ms: float
    client_id: str | None
    mutes: bool


@dataclass(frozen=True)
class SenderParts:
    """The objects that a sender works with. transactions: None without idempotence."""

    io: IoThread
    control: ControlPlane
    accumulator: RecordAccumulator
    limits: TopicLimits
    in_flight: InFlightBatches
    transactions: Transactions | None
    metrics: SenderMetrics


class Sender:
    """Sends batches in the I/O thread. Any thread may call `wakeup`, `initiate_close` and `force_close`.

    wakeup: makes the sender look again for something to do.
    undelivered: the number of records, by partition, that were given up when the sender ended.
    """

    def __init__(self, parts: SenderParts, options: SenderOptions, wakeup: CoalescedCall) -> None:
        self.wakeup = wakeup
        self.undelivered = Undelivered()
        self._options = options
        self._io, self._control = parts.io, parts.control
        self._cluster = parts.control.cluster
        self._accumulator, self._limits = parts.accumulator, parts.limits
        self._in_flight, self._transactions = parts.in_flight, parts.transactions
        self._metrics = parts.metrics
        self._connections = BrokerConnections(parts.io, parts.control, lambda _: wakeup())
        self._delivery = Delivery(
            parts.accumulator,
            parts.transactions,
            parts.limits,
            parts.control.cluster,
            parts.metrics,
            options.retries,
        )
        transactions = parts.transactions
        self._requests = ProduceRequests(
            client_id=options.client_id,
            transactional_id=None if transactions is None else transactions.transactional_id,
            acks=options.acks,
            timeout_ms=options.request_timeout_ms,
        )
        self._request: TransactionRequest | None = None  # of a transaction, in flight
        self._next_request_ms = 0.0
        self._flushes_transaction = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = _NEVER
        self._is_closing = self._is_closed = False
        self._closing_ms = _NEVER

    @property
    def in_flight_count(self) -> int:
        """The number of Produce requests that wait for a response."""
        return sum(connection.in_flight_count for connection in self._connections.all())

    def run(self) -> None:
        """Do all that can be done now. The time until the next call is set, if nothing else comes before."""
        if self._is_closed:
            return
        try:
            self._set_timer(self._run(monotonic_ms()))
        except Exception:
            log.exception("the sender failed, and tries again")
            self._set_timer(monotonic_ms() + self._options.retry_backoff_ms)
        if self._is_closing and not self._accumulator.has_incomplete and not self._ends_transaction():
            self._end()

    def _ends_transaction(self) -> bool:
        """Abort a transaction that is open. Return whether to wait for a response, or for the end of a transaction."""
        transactions = self._transactions
        if transactions is None or not transactions.is_transactional:
            return False
        if self._request is not None or self._is_late(transactions, monotonic_ms()):
            return self._request is not None
        if transactions.abort_open():
            self.wakeup()
        return transactions.is_completing

    def _is_late(self, transactions: Transactions, now_ms: float) -> bool:
        """Return whether the coordinator has aborted the transaction of a producer that closes."""
        late_ms = self._closing_ms + transactions.transaction_timeout_ms
        return transactions.is_transactional and now_ms >= late_ms

    def _run(self, now_ms: float) -> float:
        """Do all that can be done now. Return the time at which to call again, at the latest."""
        next_ms = min(self._expire(now_ms), now_ms + self._limits.ask(now_ms))
        if self._transactions is not None:
            next_ms = min(next_ms, self._advance_transactions(self._transactions, now_ms))
        return min(next_ms, self._send_batches(now_ms), self._in_flight.next_expiry_ms)

    def _set_timer(self, at_ms: float) -> None:
        if at_ms >= self._timer_ms:  # the earlier call sets the timer again
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = at_ms
        self._timer = self._io.call_later(max(at_ms - monotonic_ms(), 0) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_ms = None, _NEVER
        self.run()

    def _expire(self, now_ms: float) -> float:
        """Fail the batches whose delivery timeout is over. Return the time at which the next one waits that long."""
        timeout_ms = self._accumulator.options.delivery_timeout_ms
        expired = self._in_flight.take_expired(timeout_ms, now_ms)
        if self._options.mutes:
            self._accumulator.muted.difference_update(batch.topic_partition for batch in expired)
        next_ms = self._accumulator.next_expiry_ms()
        if next_ms <= now_ms:
            expired += self._accumulator.expired_batches(now_ms)
            next_ms = self._accumulator.next_expiry_ms()
        for batch in expired:
            error = kafka_errors.KafkaTimeoutError(
                f"Expiring {batch.record_count} record(s) for {batch.topic_partition}: "
                f"{now_ms - batch.created_ms:.0f} ms has passed since batch creation (delivery_timeout_ms: "
                f"{timeout_ms:.0f})"
            )
            self._deliver(batch, partial(self._delivery.failed, batch, error))
        return next_ms

    # Transactions

    def _advance_transactions(self, transactions: Transactions, now_ms: float) -> float:
        """Send the next request of idempotence or a transaction. Return the time at which to call again."""
        if transactions.is_settled and not self._flushes_transaction:
            return _NEVER
        transactions.ensure_producer_id()
        self._flush_transaction(transactions)
        next_ms = _NEVER
        while self._request is None and not self._is_late(transactions, now_ms):
            if now_ms < self._next_request_ms:
                next_ms = self._next_request_ms
                break
            request = transactions.next_request(lambda: self._accumulator.has_incomplete)
            if request is None:
                break
            self._send_request(transactions, request)
        if transactions.has_fatal_error:
            if self._accumulator.has_incomplete:
                assert transactions.last_error is not None
                self._accumulator.abort(transactions.last_error)
        elif transactions.has_abortable_error:
            self._abort_undrained(transactions)
        return next_ms

    def _flush_transaction(self, transactions: Transactions) -> None:
        """Send all batches without lingering while a transaction ends."""
        is_completing = transactions.is_completing
        if is_completing and transactions.is_aborting:
            self._abort_undrained(transactions)
        if is_completing and not self._flushes_transaction:
            self._accumulator.begin_flush()
        elif self._flushes_transaction and not is_completing:
            self._accumulator.end_flush()
        self._flushes_transaction = is_completing

    def _abort_undrained(self, transactions: Transactions) -> None:
        if self._accumulator.has_undrained:
            error = transactions.last_error or kafka_errors.TransactionAbortedError()
            self._accumulator.abort(error, undrained_only=True)

    def _send_request(self, transactions: Transactions, request: TransactionRequest) -> None:
        node_id = None
        if request.coordinator_type is not None:
            node_id = transactions.coordinator_of(request)
            if node_id is None:
                transactions.enqueue(request)
                request = FindCoordinator(request)
        try:
            message = request.message()
        except Exception as error:
            transactions.handle_outcome(request, error)
            return
        self._request = request
        self._control.ask(message, self._io, partial(self._request_done, transactions, request), node_id)

    def _request_done(self, transactions: Transactions, request: TransactionRequest, outcome: Any) -> None:
        self._request = None
        transactions.handle_outcome(request, outcome)
        if request.retry_backoff_ms is not None:
            self._next_request_ms = monotonic_ms() + request.retry_backoff_ms
        self.run()

    # Batches

    def _send_batches(self, now_ms: float) -> float:
        """Send what is ready while connections take it. Return the time at which to call again."""
        corked: set[BrokerConnection] = set()
        try:
            for _ in range(_MAX_ROUNDS):
                if not self._accumulator.has_undrained:
                    return _NEVER
                check = self._accumulator.ready(self._cluster, now_ms)
                if not self._send_ready(check.nodes, corked, now_ms):
                    break
                now_ms = monotonic_ms()
            else:
                self.wakeup()
        finally:
            for connection in corked:
                connection.uncork()
        if check.unknown_leaders_exist and not self._cluster.need_update:
            self._cluster.request_update()
        return now_ms + check.next_check_ms

    def _send_ready(self, nodes: Iterable[int], corked: set[BrokerConnection], now_ms: float) -> bool:
        """Send a request to each node whose connection takes one, and cork these. Return False if there is none."""
        connections = {
            node: connection for node in nodes if (connection := self._connections.ready(node)) is not None
        }
        if not connections:
            return False
        drained = self._accumulator.drain(self._cluster, connections, self._options.max_request_size, now_ms)
        is_sent = False
        for node, batches in drained.items():
            if batches:
                is_sent = True
                connections[node].cork()
                corked.add(connections[node])
                self._send(connections[node], batches, now_ms)
        return is_sent

    def _send(self, connection: BrokerConnection, batches: Sequence[ProducerBatch], now_ms: float) -> None:
        """Send a request. `drain` has taken at most one batch of each partition."""
        timeout_ms = self._accumulator.options.delivery_timeout_ms
        transactions = self._transactions
        for batch in batches:
            self._in_flight.add(batch, batch.created_ms + timeout_ms)
            if transactions is None:
                if self._options.mutes:
                    self._accumulator.muted.add(batch.topic_partition)
            elif not transactions.is_stale(batch):
                transactions.numbers.sent(batch)
        self._metrics.sent(batches, now_ms)
        try:
            self._send_produce(connection, batches)
        except kafka_errors.IncompatibleBrokerVersion as error:
            self._fail_request(batches, error)
        except Exception as error:
            log.exception("%s: a request could not be sent", connection)
            self._fail(batches, error)

    def _send_produce(self, connection: BrokerConnection, batches: Sequence[ProducerBatch]) -> None:
        assert connection.versions is not None
        version = self._requests.version_for(connection.versions)
        correlation_id = connection.next_correlation_id()
        ordered, pieces = self._requests.encode(batches, version, correlation_id)
        if self._options.acks == 0:
            connection.send_unanswered(pieces, partial(self._unanswered, ordered))
        else:
            connection.send(pieces, correlation_id, partial(self._answered, connection, ordered, version))

    def _unanswered(self, batches: Sequence[ProducerBatch], error: Exception | None) -> None:
        """Handle the end of a request that a broker does not answer."""
        if error is not None:
            self._fail_request(batches, error)
            return
        for batch in batches:
            self._resolve(batch)
            self._deliver(batch, partial(self._delivery.acknowledged, batch))
        self.wakeup()

    def _answered(
        self,
        connection: BrokerConnection,
        batches: Sequence[ProducerBatch],
        version: int,
        response: memoryview | None,
        error: Exception | None,
    ) -> None:
        if response is None:
            assert error is not None
            self._fail_request(batches, error)
            return
        try:
            throttle_time_ms, answers = self._requests.decode(response, version)
        except (MalformedResponseError, UnicodeDecodeError) as malformed:
            failure = kafka_errors.KafkaProtocolError(f"{connection}: {malformed}")
            connection.close(failure)
            self._fail_request(batches, failure)
            return
        if version >= _THROTTLING_VERSION:
            connection.throttle(throttle_time_ms)
        waiting = {
            (self._requests.name_of(topic), partition): batch
            for batch in batches
            for topic, partition in (batch.topic_partition,)
        }
        for produced in answers:
            batch = waiting.pop((produced.topic, produced.partition), None)
            if batch is not None:
                self._resolve(batch)
                self._deliver(batch, partial(self._delivery.answered, batch, produced))
        if waiting:
            lacking = ", ".join(str(batch.topic_partition) for batch in waiting.values())
            missing = kafka_errors.KafkaProtocolError(f"{connection}: a response without {lacking}")
            self._fail_request(list(waiting.values()), missing)
        self.wakeup()

    def _fail_request(self, batches: Sequence[ProducerBatch], error: Exception) -> None:
        """Handle the error that ended a connection, or kept a request from being sent."""
        if not isinstance(error, kafka_errors.RetriableError | kafka_errors.UnsupportedVersionError):
            error = kafka_errors.KafkaConnectionError(str(error))
        self._fail(batches, error)

    def _fail(self, batches: Sequence[ProducerBatch], error: Exception) -> None:
        """Send batches again that were in flight, or fail them, by what the error is."""
        for batch in batches:
            self._resolve(batch)
            self._deliver(batch, partial(self._delivery.failed, batch, error))
        self.wakeup()

    def _resolve(self, batch: ProducerBatch) -> None:
        """Take a batch out of flight. One that has expired was taken out: a later batch may mute its partition now."""
        if self._in_flight.remove(batch) and self._options.mutes:
            self._accumulator.muted.discard(batch.topic_partition)

    def _deliver(self, batch: ProducerBatch, deliver: Callable[[], None]) -> None:
        """Handle the outcome of a batch. An unexpected error fails it, so that no future is left without an outcome."""
        try:
            deliver()
        except Exception as error:
            log.exception("%s: the outcome of %r could not be handled", batch.topic_partition, batch)
            if self._transactions is not None and not batch.is_done:
                self._transactions.batch_failed(error, batch)
            if batch.complete_exceptionally(error):
                self._accumulator.deallocate(batch)

    # Close

    def initiate_close(self) -> None:
        """Take no more records, and end the I/O thread once all batches are done, and the transaction has ended."""
        self._accumulator.close()
        self._closing_ms = monotonic_ms()
        self._is_closing = True
        self.wakeup()

    def force_close(self) -> None:
        """Give up all batches, and end the I/O thread."""
        self._accumulator.close()
        if self._io.is_current:
            self._abort()
        else:
            try:
                self._io.call_soon(self._abort)
            except kafka_errors.KafkaConnectionError:  # the thread has ended
                self.abort_batches()

    def abort_batches(self) -> None:
        """Fail all batches that are not done, and count them as undelivered."""
        error = kafka_errors.IllegalStateError("Producer is closed forcefully.")
        self.undelivered.update(self._accumulator.abort(error))

    def _abort(self) -> None:
        self.abort_batches()
        self._end()

    def _end(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._connections.close()
        if self._transactions is not None:
            error = kafka_errors.IllegalStateError("the producer is closed")
            self._transactions.close(error)
            if self._request is not None:
                self._request.result.done(error)
        self._io.stop(0)
