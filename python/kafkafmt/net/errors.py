"""The producer's errors: each is kafkafmt's own and the one of kafka-python that its users catch."""

from __future__ import annotations

import kafka.errors as kafka_errors

import kafkafmt.errors
from kafkafmt import accumulator


class BufferExhaustedError(accumulator.BufferExhaustedError, kafka_errors.KafkaTimeoutError):  # type: ignore[misc]
    """No room for a record within `max_block_ms`; the message says how many batches hold how much of the budget."""


class PossiblyDeliveredError(accumulator.PossiblyDeliveredError, kafka_errors.OutOfOrderSequenceNumberError):  # type: ignore[misc]
    """A record that a broker may have: its batch was sent, the answer was lost, then it was refused as too large.

    It is not sent in another batch, lest it is there twice.
    """

    __str__ = Exception.__str__


class ProducerClosedError(accumulator.AccumulatorClosedError, kafka_errors.IllegalStateError):  # type: ignore[misc]
    """The producer was closed, and takes no more records."""

    __str__ = Exception.__str__


class RecordTooLargeError(kafkafmt.errors.RecordTooLargeError, kafka_errors.MessageSizeTooLargeError):  # type: ignore[misc]
    """A record that its topic does not take even alone; the message says its size and the limit."""


class UndeliveredError(kafka_errors.KafkaTimeoutError):  # type: ignore[misc]
    """`close` gave up what was not delivered in time; the futures of those records have failed.

    undelivered: how many records, by partition. What was sent and not acknowledged is among them: a broker may
    have it.
    """

    __str__ = Exception.__str__

    def __init__(self, timeout: float, undelivered: accumulator.Undelivered) -> None:
        super().__init__(f"closed after {timeout:g} s, not delivered: {undelivered}")
        self.timeout = timeout
        self.undelivered = undelivered
