"""The errors of producers and consumers: each is kafkafmt's own and the one of kafka-python that its users catch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kafka.errors as kafka_errors

import kafkafmt.errors
from kafkafmt import accumulator

if TYPE_CHECKING:
    from kafkafmt.errors import KafkaFormatError
    from kafkafmt.types import TopicPartition


class BufferExhaustedError(accumulator.BufferExhaustedError, kafka_errors.KafkaTimeoutError):  # type: ignore[misc]
    """No room for a record within `max_block_ms`; the message says how many batches hold how much of the budget."""


class CorruptRecordError(kafkafmt.errors.CorruptRecordError, kafka_errors.CorruptRecordError):  # type: ignore[misc]
    """A batch that a RawConsumer fetched and cannot hand out: damaged, or not to be opened where it must be trimmed.

    topic_partition: where it is. offset: the consumer's position, which stays there: seek, to go on behind the batch.
    next_offset: where that is; None where nothing in the fetched bytes tells. Positions are those in these bytes.
    """

    def __init__(
        self, error: KafkaFormatError, topic_partition: TopicPartition, offset: int, next_offset: int | None
    ) -> None:
        go_on = "" if next_offset is None else f"; what follows begins at offset {next_offset}"
        super().__init__(
            f"{topic_partition} at offset {offset}: {error.message}{go_on}",
            position=error.position,
            base_offset=error.base_offset,
            last_offset=error.last_offset,
            next_position=error.next_position,
        )
        self.topic_partition = topic_partition
        self.offset = offset
        self.next_offset = next_offset


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
