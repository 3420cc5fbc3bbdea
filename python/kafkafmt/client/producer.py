"""kafka-python's producer with kafkafmt's accumulator and encoder in place of its own (KIP-126).

Connections, metadata, the sender's thread, idempotence, transactions and configuration are kafka-python's. Its
constructor assigns an accumulator, a transaction manager and a sender to attributes. Here these are properties, whose
setters create kafkafmt's objects instead, before anything has used kafka-python's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import kafka.errors as kafka_errors
from kafka import KafkaProducer
from kafka.net.compat import KafkaNetClient
from kafka.partitioner import DefaultPartitioner
from kafka.producer.future import FutureProduceResult
from kafka.producer.future import FutureRecordMetadata as FailedSend

from kafkafmt.build.estimator import RatioEstimator
from kafkafmt.client import metrics
from kafkafmt.client.accumulator import AccumulatorOptions, RecordFuture, RecordsFuture, Undelivered
from kafkafmt.client.clock import monotonic_ms
from kafkafmt.client.errors import ProducerClosedError, RecordTooLargeError, UndeliveredError
from kafkafmt.client.limits import TopicLimits
from kafkafmt.client.partitions import PartitionsByTopic, TopicPartitions
from kafkafmt.client.sender import ProducerSender
from kafkafmt.client.sender_accumulator import ProducerAccumulator, SenderAccumulator
from kafkafmt.client.transactions import ProducerTransactions
from kafkafmt.memory import MemoryBudget
from kafkafmt.types import Codec, TopicPartition, milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    from kafka.producer.record_accumulator import RecordAccumulator as KafkaPythonAccumulator
    from kafka.producer.sender import Sender
    from kafka.producer.transaction_manager import TransactionManager

    from kafkafmt.columns.write import Binary, Headers, Timestamps

_BYTES = frozenset({bytes, bytearray, memoryview, type(None)})
# An upper bound of the bytes around key, value and headers of a record in a batch of its own (61 + 21 + varints).
_MAX_OVERHEAD = 128
_MAX_HEADER_OVERHEAD = 10  # two varints
_CODECS = {None: Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
_ACKS = (0, 1, -1, "all")
# How long `close` waits for the sender's thread to end after it has aborted the batches.
_ABORT_SECONDS = 10.0


class Producer(KafkaProducer):  # type: ignore[misc]
    """A KafkaProducer that builds batches natively, sizes them by their estimated compression, and splits large ones.

    A batch that is larger than its topic takes is split: before it is sent, if the brokers report
    `max.message.bytes`, else when a broker refuses it. Order and exactly-once delivery hold across a split.
    Several threads may use one Producer, as with KafkaProducer. Callbacks are called in the sender's thread.

    Options are those of kafka-python's KafkaProducer, and:

    buffer_memory: bytes that the batches of all partitions together may hold (default 32 MiB). `send` waits up to
        `max_block_ms` for room, then raises BufferExhaustedError. With a MemoryPlan, use its `producer_bytes`.
    budget: a MemoryBudget that several producers share; `buffer_memory` is then this producer's maximum of it. Callers
        wait for room in both, in the order of their calls. While a caller waits, batches are sent without lingering.
    compression_level: level of the codec, if it has levels; None for the codec's default.
    estimator: a CompressionRatioEstimator, to set its steps or to share what it has learned, or a RecentRatioEstimator;
        None for a CompressionRatioEstimator as in KIP-126.
    topic_limits: whether to ask the brokers for `max.message.bytes` with DescribeConfigs (default True). If they do
        not report it, batches are split when a broker refuses them.

    Requires brokers of 0.11 or later, because records are written in format v2.

    >>> from kafkafmt.net import Producer
    >>> with Producer(bootstrap_servers="localhost:9092", compression_type="lz4") as producer:  # doctest: +SKIP
    ...     producer.send("clicks", b"value", key=b"key").get(timeout=10).offset
    0
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = {
        **KafkaProducer.DEFAULT_CONFIG,
        "buffer_memory": AccumulatorOptions.buffer_memory,
        "budget": None,
        "compression_level": None,
        "estimator": None,
        "topic_limits": True,
    }

    # Every codec is available, because kafkafmt includes them. The numbers are those of the batch header.
    _COMPRESSORS: ClassVar[dict[Any, Any]] = {
        name: (lambda: True, int(codec)) for name, codec in _CODECS.items()
    }

    def __init__(self, **configs: Any) -> None:
        self._options = _accumulator_options({**self.DEFAULT_CONFIG, **configs})
        estimator = configs.get("estimator")
        if not isinstance(estimator, RatioEstimator | None):
            raise TypeError(f"estimator: expected one of kafkafmt's or with its methods, found {estimator!r}")
        budget = configs.get("budget")
        if not isinstance(budget, MemoryBudget | None):
            raise TypeError(f"budget: expected a MemoryBudget, found {budget!r}")
        if configs.get("acks", "all") not in _ACKS:
            raise ValueError(f"acks: expected 0, 1, -1 or 'all', found {configs['acks']!r}")
        client_type = configs.get("kafka_client", KafkaNetClient)

        def open_client(**client_configs: Any) -> KafkaNetClient:
            self._client = client_type(**client_configs)
            return self._client

        super().__init__(**{**configs, "kafka_client": open_client})
        self.config["kafka_client"] = client_type  # not a closure that refers to self
        self._partitions = PartitionsByTopic(self._metadata, self._limits)
        self._metadata.add_listener(self._partitions)
        self._key_serializer = self.config["key_serializer"]
        self._value_serializer = self.config["value_serializer"]
        self._max_request_size = self.config["max_request_size"]
        self._max_block_ms = self.config["max_block_ms"]
        partitioner = self.config["partitioner"]
        self._chooses_by_key = type(partitioner) is DefaultPartitioner
        self._on_new_batch: Any = getattr(partitioner, "on_new_batch", None)
        self._in_transactions = self._transactions if self.config["transactional_id"] is not None else None

    # Assigned by KafkaProducer.__init__

    @property
    def _transaction_manager(self) -> ProducerTransactions | None:
        return self._transactions

    @_transaction_manager.setter
    def _transaction_manager(self, made: TransactionManager | None) -> None:
        self._transactions = None if made is None else ProducerTransactions.replacing(made)

    @property
    def _accumulator(self) -> SenderAccumulator:
        return self._sender_accumulator

    @_accumulator.setter
    def _accumulator(self, made: KafkaPythonAccumulator) -> None:
        config = self.config
        if made.config["message_version"] < 2:
            raise kafka_errors.UnsupportedVersionError(
                f"kafkafmt.net.Producer writes message format v2: expected a broker of 0.11 or later, "
                f"found {'.'.join(map(str, config['api_version']))}"
            )
        self._limits = limits = TopicLimits(
            self._client,
            is_asked_for=config["topic_limits"],
            max_age_ms=config["metadata_max_age_ms"],
            retry_backoff_ms=config["retry_backoff_ms"],
        )
        self._record_accumulator = ProducerAccumulator(
            self._options,
            budget=config["budget"],
            estimator=config["estimator"],
            max_message_bytes=limits.max_message_bytes,
            held_until_ms=limits.held_until_ms,
            sequences=self._transactions,
            wakeup=self._client.wakeup,
        )
        self._sender_accumulator = SenderAccumulator(
            self._record_accumulator,
            client=self._client,
            transactions=self._transactions,
            limits=limits,
            metrics=self._metrics,
            tells_offsets=config["acks"] != 0,
        )
        if self._metrics is not None:
            metrics.register(self._metrics, self._record_accumulator, monotonic_ms)

    @property
    def _sender(self) -> ProducerSender:
        return self._producer_sender

    @_sender.setter
    def _sender(self, made: Sender) -> None:
        self._producer_sender = ProducerSender.replacing(made)

    # Records

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: list[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | datetime | None = None,
    ) -> RecordFuture | FailedSend:
        """Append a record to a batch, which the sender's thread sends, and return its future. As KafkaProducer.send.

        value, key: bytes, bytearray, memoryview or None; with a serializer, any object that it takes.
        headers: a list of (str, bytes) tuples.
        partition: the number of the partition; None for the partitioner's choice.
        timestamp_ms: milliseconds since the epoch or an aware datetime; None for now.

        Raises KafkaTimeoutError if there is no metadata within `max_block_ms`, and its subclass BufferExhaustedError
        if there is no room. Raises TypeError or ValueError for a record that is not valid, RecordTooLargeError for one
        above `max_request_size`, and ProducerClosedError after `close`. If a broker refuses the topic's metadata, the
        returned future has failed.
        """
        if self._closed:
            raise ProducerClosedError("KafkaProducer already closed!")
        if value is None and key is None:
            raise ValueError("Need at least one: key or value")
        if timestamp_ms is not None and type(timestamp_ms) is not int:
            timestamp_ms = milliseconds(timestamp_ms, "timestamp_ms")
        size = _MAX_OVERHEAD
        if headers is None:
            headers = []
        else:
            size += _size_of_headers(headers)
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
            self._ensure_fits(topic, key_bytes, value_bytes, headers)

        max_block_ms = self._max_block_ms
        partitions = self._partitions.get(topic)
        if partitions is None:
            try:
                partitions, max_block_ms = self._await_partitions(topic)
            except kafka_errors.BrokerResponseError as error:
                return _failed_send(TopicPartition(topic, -1 if partition is None else partition), error)
        is_sticky = False
        if partition is not None:
            topic_partition = partitions.get(partition)
        else:
            topic_partition = partitions.of_key(key_bytes) if self._chooses_by_key else None
        if topic_partition is None:
            topic_partition = self._chosen(topic, partition, key, value, key_bytes, value_bytes)
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
            elsewhere = self._chosen(topic, None, key, value, key_bytes, value_bytes)
            appended = self._append_to(elsewhere, timestamp_ms, key_bytes, value_bytes, headers, max_block_ms)
        future, is_news = appended
        if is_news:
            self._sender.wakeup()
        return future

    def _ensure_fits(
        self, topic: str, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]
    ) -> None:
        """Raise RecordTooLargeError for a record above `max_request_size`."""
        size = self._estimate_size_in_bytes(key, value, headers)
        if size > self._max_request_size:
            raise RecordTooLargeError(
                f"{topic}: a record of {size} bytes before compression: expected at most {self._max_request_size} "
                "(max_request_size)"
            )

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
            self._update_metadata(max_block_ms)
            topic_partition = self._chosen(topic, partition, None, None, None, None)
        if self._in_transactions is not None:
            self._in_transactions.maybe_add_partition_to_transaction(topic_partition)
        return topic_partition, max_block_ms

    def _update_metadata(self, max_block_ms: float) -> None:
        """Request the metadata again, and wait up to `max_block_ms` for the response."""
        is_updated = threading.Event()
        self._metadata.request_update().add_both(lambda _: is_updated.set())
        self._sender.wakeup()
        is_updated.wait(max_block_ms / 1000)

    def _await_partitions(self, topic: str) -> tuple[TopicPartitions, float]:
        """Wait for the metadata of a topic. Return its partitions, and the rest of `max_block_ms`."""
        began_ms = monotonic_ms()
        try:
            self._wait_on_metadata(topic, self._max_block_ms)
        except kafka_errors.KafkaTimeoutError:
            raise kafka_errors.KafkaTimeoutError(
                f"{topic}: not found within {self._max_block_ms / 1000:g} s (max_block_ms): there is no such topic, or "
                "no broker answers"
            ) from None
        partitions = self._partitions.get(topic)
        if partitions is None:
            raise ValueError(f"Partitioner did not assign a partition for topic {topic}!")
        return partitions, max(self._max_block_ms - (monotonic_ms() - began_ms), 0)

    def _chosen(
        self, topic: str, partition: int | None, key: Any, value: Any, key_bytes: Any, value_bytes: Any
    ) -> TopicPartition:
        """Choose a partition as kafka-python does. Raises as it does if the given one does not exist."""
        number = self._partition(topic, partition, key, value, key_bytes, value_bytes)
        if number is None:
            raise ValueError(f"Partitioner did not assign a partition for topic {topic}!")
        return TopicPartition(topic, number)

    # Flush and close

    def flush(self, timeout: float | None = None) -> None:
        """Send all waiting records without lingering, and wait until they are done.

        timeout: the most seconds to wait; None to wait without limit.

        Raises KafkaTimeoutError, whose message counts the records that are not delivered. Raises IllegalStateError if
        a callback calls it: it would wait for its own thread (KIP-1118).
        """
        if threading.current_thread() is self._sender:
            raise kafka_errors.IllegalStateError(
                "flush: a callback must not call it: it would wait for its own thread"
            )
        self._record_accumulator.begin_flush()
        self._sender.wakeup()
        try:
            self._record_accumulator.await_flush_completion(timeout)
        except TimeoutError as error:
            raise kafka_errors.KafkaTimeoutError(str(error)) from None

    def close(self, timeout: float | None = None, null_logger: bool = False) -> None:
        """Flush for up to `timeout` seconds (None: until all is done), then end the sender's thread.

        Records that are not delivered by then fail. Once their futures have failed, raises UndeliveredError with their
        number by partition. With `null_logger`, which kafka-python sets at exit, nothing is raised. If interrupted,
        it gives up the records that are not delivered. Raises ValueError for a negative timeout.
        """
        if timeout is None:
            timeout = threading.TIMEOUT_MAX
        if not 0 <= timeout <= threading.TIMEOUT_MAX:
            raise ValueError(f"Invalid timeout: {timeout}")
        self._unregister_cleanup()
        if getattr(self, "_closed", True):
            return
        self._closed = True
        try:
            undelivered = self._end_sender(timeout)
        except BaseException:  # such as KeyboardInterrupt
            self._sender.force_close()
            raise
        if self._metrics:
            self._metrics.close()
        for serializer in (self._key_serializer, self._value_serializer):
            if hasattr(serializer, "close"):
                serializer.close()
        if undelivered and not null_logger:
            raise UndeliveredError(timeout, undelivered)

    def _end_sender(self, timeout: float) -> Undelivered:
        """Flush for up to `timeout` seconds, then end the sender's thread. Return the records that were given up."""
        sender = self._sender
        is_callback = threading.current_thread() is sender
        if timeout > 0 and not is_callback:
            deadline = time.monotonic() + timeout
            with suppress(kafka_errors.KafkaTimeoutError):
                self.flush(timeout)
            sender.initiate_close()
            sender.join(max(deadline - time.monotonic(), 0))
        if sender.is_alive():
            sender.force_close()
            if not is_callback:
                sender.join(_ABORT_SECONDS)
        if sender.is_alive() and not is_callback:  # the thread waits for a connection
            self._accumulator.abort_incomplete_batches()
        return self._accumulator.undelivered


def _accumulator_options(config: Mapping[str, Any]) -> AccumulatorOptions:
    """Return the options of the accumulator. Raises ValueError for a number out of range, TypeError for no number."""
    return AccumulatorOptions(
        batch_size=config["batch_size"],
        buffer_memory=config["buffer_memory"],
        linger_ms=config["linger_ms"],
        codec=_CODECS.get(config["compression_type"], Codec.NONE),  # kafka-python refuses unknown names
        level=config["compression_level"],
        delivery_timeout_ms=config["delivery_timeout_ms"],
        retry_backoff_ms=config["retry_backoff_ms"],
        max_block_ms=config["max_block_ms"],
    )


def _size_of_headers(headers: list[tuple[str, bytes]]) -> int:
    """Return the most bytes that headers can take. Raises TypeError unless they are a list of (str, bytes) tuples."""
    if not isinstance(headers, list):
        raise TypeError("headers must be list-type")
    size = 0
    for item in headers:
        if not (
            isinstance(item, tuple)
            and len(item) == 2
            and isinstance(item[0], str)
            and isinstance(item[1], bytes)
        ):
            raise TypeError("All headers items must be (str, bytes) tuples")
        size += 4 * len(item[0]) + len(item[1]) + _MAX_HEADER_OVERHEAD
    return size


def _failed_send(topic_partition: TopicPartition, error: Exception) -> FailedSend:
    """Return a future that has failed, as kafka-python's `send` does if the topic cannot be looked up."""
    return FailedSend(FutureProduceResult(topic_partition), -1, None, None, -1, -1, -1).failure(error)
