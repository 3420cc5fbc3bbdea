"""Topics of real brokers: reads and writes of their batches without a JVM."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import kafkafmt as kf
from kafkafmt.log import LogDirectory
from kafkafmt.spark.kafka.offset_stream import KafkaStream
from kafkafmt.spark.kafka.options import KafkaReadOptions
from kafkafmt.spark.kafka.reading import COLUMN_TYPES, read_range
from kafkafmt.spark.kafka_data_source import KafkaDataSource
from kafkafmt.spark.source.schema import OutputColumns, ddl
from kafkafmt.spark.stream_offsets import Offsets
from spark.reads import struct

if TYPE_CHECKING:
    from broker.broker import Broker

WAIT_SECONDS = 60

Record = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def stored_count(broker: Broker, topic: str) -> int:
    """How many records the log of partition 0 has."""
    return sum(one.count for one in LogDirectory(broker.log_dir).partition((topic, 0)).batches())


def options_of(broker: Broker, topic: str, **options: object) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": broker.bootstrap, "unit": "batches", "subscribe": topic}
    return {**given, **{name.replace("__", "."): str(value) for name, value in options.items()}}


def rows(options: dict[str, str]) -> list[dict[str, Any]]:
    """What a read has, a batch each, in the order of the tasks."""
    source = KafkaDataSource(options)
    reader = source.reader(struct(source.schema()))
    return [row for task in reader.partitions() for part in reader.read(task) for row in part.to_pylist()]


def spans(rows: Iterable[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """Partition, first and last offset of each row."""
    return [(row["partition"], row["baseOffset"], row["lastOffset"]) for row in rows]


def records(rows: Iterable[dict[str, Any]]) -> list[Record]:
    """Partition, offset, timestamp, key, value and headers of each record in the batches of rows."""
    return [
        (row["partition"], one.offset, one.timestamp, one.key, one.value, tuple(one.headers))
        for row in rows
        for one in kf.MemoryRecords(row["batch"]).records()
    ]


class Query:
    """What Spark does with a stream: micro-batch after micro-batch, from what the one before came to."""

    def __init__(self, options: dict[str, str], reached: Offsets | None = None) -> None:
        self.options = KafkaReadOptions.parse_stream(options)
        schema = struct(ddl(COLUMN_TYPES, COLUMN_TYPES))
        self.output = OutputColumns.among(COLUMN_TYPES, None, schema)
        self.stream = KafkaStream(self.options)
        self.reached: Offsets = self.stream.initial_offsets() if reached is None else reached

    def trigger(self) -> list[dict[str, Any]]:
        """The rows of the next micro-batch."""
        end = self.stream.latest_offsets(self.reached, self.options.limit)
        tasks = self.stream.tasks(self.reached, end)
        self.reached = end
        return [row for task in tasks for part in self._read(task) for row in part.to_pylist()]

    def _read(self, task: Any) -> Iterable[pa.RecordBatch]:
        return read_range(task, self.options, self.output)


def arrow(batches: Sequence[tuple[str, int, bytes]]) -> pa.RecordBatch:
    """Rows for the sink: topic, partition and batch."""
    schema = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("batch", pa.binary())])
    return pa.RecordBatch.from_pylist(
        [{"topic": topic, "partition": partition, "batch": data} for topic, partition, data in batches],
        schema,
    )
