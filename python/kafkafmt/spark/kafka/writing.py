"""`frame.write.format("kafkafmt.kafka")`, and of streams: batches sent to brokers as they are, at least once (KIP-712).

What a broker does not take is made so that it does, by BatchForwarder, and left out where it cannot be. A task sends
its rows in their order; one that Spark runs again, as after a failure, sends them again. There is nothing to commit.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka.errors import KafkaError
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kafkafmt.forwarding import BatchForwarder, ForwardingStats
from kafkafmt.log.appending import MAX_INT32
from kafkafmt.spark.kafka.clients import ClientOptions, broker_errors
from kafkafmt.spark.kafka.options import split_options
from kafkafmt.spark.plain_errors import PlainErrors
from kafkafmt.spark.sink.batches import run_of, telling
from kafkafmt.spark.sink.columns import InputColumns
from kafkafmt.spark.sink.options import OF_STREAMS, parse_topic
from kafkafmt.spark.values import parse_number

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from kafkafmt.accumulator import RecordsFuture
    from kafkafmt.net import RawProducer

_LOG = logging.getLogger(__name__)

_KNOWN = ("topic", "partition")


@dataclass(frozen=True)
class TaskStats(WriterCommitMessage):
    """What a task that succeeded has sent."""

    sent: ForwardingStats


@dataclass(frozen=True)
class SendJob:
    """What one write, or one micro-batch of a stream, sends where."""

    clients: ClientOptions
    columns: InputColumns

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType, *, known: Sequence[str] = ()) -> SendJob:
        """Raises ValueError, in one line, for unknown options, values that cannot be, and columns that do not fit."""
        given_clients, given = split_options(options, (*_KNOWN, *known))
        topic = given.parse("topic", parse_topic, None)
        partition = given.parse("partition", lambda value: parse_number(value, MAX_INT32), None)
        clients = ClientOptions.of_producers(given_clients)
        return cls(clients, InputColumns.of_batches(schema, topic, partition))

    def send(self, rows: Iterable[pa.RecordBatch]) -> TaskStats:
        """Send the rows of a task; all of it is acknowledged when this returns.

        Raises KafkaFormatError and ValueError for rows that are no batches or damaged, and BrokerError.
        """
        forwarder = BatchForwarder(clears_producer_state=False, verify=False)
        filled = (part for part in rows if len(part))
        with broker_errors(self.clients.bootstrap_servers):
            first = next(filled, None)
            if first is None:
                return TaskStats(forwarder.stats)
            producer = self.clients.producer()
            try:
                pending: deque[RecordsFuture] = deque(self._sent(first, producer, forwarder))
                for part in filled:
                    pending.extend(self._sent(part, producer, forwarder))
                    while pending and pending[0].is_done:
                        pending.popleft().get()
                producer.flush()
                for future in pending:
                    future.get()
            except BaseException:
                with contextlib.suppress(KafkaError):
                    producer.close(0)
                raise
            producer.close()
        return TaskStats(forwarder.stats)

    def _sent(
        self, rows: pa.RecordBatch, producer: RawProducer, forwarder: BatchForwarder
    ) -> Iterator[RecordsFuture]:
        found = self.columns.sorted(rows)
        batches = found.content.column("batch")
        for where, start, stop in found.ranges:
            with telling(where):
                for forwarded in forwarder.forward(run_of(batches.slice(start, stop - start))):
                    yield producer.send_run(
                        where.topic, forwarded.run, partition=where.partition, verify=False
                    )


class KafkaWriter(DataSourceArrowWriter):
    """Sends a DataFrame."""

    def __init__(self, job: SendJob) -> None:
        self._job = job

    @classmethod
    def plan(cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Self:
        """Raises ValueError as `SendJob.parse`, and where topics were to be replaced."""
        if overwrite:
            raise ValueError("mode overwrite: a topic cannot be replaced; expected append")
        return cls(SendJob.parse(options, schema))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStats:
        with PlainErrors():
            return self._job.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _tell(messages)


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Sends a micro-batch."""

    def __init__(self, job: SendJob) -> None:
        self._job = job

    @classmethod
    def plan(cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Self:
        """Raises ValueError as `SendJob.parse`, and where topics were to be replaced."""
        if overwrite:
            raise ValueError("outputMode complete: a topic cannot be replaced; expected append")
        return cls(SendJob.parse(options, schema, known=OF_STREAMS))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStats:
        with PlainErrors():
            return self._job.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _tell(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what was sent stays, and is sent again."""


def _tell(messages: Sequence[WriterCommitMessage | None]) -> None:
    sent = [message.sent for message in messages if isinstance(message, TaskStats)]
    _LOG.info(
        "sent %d batches of %d bytes, opened %d, left out %d",
        sum(one.batches for one in sent),
        sum(one.bytes for one in sent),
        sum(one.opened.total() for one in sent),
        sum(one.left_out.total() for one in sent),
    )
