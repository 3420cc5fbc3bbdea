"""The consumer of records: objects as kafka-python's, or columns without an object per record."""

from __future__ import annotations

import warnings
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar

from kafka.serializer import Deserializer, DeserializeWrapper

from _kafkafmt.columns.columns import ColumnBuilder
from kafkafmt.client.base_consumer import BaseConsumer
from kafkafmt.client.partition_records import (
    ArrowDecoder,
    Decoder,
    NumpyDecoder,
    PartitionRecords,
    RecordDecoder,
)
from kafkafmt.client.raw_consumer import RawConsumer
from kafkafmt.client.raw_option import is_raw, refuse_raw, with_raw_option
from kafkafmt.columns.parts import join_columns
from kafkafmt.columns.read import COLUMNS, numpy_columns
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from kafka.consumer.fetcher import ConsumerRecord
    from kafka.structs import TopicPartition as KafkaTopicPartition
    from typing_extensions import Self

    from kafkafmt.client.fetch_metrics import FetchMetrics
    from kafkafmt.client.fetch_queue import Fetched
    from kafkafmt.client.partition_fetches import Part
    from kafkafmt.columns.read import Column


class Consumer(BaseConsumer):
    """A consumer with the methods, the options and the records of kafka-python's KafkaConsumer.

    `poll` and iteration return kafka-python's ConsumerRecord objects. `poll_arrow` and `poll_numpy` return columns,
    without an object per record. All of them move the positions, and may be called in turns.

    Options are those of kafka-python's KafkaConsumer, and:

    budget: a MemoryBudget that bounds the bytes that are fetched and not returned. Several consumers may share it. One
        batch may be larger. A partition whose bytes are not free waits, and is fetched later.
    fetch_raw_bytes: True for a RawConsumer, which returns whole batches (KIP-712); also `fetch.raw.bytes`.

    `poll` raises CorruptRecordError for a damaged batch, after the records before it were returned. It raises the error
    again until the position changes: seek to its `next_offset`. Other partitions continue. CRCs are checked unless
    `check_crcs=False`.
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = {**BaseConsumer.DEFAULT_CONFIG, "fetch_raw_bytes": False}

    def __new__(cls, *topics: str, **configs: Any) -> Self:
        if cls is Consumer and is_raw(configs, "fetch_raw_bytes"):
            return RawConsumer(*topics, **configs)  # type: ignore[return-value]
        return super().__new__(cls)

    def __init__(self, *topics: str, **configs: Any) -> None:
        configs = with_raw_option(configs, "fetch_raw_bytes")
        refuse_raw(configs, "fetch_raw_bytes", type(self), RawConsumer)
        for name in ("key_deserializer", "value_deserializer"):
            given = configs.get(name)
            if given is not None and not isinstance(given, Deserializer):
                warnings.warn(
                    f"{name} does not implement kafka.serializer.Deserializer",
                    DeprecationWarning,
                    stacklevel=2,
                )
        super().__init__(*topics, **configs)

    def _open_part(self, fetched: Fetched, metrics: FetchMetrics) -> Part:
        return PartitionRecords(fetched, metrics, check_crcs=self.config["check_crcs"])

    @cached_property
    def _records(self) -> RecordDecoder:
        key, value = (self.config[name] for name in ("key_deserializer", "value_deserializer"))
        return RecordDecoder(_deserializer(key), _deserializer(value))

    @cached_property
    def _arrow(self) -> ArrowDecoder:
        return ArrowDecoder()

    @cached_property
    def _numpy(self) -> NumpyDecoder:
        return NumpyDecoder(COLUMNS)

    def _poll_records(
        self, timeout_ms: float, max_records: int | None
    ) -> dict[KafkaTopicPartition, list[ConsumerRecord]]:
        return self._poll_with(partial(_take, self._records), timeout_ms, max_records)

    def poll_arrow(self, max_records: int | None = None, timeout_ms: float = 0) -> pa.Table:
        """Wait up to `timeout_ms` for records. Return up to `max_records` of them as a table.

        The columns are those of `Records.to_arrow`: key, value, topic, partition, offset, timestamp, timestampType and
        headers. Keys and values are bytes: deserializers are not called. Positions move and errors are raised as with
        `poll`. The table is empty after the time.

        max_records: None for `max_poll_records`.

        Raises InvalidRecordError, after the records before it, for a record whose timestamp is beyond the year 294247.
        The message has partition and offset. The position stays there: `poll` and `poll_numpy` return the record.
        """
        import pyarrow as pa

        polled = self._poll_with(partial(_take, self._arrow), timeout_ms, max_records)
        batches = [batch for of_partition in polled.values() for batch in of_partition]
        return pa.Table.from_batches(batches, self._arrow.schema)

    def poll_numpy(self, max_records: int | None = None, timeout_ms: float = 0) -> dict[str, Column]:
        """Wait up to `timeout_ms` for records. Return up to `max_records` of them as numpy columns by name.

        The columns are those of `Records.to_numpy` with topic and partition. Keys and values are bytes: deserializers
        are not called. Positions move and errors are raised as with `poll`. The columns are empty after the time.

        max_records: None for `max_poll_records`.
        """
        polled = self._poll_with(partial(_take, self._numpy), timeout_ms, max_records)
        parts = [part for of_partition in polled.values() for part in of_partition]
        if parts:
            return join_columns(parts)
        return numpy_columns(
            ColumnBuilder(COLUMNS, large_offsets=True).take(), COLUMNS, 0, TopicPartition("", 0)
        )

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        """Leave the group and close the connections and the deserializers.

        autocommit: commit the positions first, if `enable_auto_commit` is set.
        timeout_ms: how long to wait for that; None for `request_timeout_ms`.
        """
        if self._closed:
            return
        super().close(autocommit, timeout_ms)
        for name in ("key_deserializer", "value_deserializer"):
            with suppress(AttributeError):
                self.config[name].close()


def _take(decoder: Decoder, part: PartitionRecords, most: int) -> list[Any]:
    return part.take(decoder, most)


def _deserializer(given: Any) -> Deserializer | None:
    return given if given is None or isinstance(given, Deserializer) else DeserializeWrapper(given)
