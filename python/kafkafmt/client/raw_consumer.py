"""A consumer that returns whole batches as they are stored, not decompressed (KIP-712)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from kafka.consumer.fetcher import ConsumerRecord

from kafkafmt.client.base_consumer import BaseConsumer
from kafkafmt.client.leader_epochs import EpochEnds, request_epoch_ends
from kafkafmt.client.partition_batches import BatchOptions, PartitionBatches
from kafkafmt.client.raw_option import with_raw_option

if TYPE_CHECKING:
    from uuid import UUID

    from kafka.structs import TopicPartition

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.client.fetch_metrics import FetchMetrics
    from kafkafmt.client.fetch_queue import Fetched
    from kafkafmt.client.partition_fetches import Part


class RawConsumer(BaseConsumer):
    """kafka-python's KafkaConsumer, whose records are whole batches with the bytes that the broker stores.

    The value of a record is a memoryview of one batch. Its offset is the batch's last offset, so that positions and
    commits fall between batches. Its timestamp is the batch's largest; `leader_epoch` and `timestamp_type` are the
    batch's. Key and headers are None. `max_poll_records` counts batches. A view keeps all bytes of its fetch alive.

    If the position lies within a batch, which is possible for the first one, the batch is opened and trimmed: records
    before the position are removed. A trimmed batch of format v0 or v1 is converted to v2. All other batches are
    returned as they are stored, batches that compaction has emptied included. Control batches are not returned, and
    with `read_committed` neither are batches of aborted transactions, which are found by their producer ids.

    Options are those of kafka-python's KafkaConsumer without the deserializers, and:

    budget: a MemoryBudget that bounds the bytes that are fetched and not returned. Several consumers may share it.
    fetch_raw_bytes: must be True, as it is by default. `Consumer(fetch_raw_bytes=True)` is a RawConsumer (KIP-712).
    keep_control_batches: return control batches, too, for a copy in which transactions end at the same offsets. With
        `read_committed` the markers of aborted transactions are returned, but not their batches.
    trim_first_batch: False to return a batch that the position lies in whole, as it is stored. No batch is opened then.

    `poll` and iteration raise CorruptRecordError for a damaged batch, after the batches before it were returned. They
    raise it again until the position changes: seek to its `next_offset`. Other partitions continue. CRCs are checked
    unless `check_crcs=False`.
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = {
        **BaseConsumer.DEFAULT_CONFIG,
        "fetch_raw_bytes": True,
        "keep_control_batches": False,
        "trim_first_batch": True,
    }

    def __init__(self, *topics: str, **configs: Any) -> None:
        configs = with_raw_option(configs, "fetch_raw_bytes")
        if not configs.setdefault("fetch_raw_bytes", True):
            raise ValueError(
                "fetch_raw_bytes: expected True, found False: a RawConsumer returns batches; use a Consumer for records"
            )
        for name in ("key_deserializer", "value_deserializer"):
            if configs.get(name) is not None:
                raise ValueError(f"{name}: expected None: a RawConsumer returns batches as they are")
        super().__init__(*topics, **configs)
        self._options = BatchOptions(
            check_crcs=self.config["check_crcs"],
            keeps_control_batches=self.config["keep_control_batches"],
            trims_first_batch=self.config["trim_first_batch"],
        )

    def _open_part(self, fetched: Fetched, metrics: FetchMetrics) -> Part:
        return PartitionBatches(fetched, self._options, metrics)

    @property
    def fetched_bytes(self) -> int:
        """Return the size of the batches that were fetched and not returned yet."""
        return self._fetches.fetched_bytes

    @property
    def is_receiving(self) -> bool:
        """Whether a large response is arriving. Over a slow link that may take minutes, in which polls are empty."""
        return self._engine.is_receiving

    def stop_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Stop fetching each partition when all batches before its offset were fetched.

        This also applies to later assignments. The last batch that is returned may end after the offset.
        """
        self._engine.stop_at(offsets)

    def pin_topic_id(self, topic: str, topic_id: UUID | None) -> None:
        """Fetch a topic by its id (KIP-516), so that a topic created later with the same name is not read.

        Brokers before 3.1 cannot fetch by id: `take_fetched_by_name` returns the topics that they fetched by name. So
        are all topics while the ids of some topics are pinned, and of others are not.

        topic_id: None to release the id again.
        """
        self._fetches.pin(topic, topic_id)

    def take_fetched_by_name(self) -> set[str]:
        """Return the topics with a pinned id of which batches were fetched by name since the last call.

        These batches may be those of another topic.
        """
        taken, self._fetches.fetched_by_name = self._fetches.fetched_by_name, set()
        return taken

    def take_unknown_topics(self) -> set[str]:
        """Return the topics whose pinned id a broker did not know since the last call.

        The topic was deleted, or the broker has not learned of it yet.
        """
        taken, self._fetches.unknown_topics = self._fetches.unknown_topics, set()
        return taken

    def position_epoch(self, partition: TopicPartition) -> int:
        """Return the leader epoch of the record before the position; -1 if it is not known, as after `seek`.

        Raises as `position`.
        """
        position = self._state_of(partition).position
        return -1 if position is None else int(position.leader_epoch)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int], timeout_ms: float | None = None) -> EpochEnds:
        """Request where the records of leader epochs end (KIP-320): see `request_epoch_ends`."""
        return request_epoch_ends(self._control, epochs, self._timeout_ms(timeout_ms))

    def _poll_records(
        self, timeout_ms: float, max_records: int | None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return one ConsumerRecord per batch."""
        return {
            partition: [record for run in runs for record in _records(partition, run)]
            for partition, runs in self.poll_runs(timeout_ms, max_records).items()
        }

    def poll_runs(
        self, timeout_ms: float = 0, max_batches: int | None = None
    ) -> dict[TopicPartition, list[BatchRun]]:
        """Poll as `poll` does, without a Python object per batch: return runs of adjacent batches.

        Positions move and errors are raised as with `poll`.

        max_batches: the most batches in all runs together; None for `max_poll_records`.
        """
        return self._poll_with(PartitionBatches.take, timeout_ms, max_batches)


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
