"""The errors of producers and consumers. Each derives from kafkafmt's error and from kafka-python's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kafka.errors as kafka_errors

import kafkafmt.errors
from kafkafmt.client import accumulator

if TYPE_CHECKING:
    from kafkafmt.errors import KafkaFormatError
    from kafkafmt.types import TopicPartition


class BufferExhaustedError(accumulator.BufferExhaustedError, kafka_errors.KafkaTimeoutError):  # type: ignore[misc]
    """The budget had no room for a record within `max_block_ms`. The message says how many batches fill it."""


class CorruptFetchedBatchError(kafkafmt.errors.CorruptRecordError, kafka_errors.CorruptRecordError):  # type: ignore[misc]
    """A RawConsumer cannot return a fetched batch: it is damaged, or must be trimmed and cannot be opened.

    topic_partition: the partition of the batch.
    offset: the consumer's position, which does not move. To continue after the batch, seek to `next_offset`.
    next_offset: the offset after the batch; None if the fetched bytes do not contain it.
    position: in bytes, within the fetched bytes.
    """

    def __init__(
        self, error: KafkaFormatError, topic_partition: TopicPartition, offset: int, next_offset: int | None
    ) -> None:
        resume = "" if next_offset is None else f"; the consumer can continue at offset {next_offset}"
        super().__init__(
            f"{topic_partition} at offset {offset}: {error.message}{resume}",
            position=error.position,
            base_offset=error.base_offset,
            last_offset=error.last_offset,
            next_position=error.next_position,
        )
        self.topic_partition = topic_partition
        self.offset = offset
        self.next_offset = next_offset


class PossiblyDeliveredError(accumulator.PossiblyDeliveredError, kafka_errors.OutOfOrderSequenceNumberError):  # type: ignore[misc]
    """A broker may have the record: its batch was sent, the response was lost, and a retry was refused.

    The producer does not send the record in another batch, because the broker could then store it twice.
    """

    __str__ = Exception.__str__


class ProducerClosedError(accumulator.AccumulatorClosedError, kafka_errors.IllegalStateError):  # type: ignore[misc]
    """The producer is closed and takes no more records."""

    __str__ = Exception.__str__


class RecordTooLargeError(kafkafmt.errors.RecordTooLargeError, kafka_errors.MessageSizeTooLargeError):  # type: ignore[misc]
    """A record is too large for its topic even in a batch of its own. The message has its size and the limit."""


class UndeliveredError(kafka_errors.KafkaTimeoutError):  # type: ignore[misc]
    """`close` gave up records that were not delivered in time. Their futures have failed.

    timeout: seconds that `close` waited.
    undelivered: the number of records by partition. Records that were sent and not acknowledged are counted, too: a
        broker may have them.
    """

    __str__ = Exception.__str__

    def __init__(self, timeout: float, undelivered: accumulator.Undelivered) -> None:
        super().__init__(f"closed after {timeout:g} s, not delivered: {undelivered}")
        self.timeout = timeout
        self.undelivered = undelivered


def connection_error(connection: object, error: Exception) -> Exception:
    """Return an error of kafka-python, which retries those of connections."""
    if not isinstance(error, kafka_errors.KafkaError):
        error = kafka_errors.KafkaConnectionError(f"{connection}: {str(error) or type(error).__name__}")
    return error
