"""Send the rows of a DataFrame or of a stream as records, as Spark's Kafka sink does, at least once.

A task sends its rows in order. If Spark runs the task again, as after a failure, it sends them again. There is nothing
to commit.
"""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from kafka.errors import KafkaError
from pyspark.sql.datasource import WriterCommitMessage

from _kafkafmt.client.murmur2 import murmur2
from kafkafmt._util.options import Option
from kafkafmt.columns.arrow import boolean_array
from kafkafmt.scanning.brokers.clients import ClientConfig
from kafkafmt.scanning.brokers.errors import broker_errors
from kafkafmt.spark.kafka.clients import parse_record_producers
from kafkafmt.spark.kafka.options import split_options
from kafkafmt.spark.sink.options import is_topic, parse_topic
from kafkafmt.spark.values import parse_partition

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql.types import StructType

    from kafkafmt.client.accumulator import RecordsFuture
    from kafkafmt.client.producer import Producer

_LOG = logging.getLogger(__name__)

RECORD_SINK_OPTIONS = (
    Option(
        "topic",
        parse_topic,
        None,
        "the topic of all rows, instead of their column; required without such a column",
    ),
    Option(
        "partition",
        parse_partition,
        None,
        "the partition of all rows, instead of their column. Rows without a partition go where Kafka's partitioner "
        "sends their keys",
    ),
)
_BYTES = ("binary", "string")
# The columns of Spark's Kafka sink. Other columns are ignored, as Spark ignores them.
_TYPES = {
    "key": (*_BYTES, "void"),
    "value": (*_BYTES, "void"),
    "topic": ("string",),
    "partition": ("int", "void"),
    "headers": ("array<struct<key:string,value:binary>>", "void"),
}


@dataclass(frozen=True)
class SentRecords(WriterCommitMessage):
    """The number of records that a successful task sent."""

    count: int


@dataclass(frozen=True)
class RecordSendJob:
    """A write of a DataFrame, or of a micro-batch of a stream, to brokers. topic, partition: of all rows, or None."""

    clients: ClientConfig
    numbers: Mapping[str, int]
    topic: str | None
    partition: int | None

    @classmethod
    def parse(
        cls, options: Mapping[str, str], schema: StructType, *, more: Sequence[Option] = ()
    ) -> RecordSendJob:
        """Parse the options. Raises ValueError, in one line, for unknown options, invalid values and wrong columns.

        more: further options to accept.
        """
        given_clients, given = split_options(options, (*RECORD_SINK_OPTIONS, *more))
        clients = parse_record_producers(given_clients)
        numbers = {}
        for number, field in enumerate(schema.fields):
            found = field.dataType.simpleString()
            if field.name in _TYPES and found not in _TYPES[field.name]:
                expected = " or ".join(_TYPES[field.name])
                raise ValueError(f"column {field.name}: expected {expected}, found {found}")
            if field.name in _TYPES and found != "void":
                numbers[field.name] = number
        if "value" not in schema.names:
            raise ValueError(f"no column value: found {', '.join(schema.names) or 'none'}")
        if "topic" not in numbers and given["topic"] is None:
            raise ValueError("no topic: expected a column topic, or the option topic for all rows")
        return cls(clients, numbers, given["topic"], given["partition"])

    def write(self, rows: Iterable[pa.RecordBatch]) -> SentRecords:
        """Send the rows of a task, and wait until all of them are acknowledged.

        Raises ValueError for a row without a valid topic or partition, and BrokerError.
        """
        filled = (part for part in rows if len(part))
        count = 0
        with broker_errors(self.clients.bootstrap_servers):
            first = next(filled, None)
            if first is None:
                return SentRecords(0)
            producer = self.clients.producer()
            pending: deque[RecordsFuture] = deque()
            try:
                for part in _chained(first, filled):
                    count += len(part)
                    pending.extend(self._sent(part, producer))
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
        return SentRecords(count)

    def commit(self, results: Sequence[SentRecords], batch_number: int | None = None) -> None:
        """Log the number of records. There is nothing to commit."""
        _LOG.info("sent %d records", sum(result.count for result in results))

    def abort(self, results: Sequence[SentRecords]) -> None:
        """Do nothing. Sent records stay, and a retry sends them again."""

    def _sent(self, rows: pa.RecordBatch, producer: Producer) -> Iterator[RecordsFuture]:
        content = self._content(rows)
        for topic, of_topic in self._by_topic(rows, content):
            partitions = _partitions(of_topic, producer, topic)
            if (partitions < 0).any():
                yield from _send_in_order(producer, topic, of_topic, partitions)
                continue
            for partition in np.unique(partitions).tolist():
                part = of_topic.filter(boolean_array(partitions == partition))
                yield _send_to(producer, topic, part, partition)

    def _by_topic(
        self, rows: pa.RecordBatch, content: pa.RecordBatch
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self.topic is not None:
            yield self.topic, content
            return
        topics = rows.column(self.numbers["topic"])
        if topics.null_count:
            raise ValueError(f"column topic: expected a topic in each row, found {topics.null_count} nulls")
        for topic in topics.unique().to_pylist():
            if not is_topic(topic):
                raise ValueError(f"column topic: expected a topic's name, found {topic!r}")
            yield topic, content.filter(pc.equal(topics, topic))

    def _content(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns timestamp, key, value, headers and partition, whether the rows have them or not.

        The timestamp is the current time. Spark's Kafka sink ignores a column `timestamp`, too.
        """
        types = {
            "key": pa.binary(),
            "value": pa.binary(),
            "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            "partition": pa.int32(),
        }
        columns = {}
        for name, kind in types.items():
            number = self.numbers.get(name)
            columns[name] = pa.nulls(len(rows), kind) if number is None else rows.column(number)
            if name in ("key", "value"):
                columns[name] = columns[name].cast(kind)
        if self.partition is not None:
            columns["partition"] = pa.array(np.full(len(rows), self.partition, np.int32))
        columns["timestamp"] = pa.array(np.full(len(rows), time.time_ns() // 1_000_000, np.int64))
        return pa.record_batch(columns)


def _chained(first: pa.RecordBatch, others: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from others


def _partitions(rows: pa.RecordBatch, producer: Producer, topic: str) -> NDArray[np.int32]:
    """Return the partition of each row, or -1 if the producer is to choose it.

    Rows without partition get one here if they have neither key nor value, or a header without value: the producer
    takes such records only as columns of one partition.
    """
    given = rows.column("partition")
    found = pc.fill_null(given, -1).to_numpy(zero_copy_only=False).copy()
    wrong = found[(found < 0) & pc.is_valid(given).to_numpy(zero_copy_only=False)]
    if len(wrong):
        raise ValueError(f"column partition: expected 0 or more, found {wrong[0]}")
    keys, values = rows.column("key"), rows.column("value")
    is_empty = pc.and_(pc.is_null(keys), pc.is_null(values)).to_numpy(zero_copy_only=False)
    is_special = (found < 0) & (is_empty | _has_null_header(rows.column("headers")))
    if is_special.any():
        partitions = sorted(producer.partitions_for(topic))
        for row in np.flatnonzero(is_special).tolist():
            key = keys[row].as_py()
            # As Kafka's partitioner has it.
            place = random.randrange(len(partitions)) if key is None else murmur2(key) & 0x7FFFFFFF
            found[row] = partitions[place % len(partitions)]
    chosen: NDArray[np.int32] = found
    return chosen


def _has_null_header(headers: pa.ListArray) -> NDArray[np.bool_]:
    """Return whether a row has a header without value."""
    found = np.zeros(len(headers), np.bool_)
    is_null = pc.is_null(pc.struct_field(headers.flatten(), "value"))
    found[pc.list_parent_indices(headers).filter(is_null).to_numpy()] = True
    return found


def _send_in_order(
    producer: Producer, topic: str, rows: pa.RecordBatch, partitions: NDArray[np.int32]
) -> Iterator[RecordsFuture]:
    """Send rows of which some have no partition. Neighbours with the same partition, or without, are sent together."""
    cuts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
    for start, stop in pairwise(cuts):
        part, partition = rows.slice(start, stop - start), int(partitions[start])
        if partition >= 0:
            yield _send_to(producer, topic, part, partition)
            continue
        headers = part.column("headers")
        pairs = None
        if headers.null_count < len(headers):
            pairs = [_pairs(one) for one in headers.to_pylist()]
        values, keys, times = (part.column(name).to_pylist() for name in ("value", "key", "timestamp"))
        yield producer.send_many(topic, values, keys, pairs, times)


def _send_to(producer: Producer, topic: str, rows: pa.RecordBatch, partition: int) -> RecordsFuture:
    columns = (rows.column(name) for name in ("timestamp", "key", "value", "headers"))
    return producer.send_columns(topic, *columns, partition=partition)


def _pairs(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes]] | None:
    return None if headers is None else [(one["key"], one["value"]) for one in headers]
