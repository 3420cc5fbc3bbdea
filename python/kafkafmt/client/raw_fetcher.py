"""kafka-python's Fetcher, changed to return what the broker sent: runs of whole batches (KIP-712).

Connections, sessions, positions and their validation are kafka-python's. It makes a `PartitionRecords` of each
partition in a response, and `poll` returns what that yields. Here `PartitionBatches` takes its place: it scans headers
and CRCs once, and selects batches by masks over their index. No other file uses private names of the Fetcher.

kafka-python fetches topics by name. A topic that was deleted and created again has the name of the earlier one. A topic
whose id is pinned is fetched by this id (Fetch 13 and later, KIP-516). Once the topic of this id is deleted, a broker
answers UNKNOWN_TOPIC_ID.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import kafka.errors as kafka_errors
import numpy as np
from kafka.consumer.fetcher import (
    CompletedFetch,
    Fetcher,
    FetchMetadata,
    FetchRequestData,
    FetchSessionHandler,
)
from kafka.protocol.consumer import FetchRequest as KafkaFetchRequest
from kafka.protocol.consumer import IsolationLevel

from _kafkafmt.client.fetch import TOPIC_IDS_VERSION, FetchEncoder, FetchSession
from kafkafmt.client.errors import CorruptFetchedBatchError
from kafkafmt.client.requests import FetchPartition, FetchRequest
from kafkafmt.errors import CorruptRecordError, KafkaFormatError
from kafkafmt.records.base import MemoryRecords
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.runs import of_aborted_transactions, slice_run, sound_part
from kafkafmt.records.trimming import trimmed_run
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

    import kafka.record
    from kafka.structs import TopicPartition as KafkaTopicPartition
    from typing_extensions import Self

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.client.requests import FetchResponse

_INCONSISTENT_TOPIC_ID = kafka_errors.InconsistentTopicIdError.errno
_OTHER_TOPIC = frozenset({_INCONSISTENT_TOPIC_ID, kafka_errors.UnknownTopicIdError.errno})
_OFFSET_OUT_OF_RANGE = kafka_errors.OffsetOutOfRangeError.errno
# The oldest resets beyond this number are dropped, if a consumer never takes them.
_MAX_RESETS = 100_000


class FetchOptions(NamedTuple):
    """How a RawConsumer checks and returns batches, by its options."""

    check_crcs: bool
    keeps_control_batches: bool
    trims_first_batch: bool


class OffsetReset(NamedTuple):
    """A change of a position by the consumer's reset policy (`auto_offset_reset`).

    from_offset: the position that a broker refused as out of range; None if none was refused.
    """

    topic_partition: KafkaTopicPartition
    from_offset: int | None
    to_offset: int


class RawFetcher(Fetcher):  # type: ignore[misc]
    """A Fetcher whose `fetch_records` returns lists of BatchRun. Its limits on records are limits on batches."""

    _options: FetchOptions
    _out_of_range: dict[KafkaTopicPartition, int]
    _resets: deque[OffsetReset]
    _pinned_ids: dict[str, UUID]
    _ids_in_session: dict[Any, dict[str, UUID]]  # by node
    _fetched_by_name: set[str]
    _unknown_topics: set[str]
    _encoder: FetchEncoder

    @classmethod
    def replacing(cls, made: Fetcher, options: FetchOptions) -> Self:
        """Create a RawFetcher in place of a fetcher that was not used yet, with that one's metrics."""
        fetcher = cls(made._client, made._subscriptions, **{**made.config, "metrics": None})
        fetcher._sensors = made._sensors
        fetcher._options = options
        fetcher._out_of_range = {}
        fetcher._resets = deque(maxlen=_MAX_RESETS)
        fetcher._pinned_ids = {}
        fetcher._ids_in_session = {}
        fetcher._fetched_by_name = set()
        fetcher._unknown_topics = set()
        config = fetcher.config
        fetcher._encoder = FetchEncoder(
            max_wait_ms=config["fetch_max_wait_ms"],
            min_bytes=config["fetch_min_bytes"],
            max_bytes=config["fetch_max_bytes"],
            isolation_level=fetcher._isolation_level,
            rack_id=config["client_rack"].encode(),
        )
        return fetcher

    def pin_topic_id(self, topic: str, topic_id: UUID | None) -> None:
        """Fetch a topic by this id alone, if the broker supports that. None: fetch it by name."""
        if self._pinned_ids.get(topic) == topic_id:
            return
        if topic_id is None:
            del self._pinned_ids[topic]
        else:
            self._pinned_ids[topic] = topic_id
        self._discard_fetched(topic)

    def take_fetched_by_name(self) -> set[str]:
        """Return the topics with a pinned id of which batches were fetched by name since the last call."""
        taken, self._fetched_by_name = self._fetched_by_name, set()
        return taken

    def take_unknown_topics(self) -> set[str]:
        """Return the topics whose pinned id a broker did not know since the last call."""
        taken, self._unknown_topics = self._unknown_topics, set()
        return taken

    def take_offset_resets(self) -> Iterator[OffsetReset]:
        """Yield each reset of a position once. Another thread may add resets meanwhile."""
        while self._resets:
            yield self._resets.popleft()

    @property
    def fetched_bytes(self) -> int:
        """The size of the batches that were fetched and not returned yet. Another thread may add some meanwhile."""
        waiting = [*self._completed_fetches.copy(), *self._paused_completed_fetches.values()]
        parsed: list[PartitionBatches | None]
        parsed = [self._next_partition_records, *self._paused_partition_records.values()]
        sizes = [len(fetch.partition_data.records or b"") for fetch in waiting]
        return sum(sizes) + sum(part.bytes_left for part in parsed if part)

    def _discard_fetched(self, topic: str) -> None:
        """Drop the batches that were fetched before the topic got another id."""
        # The consumer's own thread may append meanwhile. One pop and append at a time loses no fetch.
        for _ in range(len(self._completed_fetches)):
            fetch = self._completed_fetches.popleft()
            if fetch.topic_partition.topic != topic:
                self._completed_fetches.append(fetch)
        for paused in (self._paused_completed_fetches, self._paused_partition_records):
            for partition in [one for one in list(paused) if one.topic == topic]:
                del paused[partition]
        part = self._next_partition_records
        if part is not None and part.topic_partition.topic == topic:
            part.drain()

    def _create_fetch_requests(self) -> dict[Any, tuple[FetchRequest, dict[KafkaTopicPartition, int]]]:
        for node_id, handler in self._session_handlers.items():
            asked = self._ids_in_session.get(node_id, {})
            # A topic cannot change its id within a session.
            if any(self._pinned_ids.get(topic) != topic_id for topic, topic_id in asked.items()):
                handler.next_metadata = handler.next_metadata.next_close_existing()
        return {
            node_id: (
                self._fetch_request(node_id, wanted),
                {partition: one.fetch_offset for partition, one in wanted.items()},
            )
            for node_id, wanted in self._wanted_by_node().items()
        }

    def _wanted_by_node(self) -> dict[Any, dict[KafkaTopicPartition, FetchPartition]]:
        """Return the partitions to fetch now, by the node to fetch from: a node that is connected and not asked yet."""
        cluster, assignment = self._manager.cluster, self._subscriptions.assignment
        max_bytes = self.config["max_partition_fetch_bytes"]
        takes_requests: dict[Any, bool] = {}
        wanted: dict[Any, dict[KafkaTopicPartition, FetchPartition]] = {}
        for partition in self._fetchable_partitions():
            node_id = self._select_read_replica(partition)
            if node_id is None or node_id == -1:
                cluster.request_update()
                continue
            if node_id not in takes_requests:
                takes_requests[node_id] = self._takes_request(node_id)
            if takes_requests[node_id]:
                position = assignment[partition].position
                leader_epoch = cluster.leader_epoch_for_partition(partition)
                wanted.setdefault(node_id, {})[partition] = FetchPartition(
                    partition.partition,
                    position.offset,
                    -1 if leader_epoch is None else leader_epoch,
                    -1 if position.leader_epoch is None else position.leader_epoch,
                    max_bytes,
                )
        return wanted

    def _takes_request(self, node_id: Any) -> bool:
        return (
            node_id not in self._nodes_with_pending_fetch_requests
            and self._manager.connection_delay(node_id) <= 0
            and self._client.throttle_delay(node_id) <= 0
        )

    def _fetch_request(self, node_id: Any, wanted: dict[KafkaTopicPartition, FetchPartition]) -> FetchRequest:
        if self._enable_incremental_fetch_sessions:
            if node_id not in self._session_handlers:
                self._session_handlers[node_id] = FetchSessionHandler(node_id)
            asked = self._session_handlers[node_id].build_next(wanted)
        else:
            asked = FetchRequestData(wanted, None, FetchMetadata.LEGACY)
        topic_ids = self._topic_ids(node_id, asked)
        min_version = KafkaFetchRequest.min_version_for_isolation_level(self._isolation_level)
        session = FetchSession(asked.id, asked.epoch)
        return FetchRequest(
            self._encoder, session, asked._to_send, asked._to_forget, topic_ids, min_version=min_version
        )

    def _topic_ids(self, node_id: Any, asked: FetchRequestData) -> dict[str, UUID]:
        """Return the ids of the topics in a request, if the ids of all topics in its session are pinned; else none."""
        handler = self._session_handlers.get(node_id)
        topics = {partition.topic for partition in asked._to_send}
        topics.update(partition.topic for partition in (handler.session_partitions if handler else ()))
        ids = {topic: self._pinned_ids[topic] for topic in topics if topic in self._pinned_ids}
        known = {**self._ids_in_session.get(node_id, {}), **ids}
        if len(ids) < len(topics) or any(partition.topic not in known for partition in asked._to_forget):
            self._ids_in_session.pop(node_id, None)
            return {}
        self._ids_in_session[node_id] = ids
        return known

    def _handle_fetch_response(
        self,
        node_id: Any,
        fetch_offsets: dict[KafkaTopicPartition, int],
        send_time: float,
        response: FetchResponse,
    ) -> None:
        if response.API_VERSION >= TOPIC_IDS_VERSION:
            self._name_topics(response, self._ids_in_session.get(node_id, {}))
        super()._handle_fetch_response(node_id, fetch_offsets, send_time, response)

    def _name_topics(self, response: FetchResponse, asked: dict[str, UUID]) -> None:
        names: dict[UUID | None, str] = {topic_id: topic for topic, topic_id in asked.items()}
        response.responses = [one for one in response.responses if one.topic_id in names]
        for topic in response.responses:
            topic.topic = names[topic.topic_id]
            if self._pinned_ids.get(topic.topic) != topic.topic_id:  # another id was pinned meanwhile
                for partition in topic.partitions:
                    partition.error_code, partition.records = _INCONSISTENT_TOPIC_ID, None

    def _append(
        self,
        drained: dict[Any, list[BatchRun]],
        part: PartitionBatches,
        max_records: int,
        update_offsets: bool,
    ) -> int:
        before = part.records_read
        super()._append(drained, part, max_records, update_offsets)
        return part.records_read - before

    def _parse_fetched_data(self, completed_fetch: CompletedFetch) -> PartitionBatches | None:
        topic = completed_fetch.topic_partition.topic
        if completed_fetch.partition_data.error_code in _OTHER_TOPIC:
            self._unknown_topics.add(topic)
        elif topic in self._pinned_ids and completed_fetch.response_version < TOPIC_IDS_VERSION:
            self._fetched_by_name.add(topic)
        try:
            batches: PartitionBatches | None = super()._parse_fetched_data(completed_fetch)
        except kafka_errors.CorruptRecordError as error:
            if isinstance(error, CorruptFetchedBatchError):
                raise
            damage = CorruptRecordError("its broker found it damaged (CORRUPT_MESSAGE)")
            partition = TopicPartition(*completed_fetch.topic_partition)
            raise CorruptFetchedBatchError(damage, partition, completed_fetch.fetched_offset, None) from None
        is_out_of_range = completed_fetch.partition_data.error_code == _OFFSET_OUT_OF_RANGE
        if is_out_of_range and self._subscriptions.is_offset_reset_needed(completed_fetch.topic_partition):
            self._out_of_range[completed_fetch.topic_partition] = completed_fetch.fetched_offset
        return batches

    def _reset_offset_if_needed(
        self, partition: KafkaTopicPartition, timestamp: int | None, offset: int
    ) -> None:
        is_wanted = self._subscriptions.is_assigned(partition) and self._subscriptions.is_offset_reset_needed(
            partition
        )
        from_offset = self._out_of_range.pop(partition, None)
        super()._reset_offset_if_needed(partition, timestamp, offset)
        if is_wanted and not self._subscriptions.is_offset_reset_needed(partition):
            self._resets.append(OffsetReset(partition, from_offset, offset))

    def PartitionRecords(  # noqa: N802 - a class in kafka-python
        self,
        fetch_offset: int,
        topic_partition: KafkaTopicPartition,
        records: kafka.record.MemoryRecords,
        *,
        isolation_level: IsolationLevel,
        aborted_transactions: Iterable[Any] | None,
        metric_aggregator: Any,
        on_drain: Callable[[Any], None],
        **_configured: Any,
    ) -> PartitionBatches:
        is_committed = isolation_level == IsolationLevel.READ_COMMITTED
        return PartitionBatches(
            fetch_offset,
            topic_partition,
            memoryview(records._buffer),
            self._options,
            aborted_transactions=(aborted_transactions or ()) if is_committed else (),
            metric_aggregator=metric_aggregator,
            on_drain=on_drain,
        )


class PartitionBatches:
    """The batches of one partition in a fetch response, in place of kafka-python's PartitionRecords.

    A batch that begins before `fetch_offset` and ends after it is trimmed. Batches that end before it, control batches
    and batches of `aborted_transactions` are left out, as the options say. Batches before damage are returned, then the
    damage is raised. Positions in errors are byte positions in `data`.
    """

    def __init__(
        self,
        fetch_offset: int,
        topic_partition: KafkaTopicPartition,
        data: memoryview,
        options: FetchOptions,
        *,
        aborted_transactions: Iterable[Any],
        metric_aggregator: Any,
        on_drain: Callable[[Any], None],
    ) -> None:
        self.topic_partition = topic_partition
        self.fetch_offset = self.next_fetch_offset = fetch_offset
        self.leader_epoch = -1
        self.bytes_read = 0
        self.records_read = 0  # batches, which `max_poll_records` limits
        self._data = data
        self._options = options
        self._aborted_transactions = aborted_transactions
        self._metric_aggregator = metric_aggregator
        self._on_drain = on_drain
        self._is_drained = False
        self._error: KafkaFormatError | None = None
        run = self._sound_run()
        if run is None and self._error is None and len(data):
            self._error = CorruptRecordError(
                f"batch not whole: {len(data)} bytes of it were fetched. Its length is damaged, or it is larger than "
                "the most that is fetched of a partition (max_partition_fetch_bytes)",
                position=0,
            )
        # Raised here, because kafka-python's own error for a fetch without a whole batch has no offset to continue at.
        if run is None and self._error is not None:
            raise self._with_partition(self._error)
        try:
            self._runs = deque(self._wanted_runs(run) if run is not None else ())
        except KafkaFormatError as error:  # the first batch must be trimmed and cannot be opened
            raise self._with_partition(error) from None
        self._end = self._state_after(run)

    def __bool__(self) -> bool:
        return not self._is_drained

    @property
    def bytes_left(self) -> int:
        """The number of fetched bytes that were not returned yet."""
        return len(self._data) - self.bytes_read

    def drain(self) -> None:
        """Drop the batches that are left."""
        if not self._is_drained:
            self._is_drained = True
            self._runs.clear()
            if self._metric_aggregator:
                self._metric_aggregator.record(self.topic_partition, self.bytes_read, self.records_read)
            self._on_drain(self)

    def take(self, n: int) -> list[BatchRun]:
        """Return the next `n` batches or fewer, in runs without gaps.

        Raises CorruptFetchedBatchError if the next batch is damaged.
        """
        taken: list[BatchRun] = []
        before = self.next_fetch_offset
        room = n
        while self._runs and room:
            run = self._runs.popleft()
            if len(run) > room:
                self._runs.appendleft(slice_run(run, room, len(run)))
                run = slice_run(run, 0, room)
            room -= len(run)
            self.records_read += len(run)
            self.bytes_read += run.end_position - int(run.index["position"][0])
            taken.append(run)
        self.next_fetch_offset, self.leader_epoch = self._state_after(taken[-1]) if self._runs else self._end
        if self._runs or (self._error is not None and self.next_fetch_offset > before):
            return taken
        self.drain()
        if self._error is not None:
            raise self._with_partition(self._error)
        return taken

    def _sound_run(self) -> BatchRun | None:
        """Return the batches before the first damage, or None if there are none. The damage becomes `_error`."""
        run, damage = None, None
        try:
            for whole in MemoryRecords(self._data).runs(run_bytes=max(len(self._data), 1)):
                run = whole
        except KafkaFormatError as error:
            self._error = error
        if run is not None and self._options.check_crcs:
            run, damage = sound_part(run)
        self._error = damage or self._error
        return run or None

    def _state_after(self, run: BatchRun | None) -> tuple[int, int]:
        """Return the next offset after a run, and the leader epoch of its last batch."""
        if run is None:
            return self.fetch_offset, -1
        row = run.index[-1]
        return max(int(row["last_offset"]) + 1, self.fetch_offset), int(row["partition_leader_epoch"])

    def _wanted_runs(self, run: BatchRun) -> Iterator[BatchRun]:
        rows = run.index
        wanted = rows["last_offset"] >= self.fetch_offset
        if not self._options.keeps_control_batches:
            wanted &= ~rows["is_control"]
        if self._aborted_transactions:
            wanted &= ~of_aborted_transactions(rows, self._aborted_transactions)
        edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
        for first, stop in edges.reshape(-1, 2).tolist():
            if self._options.trims_first_batch and RecordBatch(run, first).base_offset < self.fetch_offset:
                yield trimmed_run(run, first, self.fetch_offset)
                first += 1
            if first < stop:
                yield slice_run(run, first, stop)

    def _with_partition(self, error: KafkaFormatError) -> CorruptFetchedBatchError:
        partition = TopicPartition(*self.topic_partition)
        return CorruptFetchedBatchError(error, partition, self.next_fetch_offset, self._next_offset(error))

    def _next_offset(self, error: KafkaFormatError) -> int | None:
        """Return the offset of the next sound batch, or the one after the damaged batch if its header is consistent."""
        records = MemoryRecords(self._data)
        after = records.position_after(error)
        if after < records.end_position:
            offset = int(_row_at(records, after)["base_offset"])
        elif error.position is not None and error.last_offset is not None:
            row = _row_at(records, error.position)
            offset = int(row["base_offset"]) + int(row["count"])
            if offset != row["last_offset"] + 1:
                return None
        else:
            return None
        return offset if offset > self.next_fetch_offset else None


def _row_at(records: MemoryRecords, position: int) -> np.void:
    row: np.void = next(records.runs(position)).index[0]
    return row
