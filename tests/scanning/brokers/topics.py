"""Ranges of topics of real brokers, and how long a scan waits for a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

import kafkafmt as kf
from kafkafmt.client.raw_consumer import RawConsumer
from kafkafmt.columns.read import COLUMNS, arrow_schema
from kafkafmt.scanning.brokers.clients import ClientConfig
from kafkafmt.scanning.brokers.options import BrokerOptions, OptionNames
from kafkafmt.scanning.brokers.records import read_ranges
from kafkafmt.scanning.brokers.runs import PartitionRange
from kafkafmt.scanning.options import ReadColumns

if TYPE_CHECKING:
    from broker.broker import Broker

NAMES = OptionNames("skip", "timeout")
# A scan waits about 5 seconds for a cluster. Without a limit of its own it would wait for kafka-python's 30 seconds.
GIVES_UP_SECONDS = 25


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
