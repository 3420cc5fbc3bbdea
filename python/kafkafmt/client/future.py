"""The futures that `Producer.send` returns: kafkafmt's, with the interface of kafka-python's."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.producer.future import FutureProduceResult, RecordMetadata
from kafka.producer.future import FutureRecordMetadata as FailedSend
from kafka.structs import TopicPartition

from kafkafmt.client.accumulator import RecordFuture

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafka.future import Future

    from kafkafmt.client.accumulator.batch import Outcome

log = logging.getLogger(__name__)


class FutureRecordMetadata(RecordFuture):
    """The outcome of a record, a RecordMetadata or an error, as kafka-python's class of this name.

    The metadata has kafka-python's fields. `checksum` is None, because records of format v2 have none.
    `serialized_header_size` is -1, because the size of headers is not kept.
    """

    __slots__ = ()

    def retriable(self) -> bool:
        """Return whether the record failed with an error that a retry may avoid."""
        return isinstance(self.exception, kafka_errors.RetriableError)

    def chain(self, future: Future) -> FutureRecordMetadata:
        """Give the outcome to a future of kafka-python, too."""
        self.add_callback(future.success)
        self.add_errback(future.failure)
        return self

    def _call(
        self,
        callback: Callable[..., Any] | None,
        errback: Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        try:
            super()._call(callback, errback, args, kwargs)
        except Exception:
            raise
        except BaseException as error:  # it would end the I/O thread, and other records would have no outcome
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise  # the user's: Python raises these in the main thread only
            log.exception("a callback of a record cannot end the program")

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


def failed_send(topic_partition: TopicPartition, error: Exception) -> FailedSend:
    """Return a future that has failed, as kafka-python's `send` does if the topic cannot be looked up."""
    return FailedSend(FutureProduceResult(topic_partition), -1, None, None, -1, -1, -1).failure(error)
