"""kafka-python's Sender, changed so that it never blocks on a broker, and encodes its requests natively.

An idempotent producer needs a producer id before it sends. kafka-python's Sender blocks until it has a connection to
ask for one, and until the response, while a broker hangs or is away. Records do not expire meanwhile. This sender
checks pending work again after `retry_backoff_ms` at the latest. Records fail once `delivery_timeout_ms` is over.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.producer.sender import Sender

from _kafkafmt.client.produce import ProduceEncoder
from kafkafmt.client.connections import connection_delay_ms
from kafkafmt.client.requests import ProduceRequest
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafka.producer.transaction_manager import TxnRequestHandler
    from typing_extensions import Self

    from kafkafmt.client.requests import ProduceResponse
    from kafkafmt.client.sender_accumulator import SenderBatch


class ProducerSender(Sender):  # type: ignore[misc]
    """The thread that sends the batches of a Producer."""

    @classmethod
    def replacing(cls, made: Sender) -> Self:
        """Create a ProducerSender in place of a sender that was not started yet, with that one's metrics."""
        sender = cls(made._client, made._metadata, made._accumulator, **{**made.config, "metrics": None})
        sender._sensors = made._sensors
        return sender

    def run_once(self) -> None:
        self._expire_batches()
        super().run_once()

    def _expire_batches(self) -> None:
        now = time.monotonic()
        expired = self._accumulator.expired_batches(now) + self._get_expired_inflight_batches(now)
        for batch in expired:
            error = kafka_errors.KafkaTimeoutError(
                f"Expiring {batch.record_count} record(s) for {batch.topic_partition}: "
                f"{(now - batch.created) * 1000:.0f} ms has passed since batch creation (delivery_timeout_ms: "
                f"{self._accumulator.delivery_timeout_ms:.0f})"
            )
            self._complete_batch_with_exception(batch, error)

    def _get_expired_inflight_batches(self, now: float) -> list[SenderBatch]:
        """Look through the batches in flight, but only if one of them may have expired."""
        if not self._accumulator.is_in_flight_expiry_due(now):
            return []
        expired: list[SenderBatch] = super()._get_expired_inflight_batches(now)
        return expired

    def _produce_request(
        self, _node_id: Any, acks: int, timeout_ms: int, batches: list[SenderBatch]
    ) -> ProduceRequest:
        transactions = self._transaction_manager
        transactional_id = transactions.transactional_id if transactions is not None else None
        encoder = ProduceEncoder(
            None if transactional_id is None else transactional_id.encode(), acks, timeout_ms
        )
        return ProduceRequest(
            encoder, [(batch.topic_partition, batch.buffer()) for batch in batches], acks=acks
        )

    def _handle_produce_response(
        self, node_id: Any, send_time: float, batches: list[SenderBatch], response: ProduceResponse | None
    ) -> None:
        if response is None:  # acks=0
            super()._handle_produce_response(node_id, send_time, batches, None)
            return
        by_partition = {batch.topic_partition: batch for batch in batches}
        for produced in response.partitions:
            self._complete_batch(by_partition[TopicPartition(produced.topic, produced.partition)], produced)

    def _maybe_send_pending_request(self) -> bool:
        """Send the next request of idempotence or a transaction. Return False if there is none.

        Without a connection the request stays pending.
        """
        transactions = self._transaction_manager
        if transactions.is_completing() and self._accumulator.has_incomplete:
            if transactions.is_aborting():
                error = transactions.last_error or kafka_errors.TransactionAbortedError()
                self._accumulator.abort_undrained_batches(error)
            if not self._accumulator.flush_in_progress():
                self._accumulator.begin_flush()
        handler = transactions.next_request_handler(self._accumulator.has_incomplete)
        if handler is None:
            return False
        node = None
        try:
            node = self._connected_node(handler)
        finally:
            if node is None:
                transactions.put_back(handler)
        if node is not None:
            if handler.is_retry:
                time.sleep(self.config["retry_backoff_ms"] / 1000)
            correlation_id = transactions.next_in_flight_request_correlation_id()
            self._client.send(node, handler.request).add_both(handler.on_complete, correlation_id)
        return True

    def _connected_node(self, handler: TxnRequestHandler) -> Any:
        """Return the node that a request goes to; None while it is looked up, or the connection is being made."""
        if not handler.needs_coordinator():
            node = self._client.least_loaded_node()
            is_connected = node is not None and connection_delay_ms(self._client, node) == 0
            return node if is_connected else None
        transactions = self._transaction_manager
        node = transactions.coordinator(handler.coordinator_type)
        if node is not None:
            with suppress(kafka_errors.UnknownBrokerIdError):
                delay_ms = connection_delay_ms(self._client, node)
                if delay_ms == 0:
                    return node
                if delay_ms == float("inf"):
                    return None
        transactions.lookup_coordinator_for_request(handler)
        return None
