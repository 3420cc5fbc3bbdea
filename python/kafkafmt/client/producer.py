"""The producer: an accumulator of batches (KIP-126), and a sender with connections of our own.

kafka-python's classes do what carries no records: metadata, and the requests of transactions (`ControlPlane`). Its
KafkaProducer gives the names of options and methods.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import kafka.errors as kafka_errors
from kafka.partitioner import DefaultPartitioner
from kafka.producer.future import FutureRecordMetadata as FailedSend

from _kafkafmt.client.partitions import TopicPartitions
from _kafkafmt.client.sending import ManyRecords, RecordSender
from kafkafmt.client.accumulator import RecordFuture, RecordsFuture, Undelivered
from kafkafmt.client.accumulator.future import RecordSpan
from kafkafmt.client.clock import monotonic_ms
from kafkafmt.client.control_plane import ControlPlane
from kafkafmt.client.errors import ProducerClosedError, UndeliveredError
from kafkafmt.client.future import failed_send
from kafkafmt.client.metrics import values_by_group
from kafkafmt.client.partitions import PartitionsByTopic
from kafkafmt.client.producer_config import DEFAULT_CONFIG, ensure_broker_takes, producer_config
from kafkafmt.client.producer_parts import open_metrics, open_parts
from kafkafmt.client.record_size import MAX_OVERHEAD, ensure_fits, most_bytes_of_headers
from kafkafmt.client.topic_metadata import await_topic, update_metadata
from kafkafmt.client.transactional import Transactional
from kafkafmt.types import TopicPartition, milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import Self

    from kafkafmt.columns.write import Binary, Headers, Timestamps

_BYTES = frozenset({bytes, bytearray, memoryview, type(None)})
# How long `close` waits for the I/O thread to end after it has aborted the batches.
_ABORT_SECONDS = 10.0
# How long a producer that was not closed has for it at the end of the program, as KafkaProducer.
_LAST_SECONDS = 1.0
# How long `close` waits for the connections of the control plane.
_CLOSE_SECONDS = 1.0


class Producer(RecordSender["RecordFuture | FailedSend"], Transactional):
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
    topic_limits: whether to ask the brokers for `max.message.bytes` with DescribeConfigs (default True). If they do
        not report it, batches are split when a broker refuses them.

    Requires brokers of 0.11 or later, because records are written in format v2.

    >>> from kafkafmt.net import Producer
    >>> with Producer(bootstrap_servers="localhost:9092", compression_type="lz4") as producer:  # doctest: +SKIP
    ...     producer.send("clicks", b"value", key=b"key").get(timeout=10).offset
    0
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = DEFAULT_CONFIG

    def __init__(self, **configs: Any) -> None:
        self._is_closing = self._closed = True  # until it is open
        self._cleanup: Callable[[], None] | None = None
        self.config = config = producer_config(configs, self.DEFAULT_CONFIG)
        self._metrics = open_metrics(config)
        self._control = ControlPlane({**config, "metric_group_prefix": "producer"}, self._metrics)
        self._control.start(config["bootstrap_timeout_ms"])
        try:
            config["api_version"] = self._control.versions.broker_version
            ensure_broker_takes(config)
            self._open(config)
        except BaseException:
            self._control.close()
            raise
        self._pid = os.getpid()
        self._is_closing = self._closed = False
        self._cleanup = _cleanup_of(self)
        atexit.register(self._cleanup)

    def _open(self, config: Mapping[str, Any]) -> None:
        """Create the accumulator and its sender, and start the I/O thread."""
        self._metadata = self._control.cluster
        parts = open_parts(config, self._control, self._metrics)
        self._io, self._limits, self._transactions, self._record_accumulator, self._sender = parts
        partitioner = config["partitioner"]
        self._partitions = PartitionsByTopic(self._metadata, self._limits, partitioner)
        self._metadata.add_listener(self._partitions)
        self._key_serializer = config["key_serializer"]
        self._value_serializer = config["value_serializer"]
        self._max_request_size = config["max_request_size"]
        self._max_block_ms = config["max_block_ms"]
        self._chooses_by_key = type(partitioner) is DefaultPartitioner
        self._on_new_batch: Any = getattr(partitioner, "on_new_batch", None)
        self._in_transactions = self._transactions if config["transactional_id"] else None
        if self._chooses_by_key and not (
            self._key_serializer or self._value_serializer or self._in_transactions
        ):
            self._begin_sending_natively(
                self._record_accumulator, self._partitions, self._sender.wakeup, self._max_request_size
            )
        self._io.start()
        self._sender.wakeup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close(timeout=_LAST_SECONDS, null_logger=True)

    def __str__(self) -> str:
        return (
            f"<KafkaProducer client_id={self.config['client_id']} "
            f"transactional_id={self.config['transactional_id']}>"
        )

    # Cluster and metrics

    def bootstrap_connected(self) -> bool:
        """Return whether the producer is connected to a bootstrap broker, and has no metadata yet."""
        return bool(self._control.client.bootstrap_connected())

    def partitions_for(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions. Waits up to `max_block_ms` for the metadata."""
        return await_topic(self._metadata, topic, self._max_block_ms)

    def metrics(self, raw: bool = False) -> dict[Any, Any] | None:
        """Return the metrics by group and name; None without `metrics_enabled`. raw: kafka-python's objects by name."""
        if self._metrics is None:
            return None
        return dict(self._metrics.metrics) if raw else values_by_group(self._metrics)

    def batch_metrics(self) -> dict[str, float]:
        """Return the metrics of batches by Kafka's name, splits among them (KIP-126), also without `metrics_enabled`.

        Averages and rates are over the last minute. Totals stay readable after `close`.
        """
        return self._record_accumulator.metrics.values(monotonic_ms())

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
    ) -> RecordFuture | FailedSend:
        """Send a record that the native `send` does not take."""
        if self._closed:
            raise ProducerClosedError("KafkaProducer already closed!")
        if value is None and key is None:
            raise ValueError("Need at least one: key or value")
        if timestamp_ms is not None and type(timestamp_ms) is not int:
            timestamp_ms = milliseconds(timestamp_ms, "timestamp_ms")
        size = MAX_OVERHEAD
        if headers is None:
            headers = []
        else:
            size += most_bytes_of_headers(headers)
        serializer = self._key_serializer
        key_bytes = key if serializer is None else self._serialize(serializer, topic, headers, key)
        serializer = self._value_serializer
        value_bytes = value if serializer is None else self._serialize(serializer, topic, headers, value)
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
        if self._in_transactions is not None:
            self._in_transactions.maybe_add_partition_to_transaction(topic_partition)
        appended = self._record_accumulator.append(
            topic_partition,
            timestamp_ms,
            key_bytes,
            value_bytes,
            headers,
            now_ms=monotonic_ms(),
            max_block_ms=max_block_ms,
            abort_on_new_batch=is_sticky,
        )
        if appended is None:  # KIP-480: a record that would begin a batch goes to another partition
            self._on_new_batch(topic, self._metadata, topic_partition.partition)
            elsewhere = self._partitions.choose(topic, None, key, value, key_bytes, value_bytes)
            appended = self._append_to(elsewhere, timestamp_ms, key_bytes, value_bytes, headers, max_block_ms)
        future, is_news = appended
        if is_news:
            self._sender.wakeup()
        return future

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

    def _append_to(
        self,
        topic_partition: TopicPartition,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]],
        max_block_ms: float,
    ) -> tuple[RecordFuture, bool]:
        """Append a record to the partition that the sticky partitioner now chooses, in its open batch or a new one."""
        if self._in_transactions is not None:
            self._in_transactions.maybe_add_partition_to_transaction(topic_partition)
        appended = self._record_accumulator.append(
            topic_partition,
            timestamp_ms,
            key,
            value,
            headers,
            now_ms=monotonic_ms(),
            max_block_ms=max_block_ms,
        )
        assert appended is not None
        return appended

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
            while True:
                self._send_next(topic, records, partition)
                if records.count == len(records):
                    return _future_of(records)
                value, key, record_headers, timestamp_ms = records.next_record()
                future = self._send(topic, value, key, record_headers, partition, timestamp_ms)
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
        topic_partition, max_block_ms = self._begin_sending(topic, partition)
        try:
            return self._record_accumulator.append_columns(
                topic_partition,
                timestamps,
                keys,
                values,
                headers,
                now_ms=monotonic_ms(),
                max_block_ms=max_block_ms,
            )
        finally:
            self._sender.wakeup()

    def _begin_sending(self, topic: str, partition: int) -> tuple[TopicPartition, float]:
        """Return the partition, which is added to an open transaction, and the rest of `max_block_ms`."""
        if self._closed:
            raise ProducerClosedError("KafkaProducer already closed!")
        max_block_ms = self._max_block_ms
        partitions = self._partitions.get(topic)
        if partitions is None:
            partitions, max_block_ms = self._await_partitions(topic)
        topic_partition = partitions.get(partition)
        if topic_partition is None:  # the partition may be newer than the metadata
            if not self._io.is_current:
                update_metadata(self._metadata, max_block_ms)
            topic_partition = self._partitions.choose(topic, partition, None, None, None, None)
        if self._in_transactions is not None:
            self._in_transactions.maybe_add_partition_to_transaction(topic_partition)
        return topic_partition, max_block_ms

    def _await_partitions(self, topic: str) -> tuple[TopicPartitions, float]:
        """Wait for the metadata of a topic. Return its partitions, and the rest of `max_block_ms`.

        A callback does not wait: its thread receives the records' responses.
        """
        began_ms = monotonic_ms()
        most_ms = 0 if self._io.is_current else self._max_block_ms
        try:
            await_topic(self._metadata, topic, most_ms)
        except kafka_errors.KafkaTimeoutError:
            reason = (
                "a callback does not wait for it"
                if self._io.is_current
                else "there is no such topic, or no broker answers"
            )
            raise kafka_errors.KafkaTimeoutError(
                f"{topic}: not found within {most_ms / 1000:g} s (max_block_ms): {reason}"
            ) from None
        partitions = self._partitions.get(topic)
        if partitions is None:
            raise ValueError(f"Partitioner did not assign a partition for topic {topic}!")
        return partitions, max(self._max_block_ms - (monotonic_ms() - began_ms), 0)

    def _serialize(self, serializer: Any, topic: str, headers: list[tuple[str, bytes]], data: Any) -> Any:
        """Serialize a key or a value. Serializers of before kafka-python 3 do not take headers."""
        try:
            return serializer.serialize(topic, headers, data)
        except TypeError:
            return serializer.serialize(topic, data)

    # Flush and close

    def flush(self, timeout: float | None = None) -> None:
        """Send all waiting records without lingering, and wait until they are done.

        timeout: the most seconds to wait; None to wait without limit.

        Raises KafkaTimeoutError, whose message counts the records that are not delivered. Raises IllegalStateError if
        a callback calls it: it would wait for its own thread (KIP-1118).
        """
        self._refuse_in_callback("flush")
        self._record_accumulator.begin_flush()
        self._sender.wakeup()
        try:
            self._record_accumulator.await_flush_completion(timeout)
        except TimeoutError as error:
            raise kafka_errors.KafkaTimeoutError(str(error)) from None

    def close(self, timeout: float | None = None, null_logger: bool = False) -> None:
        """Flush for up to `timeout` seconds (None: until all is done), then end the threads.

        Records that are not delivered by then fail. Once their futures have failed, raises UndeliveredError with their
        number by partition. With `null_logger`, as at exit, nothing is raised. If interrupted, it gives up the records
        that are not delivered. Raises ValueError for a negative timeout.

        While it flushes, `send` still takes records, as callbacks may send again. In a child process after a fork it
        does nothing: the threads are those of the parent process.
        """
        if timeout is None:
            timeout = threading.TIMEOUT_MAX
        if not 0 <= timeout <= threading.TIMEOUT_MAX:
            raise ValueError(f"Invalid timeout: {timeout}")
        if getattr(self, "_is_closing", True):
            return
        self._is_closing = True
        if self._cleanup is not None:
            atexit.unregister(self._cleanup)
        if self._pid != os.getpid():
            self._closed = True
            return
        try:
            undelivered = self._end_sender(timeout)
        except BaseException:  # such as KeyboardInterrupt
            self._sender.force_close()
            raise
        finally:
            self._closed = True
            self._control.close(_CLOSE_SECONDS)
        if self._metrics:
            self._metrics.close()
        for serializer in (self._key_serializer, self._value_serializer):
            if hasattr(serializer, "close"):
                serializer.close()
        if undelivered and not null_logger:
            raise UndeliveredError(timeout, undelivered)

    def _end_sender(self, timeout: float) -> Undelivered:
        """Flush for up to `timeout` seconds, then end the I/O thread. Return the records that were given up."""
        sender, io = self._sender, self._io
        if timeout > 0 and not io.is_current:
            deadline = time.monotonic() + timeout
            with suppress(kafka_errors.KafkaTimeoutError):
                self.flush(timeout)
            self._closed = True
            sender.initiate_close()
            io.join(min(max(deadline - time.monotonic(), 0), threading.TIMEOUT_MAX))
        if io.is_alive:
            sender.force_close()
            io.join(_ABORT_SECONDS)
        if io.is_alive and not io.is_current:  # a callback keeps the thread
            sender.abort_batches()
        return sender.undelivered


def _cleanup_of(producer: Producer) -> Callable[[], None]:
    """Return the function that closes a producer at exit, and does not keep it alive."""
    reference = weakref.ref(producer)

    def close() -> None:
        alive = reference()
        if alive is not None:
            alive.close(timeout=_LAST_SECONDS, null_logger=True)

    return close


def _future_of(records: ManyRecords) -> RecordsFuture:
    """Return the future of the records that were appended."""
    return RecordsFuture([RecordSpan(*span) for span in records.spans_of_batches()], records.order())
