"""The configuration of the Kafka clients of driver and tasks, by the options `kafka.*`. Requires the extra `net`."""

from __future__ import annotations

from collections.abc import Mapping

from kafkafmt.net import Producer, RawConsumer, RawProducer
from kafkafmt.scanning.brokers.clients import ClientConfig

PREFIX = "kafka."

_NOT_OF_CONSUMERS = {
    "auto_offset_reset": "startingOffsets sets where to begin",
    "enable_auto_commit": "offsets are kept in the checkpoint of the query",
    "fetch_raw_bytes": "this source reads only batches",
    "group_id": "partitions are assigned, and offsets kept in the checkpoint of the query",
    "keep_control_batches": "includeControlBatches sets it",
}
_NOT_OF_PRODUCERS = {
    "compression_type": "batches go out as they are",
    "estimator": "batches go out as they are",
    "send_raw_bytes": "this sink writes only batches",
    "transactional_id": "a task that fails is run again by Spark, with another producer",
}
_NOT_OF_RECORD_PRODUCERS = {
    "key_serializer": "keys are sent as bytes; convert them in the DataFrame",
    "value_serializer": "values are sent as bytes; convert them in the DataFrame",
    "send_raw_bytes": "rows with a column batch, and none named value, are sent as batches",
    "transactional_id": "a task that fails is run again by Spark, with another producer",
}


def parse_consumers(given: Mapping[str, str]) -> ClientConfig:
    """Parse options of consumers. Raises ValueError, in one line, for unknown options and those fixed here."""
    return ClientConfig.parse(given, RawConsumer, _NOT_OF_CONSUMERS, PREFIX)


def parse_producers(given: Mapping[str, str]) -> ClientConfig:
    """Parse options of producers of batches. Raises the errors of `parse_consumers`."""
    return ClientConfig.parse(given, RawProducer, _NOT_OF_PRODUCERS, PREFIX)


def parse_record_producers(given: Mapping[str, str]) -> ClientConfig:
    """Parse options of producers of records. Raises the errors of `parse_consumers`."""
    return ClientConfig.parse(given, Producer, _NOT_OF_RECORD_PRODUCERS, PREFIX)
