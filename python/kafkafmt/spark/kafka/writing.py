"""Send the batches of a DataFrame or of a stream to brokers unchanged, at least once (KIP-712).

If a broker would refuse a batch, BatchForwarder changes it so that it is accepted, or leaves it out if that is
impossible. A task sends its rows in order. If Spark runs the task again, as after a failure, it sends them again. There
is nothing to commit.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka.errors import KafkaError
from pyspark.sql.datasource import WriterCommitMessage

from kafkafmt._util.options import Option
from kafkafmt.build.forwarding import BatchForwarder, ForwardingStats
from kafkafmt.scanning.brokers.clients import ClientConfig
from kafkafmt.scanning.brokers.errors import broker_errors
from kafkafmt.spark.kafka.clients import parse_producers
from kafkafmt.spark.kafka.options import split_options
from kafkafmt.spark.sink.batches import naming, run_of
from kafkafmt.spark.sink.columns import InputColumns
from kafkafmt.spark.sink.options import TARGET_OPTIONS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kafkafmt.client.accumulator import RecordsFuture
    from kafkafmt.net import RawProducer

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskStats(WriterCommitMessage):
    """The statistics of a successful task."""

    sent: ForwardingStats


@dataclass(frozen=True)
class SendJob:
    """A write of a DataFrame, or of a micro-batch of a stream, to brokers."""

    clients: ClientConfig
    columns: InputColumns

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType, *, more: Sequence[Option] = ()) -> SendJob:
        """Parse the options. Raises ValueError, in one line, for unknown options, invalid values and wrong columns.

        more: further options to accept.
        """
        given_clients, given = split_options(options, (*TARGET_OPTIONS, *more))
        clients = parse_producers(given_clients)
        return cls(clients, InputColumns.of_batches(schema, given["topic"], given["partition"]))

    def write(self, rows: Iterable[pa.RecordBatch]) -> TaskStats:
        """Send the rows of a task, and wait until all of them are acknowledged.

        Raises KafkaFormatError and ValueError for rows that are damaged or no batches, and BrokerError.
        """
        forwarder = BatchForwarder(clears_producer_state=False, verify=False)
        filled = (part for part in rows if len(part))
        with broker_errors(self.clients.bootstrap_servers):
            first = next(filled, None)
            if first is None:
                return TaskStats(forwarder.stats)
            producer = self.clients.batch_producer()
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

    def commit(self, results: Sequence[TaskStats], batch_number: int | None = None) -> None:
        """Log the statistics of the tasks. There is nothing to commit."""
        sent = [result.sent for result in results]
        _LOG.info(
            "sent %d batches of %d bytes, opened %d, left out %d",
            sum(one.batches for one in sent),
            sum(one.bytes for one in sent),
            sum(one.opened.total() for one in sent),
            sum(one.left_out.total() for one in sent),
        )

    def abort(self, results: Sequence[TaskStats]) -> None:
        """Do nothing. Sent batches stay, and a retry sends them again."""

    def _sent(
        self, rows: pa.RecordBatch, producer: RawProducer, forwarder: BatchForwarder
    ) -> Iterator[RecordsFuture]:
        found = self.columns.sorted(rows)
        batches = found.content.column("batch")
        for where, start, stop in found.ranges:
            with naming(where):
                for forwarded in forwarder.forward(run_of(batches.slice(start, stop - start))):
                    yield producer.send_run(
                        where.topic, forwarded.run, partition=where.partition, verify=False
                    )
