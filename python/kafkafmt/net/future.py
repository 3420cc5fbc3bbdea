"""What `Producer.send` returns: kafkafmt's future of a record, in the terms of kafka-python's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import kafka.errors as kafka_errors
from kafka.producer.future import RecordMetadata
from kafka.structs import TopicPartition

from kafkafmt.accumulator import RecordFuture

if TYPE_CHECKING:
    from kafka.future import Future

    from kafkafmt.accumulator.batch import Outcome


class FutureRecordMetadata(RecordFuture):
    """As kafka-python's of that name: it comes to a RecordMetadata or to an error.

    The metadata has kafka-python's fields; `checksum` is None, as of all records of format v2, and
    `serialized_header_size` -1: the size of headers is not kept.
    """

    __slots__ = ()

    def retriable(self) -> bool:
        """Whether it failed with an error that may not come again."""
        return isinstance(self.exception, kafka_errors.RetriableError)

    def chain(self, future: Future) -> FutureRecordMetadata:
        """Have another future of kafka-python come to the same."""
        self.add_callback(future.success)
        self.add_errback(future.failure)
        return self

    def _timed_out(self, timeout: float | None) -> kafka_errors.KafkaTimeoutError:
        return kafka_errors.KafkaTimeoutError(f"Timeout after waiting for {timeout} secs.")

    def _metadata(self, outcome: Outcome, index: int) -> RecordMetadata:
        metadata = super()._metadata(outcome, index)
        return RecordMetadata(
            topic=metadata.topic,
            partition=metadata.partition,
            topic_partition=TopicPartition(*metadata.topic_partition),
            offset=metadata.offset,
            timestamp=metadata.timestamp,
            checksum=None,
            serialized_key_size=metadata.serialized_key_size,
            serialized_value_size=metadata.serialized_value_size,
            serialized_header_size=-1,
        )
