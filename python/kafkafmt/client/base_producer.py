"""What both producers share: opening, metadata, metrics, transactions, flush and close.

kafka-python's classes do what carries no records: metadata, and the requests of transactions (`ControlPlane`). Its
KafkaProducer gives the names of options and methods.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import kafka.errors as kafka_errors

from _kafkafmt.client.partitions import TopicPartitions
from kafkafmt.client.accumulator import Undelivered
from kafkafmt.client.clock import monotonic_ms
from kafkafmt.client.control_plane import ControlPlane
from kafkafmt.client.errors import ProducerClosedError, UndeliveredError
from kafkafmt.client.metrics import values_by_group
from kafkafmt.client.partitions import PartitionsByTopic
from kafkafmt.client.producer_config import DEFAULT_CONFIG, ensure_broker_takes, producer_config
from kafkafmt.client.producer_parts import open_metrics, open_parts
from kafkafmt.client.topic_metadata import await_topic, update_metadata
from kafkafmt.client.transactional import Transactional
from kafkafmt.types import TopicPartition, check_int

if TYPE_CHECKING:
    from typing_extensions import Self

    from kafkafmt.client.transaction_state import OpenTransaction

# How long `close` waits for the I/O thread to end after it has aborted the batches.
_ABORT_SECONDS = 10.0
# How long a producer that was not closed has for it at the end of the program, as KafkaProducer.
_LAST_SECONDS = 1.0
# How long `close` waits for the connections of the control plane.
_CLOSE_SECONDS = 1.0


class BaseProducer(Transactional):
    """A producer with the methods of kafka-python's KafkaProducer but `send`. Subclasses take records or batches."""

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = DEFAULT_CONFIG
    _closed: bool

    def __init__(self, configs: Mapping[str, Any]) -> None:
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
            self._io.start()
            self._sender.wakeup()
        except BaseException:
            self._control.close()
            raise
        self._pid = os.getpid()
        self._is_closing = self._closed = False
        self._cleanup = _cleanup_of(self)
        atexit.register(self._cleanup)

    def _open(self, config: Mapping[str, Any]) -> None:
        """Create the accumulator, its sender and the I/O thread, which `__init__` starts."""
        self._metadata = self._control.cluster
        parts = open_parts(config, self._control, self._metrics)
        self._io, self._limits, self._transactions, self._record_accumulator, self._sender = parts
        self._partitions = PartitionsByTopic(self._metadata, self._limits, config["partitioner"])
        self._metadata.add_listener(self._partitions)
        self._max_request_size = config["max_request_size"]
        self._max_block_ms = config["max_block_ms"]
        self._in_transactions = self._transactions if config["transactional_id"] else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close(timeout=_LAST_SECONDS, null_logger=True)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} client_id={self.config['client_id']} "
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

    # Partitions

    def _begin_sending(self) -> OpenTransaction | None:
        """Return the transaction to which the records of this call belong; None without transactions.

        Raises ProducerClosedError, and the errors of `Transactions.open_transaction`.
        """
        if self._closed:
            raise ProducerClosedError("KafkaProducer already closed!")
        return None if self._in_transactions is None else self._in_transactions.open_transaction()

    def _find_partition(
        self, topic: str, partition: int, transaction: OpenTransaction | None
    ) -> tuple[TopicPartition, float]:
        """Return the partition, which is added to the transaction, and the rest of `max_block_ms`.

        Raises TypeError for a partition that is no integer.
        """
        check_int("partition", partition)
        max_block_ms = self._max_block_ms
        partitions = self._partitions.get(topic)
        if partitions is None:
            partitions, max_block_ms = self._await_partitions(topic)
        topic_partition = partitions.get(partition)
        if topic_partition is None:  # the partition may be newer than the metadata
            if not self._io.is_current:
                update_metadata(self._metadata, max_block_ms)
            topic_partition = self._partitions.choose(topic, partition, None, None, None, None)
        self._add_partition(topic_partition, transaction)
        return topic_partition, max_block_ms

    def _add_partition(self, topic_partition: TopicPartition, transaction: OpenTransaction | None) -> None:
        if transaction is not None:
            assert self._in_transactions is not None
            self._in_transactions.add_partition(topic_partition, transaction)

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

        Within this time it waits for the end of a transaction, and aborts one that is open.

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
        for serializer in (self.config["key_serializer"], self.config["value_serializer"]):
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


def _cleanup_of(producer: BaseProducer) -> Callable[[], None]:
    """Return the function that closes a producer at exit, and does not keep it alive."""
    reference = weakref.ref(producer)

    def close() -> None:
        alive = reference()
        if alive is not None:
            alive.close(timeout=_LAST_SECONDS, null_logger=True)

    return close
