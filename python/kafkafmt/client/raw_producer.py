"""The producer of complete batches, which it sends without opening them (KIP-712)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

import kafka.errors as kafka_errors
from kafka.partitioner import DefaultPartitioner

from _kafkafmt.batches.scan import scan
from kafkafmt.build.forwarding import RefusalReason, ensure_acceptable
from kafkafmt.client.accumulator import RecordsFuture
from kafkafmt.client.accumulator.raw_batches import RequestLimits
from kafkafmt.client.base_producer import BaseProducer
from kafkafmt.client.clock import monotonic_ms
from kafkafmt.client.raw_option import with_raw_option
from kafkafmt.client.topic_metadata import update_metadata
from kafkafmt.types import TopicPartition, check_int

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun

# Refusal reasons that the producer itself removes: it writes its own producer state, and splits large batches.
_MENDED = frozenset({RefusalReason.PRODUCER_STATE, RefusalReason.SIZE})
# Options of Producer for records. They must be left out; their defaults and None count as left out.
_WITHOUT_EFFECT = ("key_serializer", "value_serializer", "partitioner", "compression_type", "estimator")
_NO_BATCH = "a RawProducer sends batches (send_raw_bytes): expected one whole v2 batch as the value"


class RawProducer(BaseProducer):
    """A producer of whole v2 batches, such as a RawConsumer returns or a log contains. It does not decompress them.

    An idempotent or transactional producer replaces the producer id, epoch and sequence numbers in the headers by its
    own. Any other producer removes them. The broker assigns the offsets. Retries, order, transactions, `flush` and
    `close` work as with Producer. A batch is opened only to split it, if it is larger than its topic takes (KIP-126).

    Options are those of Producer without serializers, partitioner, compression_type and estimator, and:

    send_raw_bytes: must be True, as it is by default. `Producer(send_raw_bytes=True)` is a RawProducer (KIP-712).
    max_batches_per_request: how many batches of a partition one request may hold (default 1). No broker since 0.11
        takes more than one. "auto": the number that the target reports, as `kafkafmt serve` does. `max_request_size`
        limits their bytes.
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = {
        **BaseProducer.DEFAULT_CONFIG,
        "send_raw_bytes": True,
        "max_batches_per_request": 1,
    }

    def __init__(self, **configs: Any) -> None:
        configs = with_raw_option(configs, "send_raw_bytes")
        if not configs.setdefault("send_raw_bytes", True):
            raise ValueError(
                "send_raw_bytes: expected True, found False: a RawProducer sends batches; use a Producer for records"
            )
        for name in _WITHOUT_EFFECT:
            if not _is_default(configs.pop(name, None), self.DEFAULT_CONFIG[name]):
                raise ValueError(f"{name}: expected it left out: batches are sent as they are")
        most = configs.get("max_batches_per_request", 1)
        if most != "auto" and (not isinstance(most, int) or most < 1):
            raise ValueError(f"max_batches_per_request: expected 1 or more, or 'auto', found {most!r}")
        self._max_batches: int | None = None if most == "auto" else most
        super().__init__(configs)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: None = None,
        headers: None = None,
        partition: int | None = None,
        timestamp_ms: None = None,
    ) -> RecordsFuture:
        """Send one batch to a partition. The future's `get` returns the offset of each of its records.

        value: the batch, in any buffer. The caller may reuse the buffer afterwards.
        key, headers, timestamp_ms: must be None, as the batch's records have them.

        Raises as `send_run`, ValueError for bytes that are not one whole batch, and TypeError for other values of these
        arguments or a missing partition.
        """
        if key is not None or headers or timestamp_ms is not None:
            raise TypeError(f"{_NO_BATCH}, without key, headers and timestamp_ms, which its records have")
        if partition is None:
            raise TypeError("partition: expected a number: all records of a batch go to one partition")
        return self.send_run(topic, _batch(value), partition=partition)

    def send_run(self, topic: str, run: BatchRun, *, partition: int, verify: bool = True) -> RecordsFuture:
        """Send many batches to a partition, in order. The future's `get` returns the offset of each record.

        verify: whether to check CRCs first. Without the check a damaged batch could get a valid CRC, as CRCs are
            computed again after the producer's own state is written.

        Waits up to `max_block_ms` if the topic, or the partition, does not exist yet.

        Raises CorruptRecordError for a damaged batch. Raises InvalidRecordError, with the reason, if a broker would
        refuse a batch (`check_produce`) and only `BatchForwarder`, which opens it, could correct it. Nothing is sent
        then. Otherwise raises as `send_columns`: BufferExhaustedError has the future of the records that were
        appended, as `appended`.
        """
        transaction = self._begin_sending()
        if verify:
            run.ensure_valid()
        ensure_acceptable(run, but_for=_MENDED)
        self._await_partition(topic, partition)
        topic_partition, max_block_ms = self._find_partition(topic, partition, transaction)
        most = self._max_batches
        if most is None:
            self._sender.wakeup()
            if not self._io.is_current:  # the answer comes through that thread
                self._limits.await_answer(topic)
            most = self._limits.max_batches_per_request(topic)
        try:
            return self._record_accumulator.append_batches(
                topic_partition,
                run,
                request_limits=RequestLimits(most, self._max_request_size),
                now_ms=monotonic_ms(),
                max_block_ms=max_block_ms,
                transaction=transaction,
            )
        finally:
            self._sender.wakeup()

    def _await_partition(self, topic: str, partition: int) -> None:
        """Wait up to `max_block_ms` until the topic has the partition, as Kafka's producer does."""
        check_int("partition", partition)
        deadline_ms = monotonic_ms() + self._max_block_ms
        while (
            partition >= 0
            and (known := self._partitions.get(topic)) is not None
            and known.get(partition) is None
        ):
            left_ms = deadline_ms - monotonic_ms()
            if left_ms <= 0 or self._io.is_current:
                raise kafka_errors.KafkaTimeoutError(
                    f"{TopicPartition(topic, partition)}: not found within {self._max_block_ms / 1000:g} s "
                    f"(max_block_ms): the topic has {len(self._metadata.partitions_for_topic(topic))} partitions"
                )
            update_metadata(self._metadata, left_ms)
            time.sleep(min(self.config["retry_backoff_ms"], left_ms) / 1000)

    def send_many(self, *_: Any, **__: Any) -> RecordsFuture:
        """Raise TypeError: a RawProducer sends batches only."""
        raise TypeError(_NO_BATCH)

    def send_columns(self, *_: Any, **__: Any) -> RecordsFuture:
        """Raise TypeError: a RawProducer sends batches only."""
        raise TypeError(_NO_BATCH)


def _is_default(value: Any, default: Any) -> bool:
    return value is None or value == default or type(value) is type(default) is DefaultPartitioner


def _batch(value: Any) -> BatchRun:
    """Return the run of the one batch in `value`. Raises ValueError for other bytes, and TypeError for no buffer."""
    try:
        view = memoryview(value).cast("B")
    except TypeError:
        raise TypeError(f"{_NO_BATCH}, found {type(value).__name__}") from None
    run, consumed, *_, error = scan(view)
    if len(run) != 1 or consumed != len(view):
        found = f": {error}" if error is not None else ""
        raise ValueError(f"{_NO_BATCH}, found {len(view)} bytes with {len(run)} batches in them{found}")
    return run
