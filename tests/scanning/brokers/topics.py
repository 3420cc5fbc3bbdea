"""Topics of real brokers, what is sent to them, and ranges of their records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import kafkafmt as kf
from broker.produce import produce
from kafkafmt.client.raw_consumer import RawConsumer
from kafkafmt.columns.read import COLUMNS, arrow_schema
from kafkafmt.scanning.brokers.clients import ClientConfig
from kafkafmt.scanning.brokers.options import BrokerOptions, OptionNames
from kafkafmt.scanning.brokers.records import read_ranges
from kafkafmt.scanning.brokers.runs import PartitionRange
from kafkafmt.scanning.options import ReadColumns

if TYPE_CHECKING:
    from broker.broker import Broker

RECORDS = 25
START_MS = 1_700_000_000_000
NAMES = OptionNames("skip", "timeout")


def batch(number: int, records: int = RECORDS) -> bytes:
    """One batch, of one codec after the other."""
    builder = kf.RecordBatchBuilder(codec=list(kf.Codec)[number % len(kf.Codec)])
    for record in range(records):
        headers = [("number", b"%d" % number), ("none", None)] if record % 3 == 0 else []
        value = None if record % 7 == 3 else b"value %d of batch %d" % (record, number)
        builder.append(START_MS + number * 1000 + record, b"key-%d" % record, value, headers)
    return builder.build()


def send(broker: Broker, topic: str, numbers: Iterable[int], partitions: int = 1) -> None:
    """Send batches of these numbers to one partition after the other."""
    for number in numbers:
        assert produce(broker, topic, batch(number), number % partitions) == 0


def options_of(broker: Broker, isolation: str = "read_uncommitted", **options: Any) -> BrokerOptions:
    given = {"bootstrap.servers": broker.bootstrap, "isolation.level": isolation}
    return BrokerOptions(ClientConfig.parse(given, RawConsumer, {}), NAMES, **options)


def read_columns(*columns: str) -> ReadColumns:
    return ReadColumns(columns, arrow_schema(columns))


def read_range(
    topic: str,
    start: int,
    end: int,
    options: BrokerOptions,
    columns: tuple[str, ...] = COLUMNS,
    batch_bytes: int = 1 << 20,
) -> pa.Table:
    output = read_columns(*columns)
    wanted = PartitionRange(kf.TopicPartition(topic, 0), start, end)
    return pa.Table.from_batches(read_ranges([wanted], options, output, batch_bytes), output.schema)
