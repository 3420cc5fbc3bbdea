"""kafka-python's consumer, which hands out whole batches as they are stored: nothing is decompressed (KIP-712).

Groups, rebalances, security, offset commits, positions and configuration are kafka-python's. Its constructor makes a
fetcher: here that is a property, which puts ours in its place before anything has used it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from kafka import KafkaConsumer
from kafka.consumer.fetcher import ConsumerRecord

from kafkafmt.net.raw_fetcher import FetchOptions, OffsetReset, RawFetcher
from kafkafmt.net.receiving import DescriptorSelector, ReceivingClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafka.consumer.fetcher import Fetcher
    from kafka.structs import TopicPartition

    from _kafkafmt.scan import BatchRun


class RawConsumer(KafkaConsumer):  # type: ignore[misc]
    """A KafkaConsumer whose records are whole batches, as the broker has them.

    A record's value is a memoryview of one batch, its offset the last one of the batch, so that positions and commits
    fall between batches; its timestamp is the batch's largest, `leader_epoch` and `timestamp_type` are the batch's.
    Key and headers are None. `max_poll_records` counts batches. A view keeps all bytes of its fetch alive.

    Where a position lies within a batch, as the first one may, the batch is trimmed: its records below are left out,
    for which it is opened. One of format v0 or v1 is converted to v2 for that; all others come as they are stored.
    Batches without records, which compaction leaves, come too; control batches are left out, and with `read_committed`
    those of aborted transactions, by their producer ids.

    Options are those of kafka-python's KafkaConsumer but for deserializers, and:

    fetch_raw_bytes: True, and nothing else: KIP-712's name for what this consumer does.
    keep_control_batches: hand out control batches, too, for a copy that is equal byte for byte. With
        `isolation_level="read_uncommitted"` alone.
    trim_first_batch: False to have a batch that a position lies in whole, as it is stored, and nothing opened.

    `poll` and iteration raise CorruptRecordError for a damaged batch, once those in front of it were handed out, and
    again as long as the position stays there; the other partitions go on. Its `next_offset` tells where to seek to.
    CRCs are checked unless `check_crcs=False`.
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = {
        **KafkaConsumer.DEFAULT_CONFIG,
        "fetch_raw_bytes": True,
        "keep_control_batches": False,
        "trim_first_batch": True,
        "kafka_client": ReceivingClient,
        "selector": DescriptorSelector,
    }

    def __init__(self, *topics: str, **configs: Any) -> None:
        if configs.get("fetch_raw_bytes", True) is not True:
            raise ValueError(
                f"fetch_raw_bytes: expected True, found {configs['fetch_raw_bytes']!r}: a RawConsumer hands out "
                "batches; for records there is kafka-python's KafkaConsumer"
            )
        for name in ("key_deserializer", "value_deserializer"):
            if configs.get(name) is not None:
                raise ValueError(f"{name}: expected None: a RawConsumer hands out batches as they are")
        if configs.get("keep_control_batches") and configs.get("isolation_level") == "read_committed":
            raise ValueError(
                "keep_control_batches: expected isolation_level='read_uncommitted': without the batches of aborted "
                "transactions their markers mean nothing"
            )
        super().__init__(*topics, **configs)

    # What KafkaConsumer.__init__ makes

    @property
    def _fetcher(self) -> RawFetcher:
        return self._raw_fetcher

    @_fetcher.setter
    def _fetcher(self, made: Fetcher) -> None:
        options = FetchOptions(
            check_crcs=self.config["check_crcs"],
            keeps_control_batches=self.config["keep_control_batches"],
            trims_first_batch=self.config["trim_first_batch"],
        )
        self._raw_fetcher = RawFetcher.like(made, options)

    # Batches

    @property
    def fetched_bytes(self) -> int:
        """What was fetched, and not handed out yet."""
        return self._fetcher.fetched_bytes

    def take_offset_resets(self) -> Iterator[OffsetReset]:
        """Yield each position that `auto_offset_reset` replaced since the last call."""
        return self._fetcher.take_offset_resets()

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """As KafkaConsumer.poll: a ConsumerRecord a batch, `max_records` batches at the most."""
        polled = super().poll(timeout_ms, max_records, update_offsets)
        return {
            partition: [record for run in runs for record in _records(partition, run)]
            for partition, runs in polled.items()
        }

    def poll_runs(
        self, timeout_ms: float = 0, max_batches: int | None = None
    ) -> dict[TopicPartition, list[BatchRun]]:
        """As `poll`, with no Python object a batch: runs of batches end to end, without gaps between them.

        Positions move alike, `max_batches` is the sum over all runs, and the same errors are raised.
        """
        runs: dict[TopicPartition, list[BatchRun]] = super().poll(timeout_ms, max_batches)
        return runs


def _records(topic_partition: TopicPartition, run: BatchRun) -> list[ConsumerRecord]:
    topic, partition = topic_partition
    rows = run.index
    columns = (
        rows[name].tolist()
        for name in ("partition_leader_epoch", "last_offset", "max_timestamp", "timestamp_type", "size")
    )
    return [
        ConsumerRecord(
            topic=topic,
            partition=partition,
            leader_epoch=leader_epoch,
            offset=last_offset,
            timestamp=max_timestamp,
            timestamp_type=timestamp_type,
            key=None,
            value=run.batch(number),
            headers=None,
            checksum=None,
            serialized_key_size=-1,
            serialized_value_size=size,
            serialized_header_size=-1,
        )
        for number, (leader_epoch, last_offset, max_timestamp, timestamp_type, size) in enumerate(
            zip(*columns, strict=True)
        )
    ]
