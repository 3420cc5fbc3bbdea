"""kafka-python's consumer, changed to return whole batches as they are stored, not decompressed (KIP-712).

Groups, rebalances, security, offset commits, positions and configuration are kafka-python's. Its constructor assigns a
fetcher to an attribute. Here that is a property, whose setter creates a RawFetcher before the other one was used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from kafka import KafkaConsumer
from kafka.consumer.fetcher import ConsumerRecord

from kafkafmt.client.raw_fetcher import FetchOptions, OffsetReset, RawFetcher
from kafkafmt.client.receiving import DescriptorSelector, ReceivingClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from kafka.consumer.fetcher import Fetcher
    from kafka.structs import TopicPartition

    from _kafkafmt.batches.scan import BatchRun


class RawConsumer(KafkaConsumer):  # type: ignore[misc]
    """A KafkaConsumer whose records are whole batches, with the bytes that the broker stores.

    The value of a record is a memoryview of one batch. Its offset is the batch's last offset, so that positions and
    commits fall between batches. Its timestamp is the batch's largest; `leader_epoch` and `timestamp_type` are the
    batch's. Key and headers are None. `max_poll_records` counts batches. A view keeps all bytes of its fetch alive.

    If the position lies within a batch, which is possible for the first one, the batch is opened and trimmed: records
    before the position are removed. A trimmed batch of format v0 or v1 is converted to v2. All other batches are
    returned as they are stored, batches that compaction has emptied included. Control batches are not returned, and
    with `read_committed` neither are batches of aborted transactions, which are found by their producer ids.

    Options are those of kafka-python's KafkaConsumer without the deserializers, and:

    fetch_raw_bytes: must be True: KIP-712's name for what this consumer does.
    keep_control_batches: return control batches, too, for a copy that is equal byte for byte. Requires
        `isolation_level="read_uncommitted"`.
    trim_first_batch: False to return a batch that the position lies in whole, as it is stored. No batch is opened then.

    `poll` and iteration raise CorruptRecordError for a damaged batch, after the batches before it were returned. They
    raise it again until the position changes: seek to its `next_offset`. Other partitions continue. CRCs are checked
    unless `check_crcs=False`.
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
                f"fetch_raw_bytes: expected True, found {configs['fetch_raw_bytes']!r}: a RawConsumer returns batches; "
                "use kafka-python's KafkaConsumer for records"
            )
        for name in ("key_deserializer", "value_deserializer"):
            if configs.get(name) is not None:
                raise ValueError(f"{name}: expected None: a RawConsumer returns batches as they are")
        if configs.get("keep_control_batches") and configs.get("isolation_level") == "read_committed":
            raise ValueError(
                "keep_control_batches: expected isolation_level='read_uncommitted': control batches are of no use "
                "without the batches of aborted transactions"
            )
        super().__init__(*topics, **configs)

    # Assigned by KafkaConsumer.__init__

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
        self._raw_fetcher = RawFetcher.replacing(made, options)

    # Batches

    @property
    def fetched_bytes(self) -> int:
        """Return the size of the batches that were fetched and not returned yet."""
        return self._fetcher.fetched_bytes

    def take_offset_resets(self) -> Iterator[OffsetReset]:
        """Yield each position that `auto_offset_reset` replaced since the last call."""
        return self._fetcher.take_offset_resets()

    def pin_topic_id(self, topic: str, topic_id: UUID | None) -> None:
        """Fetch a topic by its id (KIP-516), so that a topic created later with the same name is not read.

        Brokers before 3.1 cannot fetch by id: `take_fetched_by_name` returns the topics that they fetched by name.

        topic_id: None to fetch by name again.
        """
        self._fetcher.pin_topic_id(topic, topic_id)

    def take_fetched_by_name(self) -> set[str]:
        """Return the topics with a pinned id of which batches were fetched by name since the last call.

        These batches may be those of another topic.
        """
        return self._fetcher.take_fetched_by_name()

    def take_unknown_topics(self) -> set[str]:
        """Return the topics whose pinned id a broker did not know since the last call.

        The topic was deleted, or the broker has not learned of it yet.
        """
        return self._fetcher.take_unknown_topics()

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Poll as KafkaConsumer does. Return one ConsumerRecord per batch, at most `max_records` batches."""
        polled = super().poll(timeout_ms, max_records, update_offsets)
        return {
            partition: [record for run in runs for record in _records(partition, run)]
            for partition, runs in polled.items()
        }

    def poll_runs(
        self, timeout_ms: float = 0, max_batches: int | None = None
    ) -> dict[TopicPartition, list[BatchRun]]:
        """Poll as `poll` does, without a Python object per batch: return runs of adjacent batches.

        Positions move and errors are raised as with `poll`.

        max_batches: the most batches in all runs together; None for `max_poll_records`.
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
