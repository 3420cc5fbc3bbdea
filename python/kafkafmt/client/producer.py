"""The producer of records, which builds batches natively and sizes them by their estimated compression (KIP-126)."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import kafka.errors as kafka_errors
from kafka.partitioner import DefaultPartitioner
from kafka.producer.future import FutureRecordMetadata as FailedSend

from _kafkafmt.client.sending import ManyRecords, RecordSender
from kafkafmt.client.accumulator import RecordFuture, RecordsFuture
from kafkafmt.client.accumulator.future import RecordSpan
from kafkafmt.client.base_producer import BaseProducer
from kafkafmt.client.clock import monotonic_ms
from kafkafmt.client.future import failed_send
from kafkafmt.client.raw_option import is_raw, refuse_raw, with_raw_option
from kafkafmt.client.raw_producer import RawProducer
from kafkafmt.client.record_size import MAX_OVERHEAD, ensure_fits, most_bytes_of_headers
from kafkafmt.types import TopicPartition, check_int, milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import Self

    from kafkafmt.client.transaction_state import OpenTransaction
    from kafkafmt.columns.write import Binary, Headers, Timestamps

_BYTES = frozenset({bytes, bytearray, memoryview, type(None)})


class Producer(RecordSender["RecordFuture | FailedSend"], BaseProducer):
    """A producer that builds batches natively, sizes them by their estimated compression, and splits large ones.

    It has the options, methods, futures and errors of kafka-python's KafkaProducer. A batch that is larger than its
    topic takes is split: before it is sent, if the brokers report `max.message.bytes`, else when a broker refuses it.
    Order and exactly-once delivery hold across a split. Several threads may use one Producer. Callbacks are called in
    its I/O thread.

    Options are those of KafkaProducer without `kafka_client`, and:

    buffer_memory: bytes that the batches of all partitions together may hold (default 32 MiB). `send` waits up to
        `max_block_ms` for room, then raises BufferExhaustedError. With a MemoryPlan, use its `producer_bytes`.
    budget: a MemoryBudget that several producers share; `buffer_memory` is then this producer's maximum of it. Callers
        wait for room in both, in the order of their calls. While a caller waits, batches are sent without lingering.
    compression_level: level of the codec, if it has levels; None for the codec's default.
    estimator: `recent` (the default), a RecentRatioEstimator; `kip126`, a CompressionRatioEstimator; or an estimator
        object, with other parameters or to share what it has learned.
    send_raw_bytes: True for a RawProducer, which sends whole batches (KIP-712); also `send.raw.bytes`.
    topic_limits: whether to ask the brokers for `max.message.bytes` with DescribeConfigs (default True). If they do
        not report it, batches are split when a broker refuses them.

    Requires brokers of 0.11 or later, because records are written in format v2.

    >>> from kafkafmt.net import Producer
    >>> with Producer(bootstrap_servers="localhost:9092", compression_type="lz4") as producer:  # doctest: +SKIP
    ...     producer.send("clicks", b"value", key=b"key").get(timeout=10).offset
    0
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = {**BaseProducer.DEFAULT_CONFIG, "send_raw_bytes": False}

    def __new__(cls, **configs: Any) -> Self:
        if cls is Producer and is_raw(configs, "send_raw_bytes"):
            return RawProducer(**configs)  # type: ignore[return-value]
        return super().__new__(cls)

    def __init__(self, **configs: Any) -> None:
        configs = with_raw_option(configs, "send_raw_bytes")
        refuse_raw(configs, "send_raw_bytes", type(self), RawProducer)
        super().__init__(configs)

    def _open(self, config: Mapping[str, Any]) -> None:
        super()._open(config)
        partitioner = config["partitioner"]
        self._key_serializer = _with_headers(config["key_serializer"])
        self._value_serializer = _with_headers(config["value_serializer"])
        self._chooses_by_key = type(partitioner) is DefaultPartitioner
        self._on_new_batch: Any = getattr(partitioner, "on_new_batch", None)
        if self._chooses_by_key and not (
            self._key_serializer or self._value_serializer or self._in_transactions
        ):
            self._begin_sending_natively(
                self._record_accumulator, self._partitions, self._sender.wakeup, self._max_request_size
            )

    # Records

    send = RecordSender.send

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: list[tuple[str, bytes]] | None,
        partition: int | None,
        timestamp_ms: int | datetime | None,
        transaction: OpenTransaction | None = None,
    ) -> RecordFuture | FailedSend:
        """Send a record that the native `send` does not take. transaction: None for the open one, if any."""
        if transaction is None:
            transaction = self._begin_sending()
        if value is None and key is None:
            raise ValueError("Need at least one: key or value")
        if partition is not None:
            check_int("partition", partition)
        if timestamp_ms is not None and type(timestamp_ms) is not int:
            timestamp_ms = milliseconds(timestamp_ms, "timestamp_ms")
        headers = [] if headers is None else headers
        key_bytes, value_bytes = self._serialized(topic, key, value, headers)
        max_block_ms = self._max_block_ms
        partitions = self._partitions.get(topic)
        if partitions is None:
            try:
                partitions, max_block_ms = self._await_partitions(topic)
            except kafka_errors.BrokerResponseError as error:
                return failed_send(TopicPartition(topic, -1 if partition is None else partition), error)
        is_sticky = False
        if partition is not None:
            topic_partition = partitions.get(partition)
        else:
            topic_partition = partitions.of_key(key_bytes) if self._chooses_by_key else None
        if topic_partition is None:
            topic_partition = self._partitions.choose(topic, partition, key, value, key_bytes, value_bytes)
            is_sticky = partition is None and key_bytes is None and self._on_new_batch is not None
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        self._add_partition(topic_partition, transaction)
        appended = self._record_accumulator.append(
            topic_partition,
            timestamp_ms,
            key_bytes,
            value_bytes,
            headers,
            now_ms=monotonic_ms(),
            max_block_ms=max_block_ms,
            abort_on_new_batch=is_sticky,
            transaction=transaction,
        )
        if appended is None:  # KIP-480: a record that would begin a batch goes to another partition
            self._on_new_batch(topic, self._metadata, topic_partition.partition)
            elsewhere = self._partitions.choose(topic, None, key, value, key_bytes, value_bytes)
            self._add_partition(elsewhere, transaction)
            appended = self._record_accumulator.append(
                elsewhere,
                timestamp_ms,
                key_bytes,
                value_bytes,
                headers,
                now_ms=monotonic_ms(),
                max_block_ms=max_block_ms,
                transaction=transaction,
            )
        future, is_news = appended
        if is_news:
            self._sender.wakeup()
        return future

    def _serialized(
        self, topic: str, key: Any, value: Any, headers: list[tuple[str, bytes]]
    ) -> tuple[bytes | None, bytes | None]:
        """Return key and value of a record as bytes. Raises RecordTooLargeError above `max_request_size`."""
        size = MAX_OVERHEAD + most_bytes_of_headers(headers)
        serializer = self._key_serializer
        key_bytes = key if serializer is None else serializer(topic, headers, key)
        serializer = self._value_serializer
        value_bytes = value if serializer is None else serializer(topic, headers, value)
        if type(key_bytes) not in _BYTES:
            raise TypeError(f"Unsupported type for serialized key: {type(key_bytes)}")
        if type(value_bytes) not in _BYTES:
            raise TypeError(f"Unsupported type for serialized value: {type(value_bytes)}")
        if key_bytes is not None:
            size += len(key_bytes)
        if value_bytes is not None:
            size += len(value_bytes)
        if size > self._max_request_size:
            ensure_fits(topic, key_bytes, value_bytes, headers, self._max_request_size)
        return key_bytes, value_bytes

    def _append(
        self,
        topic_partition: TopicPartition,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]] | None,
    ) -> RecordFuture:
        """Append a record that the native `send` has checked, and for which there is no batch or no room."""
        appended = self._record_accumulator._append(
            topic_partition,
            timestamp_ms,
            key,
            value,
            headers or (),
            monotonic_ms(),
            self._max_block_ms,
            False,
        )
        assert appended is not None
        if appended[1]:
            self._sender.wakeup()
        return appended[0]

    def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        keys: Iterable[Any] | None = None,
        headers: Iterable[list[tuple[str, bytes]] | None] | None = None,
        timestamps_ms: Iterable[int | datetime | None] | None = None,
        *,
        partition: int | None = None,
    ) -> RecordsFuture:
        """Send one record per value, as `send` does, and return one future for all.

        values, keys, headers, timestamps_ms: what `send` takes, one for each record; None if no record has any.
        partition: the number of the partition for all records; None for the partitioner's choice for each.

        The future's `get` returns the offset of each record, int64, or raises the error of the first record that
        failed.

        Raises as `send` does, for the first record that cannot be sent; the error has the future of the records before
        it, as `appended`. Raises the broker's error if it refuses the topic's metadata, and ValueError if lengths
        differ.
        """
        records = ManyRecords(values, keys, headers, timestamps_ms)
        try:
            transaction = self._begin_sending()
            while True:
                self._send_next(topic, records, partition)
                if records.count == len(records):
                    return _future_of(records)
                value, key, record_headers, timestamp_ms = records.next_record()
                future = self._send(topic, value, key, record_headers, partition, timestamp_ms, transaction)
                if not isinstance(future, RecordFuture):
                    raise future.exception
                records.add(future)
        except Exception as error:
            error.appended = _future_of(records)  # type: ignore[attr-defined]
            raise

    def send_columns(
        self,
        topic: str,
        timestamps: Timestamps,
        keys: Binary,
        values: Binary,
        headers: Headers = None,
        *,
        partition: int,
    ) -> RecordsFuture:
        """Send one record per row of columns to one partition, without a Python object per record.

        The columns are those of `RecordBatchBuilder.append_columns`: numpy or Arrow, timestamps in milliseconds. Their
        records go into batches of their own, which the caller's thread compresses. The future's `get` returns the
        offset of each record, int64, or raises the error of the first record that failed. Serializers and the
        partitioner are not called.

        Raises as `send` does. BufferExhaustedError has the future of the records that were appended, as `appended`.
        """
        transaction = self._begin_sending()
        topic_partition, max_block_ms = self._find_partition(topic, partition, transaction)
        try:
            return self._record_accumulator.append_columns(
                topic_partition,
                timestamps,
                keys,
                values,
                headers,
                now_ms=monotonic_ms(),
                max_block_ms=max_block_ms,
                transaction=transaction,
            )
        finally:
            self._sender.wakeup()


def _with_headers(serializer: Any) -> Callable[[str, list[tuple[str, bytes]], Any], Any] | None:
    """Return the function that serializes a key or a value; None without a serializer.

    Serializers of before kafka-python 3 take no headers.
    """
    if serializer is None:
        return None
    serialize: Callable[..., Any] = serializer.serialize
    try:
        signature = inspect.signature(serialize)
    except ValueError:  # a function in C without a signature
        return serialize
    try:
        signature.bind("", [], None)
    except TypeError:
        return lambda topic, headers, data: serialize(topic, data)
    return serialize


def _future_of(records: ManyRecords) -> RecordsFuture:
    """Return the future of the records that were appended."""
    return RecordsFuture([RecordSpan(*span) for span in records.spans_of_batches()], records.order())
