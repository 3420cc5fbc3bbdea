"""The producer of batches that are there already: they go out as they are, nothing is opened (KIP-712)."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import kafka.errors as kafka_errors

from _kafkafmt.scan import scan
from kafkafmt.accumulator import RecordsFuture
from kafkafmt.accumulator.raw_batches import RequestLimits
from kafkafmt.forwarding import RefusalReason, ensure_taken
from kafkafmt.net.clock import monotonic_ms
from kafkafmt.net.producer import Producer
from kafkafmt.net.receiving import DescriptorSelector
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun

# What is not as a broker wants it when a batch comes in, and is when it goes out.
_MENDED = frozenset({RefusalReason.PRODUCER_STATE, RefusalReason.SIZE})
_NO_BATCH = "a RawProducer sends batches (send_raw_bytes): expected one whole v2 batch as the value"


class RawProducer(Producer):
    """A Producer of whole v2 batches, of which nothing is decompressed: what a RawConsumer reads, or a log holds.

    Of what the header says of another producer nothing is left: an idempotent or transactional producer writes its own
    id, epoch and sequence numbers, any other none. Offsets are the broker's to assign. Retries, order, transactions,
    `flush` and `close` are the Producer's. A batch larger than its topic takes is split (KIP-126): only that opens it.

    Options are those of Producer, but for serializers, partitioner and compression_type, and:

    send_raw_bytes: True, and nothing else: KIP-712's name for what this producer does.
    max_batches_per_request: how many batches of a partition go out in one request. No broker since 0.11 takes more than
        one (default). "auto": as many as the target says it takes, which `kafkafmt serve` does; `max_request_size`
        bounds their bytes.
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = {
        **Producer.DEFAULT_CONFIG,
        "send_raw_bytes": True,
        "max_batches_per_request": 1,
        "selector": DescriptorSelector,
    }

    def __init__(self, **configs: Any) -> None:
        if configs.get("send_raw_bytes", True) is not True:
            raise ValueError(
                f"send_raw_bytes: expected True, found {configs['send_raw_bytes']!r}: a RawProducer sends batches; for "
                "records there is kafkafmt.net.Producer"
            )
        for name in ("key_serializer", "value_serializer", "compression_type"):
            if configs.get(name) is not None:
                raise ValueError(f"{name}: expected None: a RawProducer sends batches as they are")
        most = configs.get("max_batches_per_request", 1)
        if most != "auto" and (not isinstance(most, int) or most < 1):
            raise ValueError(f"max_batches_per_request: expected 1 or more, or 'auto', found {most!r}")
        self._max_batches: int | None = None if most == "auto" else most
        super().__init__(**configs)

    def send(  # type: ignore[override]
        self,
        topic: str,
        value: Any = None,
        key: None = None,
        headers: None = None,
        partition: int | None = None,
        timestamp_ms: None = None,
    ) -> RecordsFuture:
        """Send one batch to a partition; the future tells the offset of each of its records.

        value: the batch, in any buffer, which may be used again once this returns. Raises as `send_run`; TypeError for
        what is no batch, and for what only a record has.
        """
        if key is not None or headers or timestamp_ms is not None:
            raise TypeError(f"{_NO_BATCH} and no key, headers or timestamp_ms, which its records have")
        if partition is None:
            raise TypeError("partition: expected the number of one: the records of a batch stay together")
        return self.send_run(topic, _batch(value), partition=partition)

    def send_run(self, topic: str, run: BatchRun, *, partition: int, verify: bool = True) -> RecordsFuture:
        """Send many batches to a partition, in order; the future tells the offset of each record of all of them.

        verify: whether to check CRCs, which are computed anew under the producer's own state.

        A partition that the topic has not yet is waited for, as the topic is, up to `max_block_ms`.

        Raises InvalidRecordError where a broker would refuse a batch for what only opening it could mend, by its reason
        (`check_produce`; `BatchForwarder` mends that); CorruptRecordError for a damaged one. Nothing is sent then. Else
        as `send_columns`: BufferExhaustedError has the future of the records that were taken, as `appended`.
        """
        if verify:
            run.ensure_valid()
        ensure_taken(run, but_for=_MENDED)
        self._await_partition(topic, partition)
        topic_partition, max_block_ms = self._begin_sending(topic, partition)
        most = self._max_batches
        if most is None:
            self._sender.wakeup()
            self._limits.await_answer(topic)
            most = self._limits.max_batches_per_request(topic)
        try:
            return self._records.append_batches(
                topic_partition,
                run,
                request_limits=RequestLimits(most, self._max_request_size),
                now_ms=monotonic_ms(),
                max_block_ms=max_block_ms,
            )
        finally:
            self._sender.wakeup()

    def _await_partition(self, topic: str, partition: int) -> None:
        """Wait up to `max_block_ms` for a partition that the topic does not have yet, as Kafka's producer does."""
        deadline_ms = monotonic_ms() + self._max_block_ms
        while (
            partition >= 0
            and (known := self._partitions.get(topic)) is not None
            and known.get(partition) is None
        ):
            left_ms = deadline_ms - monotonic_ms()
            if left_ms <= 0:
                raise kafka_errors.KafkaTimeoutError(
                    f"{TopicPartition(topic, partition)}: not found within {self._max_block_ms / 1000:g} s "
                    f"(max_block_ms): the topic has {len(self._metadata.partitions_for_topic(topic))} partitions"
                )
            updated = threading.Event()
            self._metadata.request_update().add_both(lambda *_, updated=updated: updated.set())
            self._sender.wakeup()
            updated.wait(left_ms / 1000)
            time.sleep(min(self.config["retry_backoff_ms"], left_ms) / 1000)

    def send_columns(self, *_: Any, **__: Any) -> RecordsFuture:
        """Not here: TypeError."""
        raise TypeError(_NO_BATCH)


def _batch(value: Any) -> BatchRun:
    """The run that is one batch. Raises TypeError where it is anything else."""
    try:
        view = memoryview(value).cast("B")
    except TypeError:
        raise TypeError(f"{_NO_BATCH}, found {type(value).__name__}") from None
    run, consumed, *_, error = scan(view)
    if len(run) != 1 or consumed != len(view):
        found = f": {error}" if error is not None else ""
        raise TypeError(f"{_NO_BATCH}, found {len(view)} bytes with {len(run)} batches in them{found}")
    return run
