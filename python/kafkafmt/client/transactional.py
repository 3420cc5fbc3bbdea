"""The methods of a producer that begin and end transactions, as KafkaProducer has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors

if TYPE_CHECKING:
    from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

    from kafkafmt.client.io_thread import IoThread
    from kafkafmt.client.sender import Sender
    from kafkafmt.client.transaction_state import Result
    from kafkafmt.client.transactions import Transactions
    from kafkafmt.types import TopicPartition


class Transactional:
    """The transactions of a Producer. They need the option `transactional_id`."""

    _transactions: Transactions | None
    _sender: Sender
    _io: IoThread
    _max_block_ms: float
    _initialized: Result | None = None  # of `init_transactions`

    @property
    def transaction_error(self) -> Exception | None:
        """Why the producer cannot commit its transaction, and takes nothing more in it; None if it can."""
        return None if self._transactions is None else self._transactions.last_error

    def init_transactions(self, timeout: float | None = None) -> None:
        """Get a producer id for `transactional_id`. Earlier transactions of this id are completed or aborted.

        After a KafkaTimeoutError another call waits on. After a success it does nothing.

        timeout: the most seconds to wait; None for `max_block_ms`.

        Raises KafkaTimeoutError, IllegalStateError without a transactional id or in a callback, and KafkaError.
        """
        self._refuse_in_callback("init_transactions")
        transactions = self._ensure_idempotent(
            "Cannot call init_transactions without setting a transactional_id."
        )
        if self._initialized is None:
            self._initialized = transactions.initialize()
            self._sender.wakeup()
        result = self._initialized
        most_ms = self._max_block_ms if timeout is None else timeout * 1000
        try:
            if not result.wait(most_ms / 1000):
                raise kafka_errors.KafkaTimeoutError(
                    f"Timeout expired while initializing transactional state in {most_ms} ms."
                )
        finally:
            if result.has_failed:
                self._initialized = None

    def begin_transaction(self) -> None:
        """Begin a transaction. Raises ProducerFencedError, and KafkaError in another state."""
        self._ensure_idempotent("Cannot use transactional methods without enabling transactions").begin()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group_metadata: ConsumerGroupMetadata | str,
    ) -> None:
        """Commit offsets of a consumer group with the transaction. Waits until its coordinator has them.

        group_metadata: of the consumer, by which a broker refuses one that has left the group (KIP-447); or a group id.

        Raises KafkaError outside of a transaction, IllegalStateError in a callback, and the errors of the coordinator.
        """
        self._refuse_in_callback("send_offsets_to_transaction")
        transactions = self._ensure_idempotent(
            "Cannot use transactional methods without enabling transactions"
        )
        self._await(transactions.send_offsets(offsets, group_metadata))

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Send the records that wait, and commit the transaction once brokers have acknowledged all its records.

        If a record that `send` has accepted fails, before or during this call, nothing of the transaction is committed.
        Call `abort_transaction` then, or `close` after an error that the producer cannot continue after, such as
        ProducerFencedError. A record for which `send` raised an error is not part of the transaction.

        timeout: the most seconds to wait; None to wait without limit. After a KafkaTimeoutError the commit continues,
            and its outcome is not known. Unlike KafkaProducer's method, this one cannot be called again: it raises
            KafkaError, and so do `abort_transaction` and `begin_transaction`. `begin_transaction` succeeds once the
            transaction is committed. If the commit fails, `transaction_error` is its error, and `abort_transaction`
            may be called. `close` waits for the outcome. If the producer ends before, `init_transactions` of another
            one with the same id completes the commit if the coordinator has it, and else aborts the transaction.

        Raises KafkaError, with the text of the error, if a record failed before this call; the error of a record or a
        request that fails during it; KafkaError outside of a transaction; KafkaTimeoutError; IllegalStateError without
        a transactional id, in a callback, and after `close`.
        """
        self._refuse_in_callback("commit_transaction")
        transactions = self._ensure_idempotent("Cannot commit transaction since transactions are not enabled")
        self._await(transactions.begin_commit(), timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction. Records that were not sent fail.

        timeout: the most seconds to wait; None to wait without limit.

        Raises KafkaTimeoutError, and IllegalStateError in a callback.
        """
        self._refuse_in_callback("abort_transaction")
        transactions = self._ensure_idempotent("Cannot abort transaction since transactions are not enabled.")
        self._await(transactions.begin_abort(), timeout)

    def _ensure_idempotent(self, message: str) -> Transactions:
        if self._transactions is None:
            raise kafka_errors.IllegalStateError(message)
        return self._transactions

    def _refuse_in_callback(self, method: str) -> None:
        """Raise IllegalStateError in the I/O thread, which would wait for itself (KIP-1118)."""
        if self._io.is_current:
            raise kafka_errors.IllegalStateError(
                f"{method}: a callback must not call it: it would wait for its own thread"
            )

    def _await(self, result: Result, timeout: float | None = None) -> None:
        self._sender.wakeup()
        if not result.wait(timeout):
            raise kafka_errors.KafkaTimeoutError(
                f"Timeout expired while ending a transaction in {timeout:g} s."
            )
