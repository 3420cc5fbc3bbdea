"""The targets of `kafkafmt replay` besides a log directory: JSON lines on standard output, and a cluster.

Records for a cluster are gathered by partition until they fill a batch, and sent as columns. The plan's part for
producers bounds the bytes that are sent and not acknowledged. Acknowledgements are awaited in the order of sending.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kafkafmt.cli import rows as row_format
from kafkafmt.cli.output import flush_output, print_json
from kafkafmt.cli.record_formats import print_rendered
from kafkafmt.jobs.replay import ReplayError

if TYPE_CHECKING:
    from kafkafmt.cli.record_formats import RecordFormats
    from kafkafmt.client.accumulator import RecordsFuture
    from kafkafmt.mirror.addresses import ClusterAddress
    from kafkafmt.mirror.handlers import NewRecord
    from kafkafmt.streams import Merged, RecordSlice
    from kafkafmt.types import Codec, TopicPartition

# The producer's memory: a quarter for gathered records, half for records sent and not acknowledged.
_GATHERED_PART, _UNDER_WAY_PART = 4, 2
# The memory of a gathered record beyond its bytes.
_RECORD_BYTES = 300
_MAX_GATHERED_BYTES = 256 * 1024
_LEAST_REQUEST_BYTES = 1024 * 1024
_FOREVER_MS = 2**31 - 1


class JsonTarget:
    """Print each record as a JSON object on standard output, by the rules of `kafkafmt inspect --records --json`.

    formats: of keys and values; None for text or base64.
    """

    def __init__(self, formats: RecordFormats | None = None) -> None:
        self._formats = formats

    def write(self, merged: Merged) -> None:
        rows = (row for records in merged.runs() for row in self._rows(records))
        if self._formats is None:
            for row in rows:
                print_json(row_format.to_json(row))
        else:
            for row in self._formats.rendered(rows):
                print_rendered(row_format.to_json(row))

    def _rows(self, records: RecordSlice) -> Iterator[row_format.Row]:
        topic, partition = records.topic_partition
        for record in records.records():
            yield {"topic": topic, "partition": partition, **row_format.record_fields(record)}

    def flush(self) -> None:
        flush_output()

    def finish(self) -> None:
        self.flush()

    def close(self) -> None:
        """Do nothing: nothing is open."""


class ReplayClusterTarget:
    """Send records to a cluster.

    A record goes to the partition of the same number, modulo the number of partitions of the target topic.

    partitions: the number of partitions of each topic at the source. Missing topics are created with it. repartitions:
    choose the partition of a record with a key as Kafka's default partitioner does. Raises ReplayError.
    """

    def __init__(
        self,
        address: ClusterAddress,
        partitions: Mapping[str, int],
        config: Mapping[str, str],
        *,
        codec: Codec,
        memory_bytes: int,
        repartitions: bool = False,
    ) -> None:
        from kafkafmt.mirror.clusters import MirrorCluster
        from kafkafmt.net import Producer
        from kafkafmt.types import Codec as AnyCodec

        if address.expressions or len(address.topics) > 1:
            raise ReplayError(f"{address}: expected at most one topic after the slash")
        self._only_topic = address.topics[0] if address.topics else None
        self._address, self._repartitions = address, repartitions
        self._gathered: defaultdict[TopicPartition, list[NewRecord]] = defaultdict(list)
        self._sizes: defaultdict[TopicPartition, int] = defaultdict(int)
        self._gathered_bytes = self._under_way_bytes = 0
        self._under_way: deque[tuple[RecordsFuture, int]] = deque()
        self._max_gathered = memory_bytes // _GATHERED_PART
        self._max_under_way = memory_bytes // _UNDER_WAY_PART
        cluster = MirrorCluster(address, config)
        try:
            self._counts = self._made_topics(cluster, partitions)
            defaults: dict[str, Any] = {
                "linger_ms": 5,
                "metrics_enabled": False,
                "batch_size": _MAX_GATHERED_BYTES,
            }
            fixed: dict[str, Any] = {
                "acks": "all",
                "enable_idempotence": True,
                "buffer_memory": max(memory_bytes, _LEAST_REQUEST_BYTES),
                "max_request_size": max(memory_bytes // _UNDER_WAY_PART, _LEAST_REQUEST_BYTES),
                "delivery_timeout_ms": _FOREVER_MS,
                "compression_type": None if codec == AnyCodec.NONE else codec.name.lower(),
            }
            self._producer = Producer(**{**defaults, **cluster.config_of(Producer), **fixed})
        finally:
            cluster.close()

    def write(self, merged: Merged) -> None:
        for records in merged.runs():
            self._gather(records)

    def _gather(self, records: RecordSlice) -> None:
        from kafkafmt.mirror.handlers import NewRecord

        for record in records.records():
            made = NewRecord(record.key, record.value, record.headers, record.timestamp)
            target = self._target_of(records.topic_partition, made.key)
            size = _RECORD_BYTES + record.size_in_bytes
            self._gathered[target].append(made)
            self._sizes[target] += size
            self._gathered_bytes += size
            if self._sizes[target] >= min(_MAX_GATHERED_BYTES, self._max_gathered):
                self._send(target)
        if self._gathered_bytes >= self._max_gathered:
            self._send_all()

    def flush(self) -> None:
        self._send_all()
        while self._under_way:
            self._await_oldest()

    def finish(self) -> None:
        self.flush()

    def close(self) -> None:
        from kafkafmt.net import UndeliveredError

        with suppress(UndeliveredError):  # awaiting the future has raised the error already
            self._producer.close(0)

    def _made_topics(self, cluster: Any, partitions: Mapping[str, int]) -> dict[str, int]:
        from kafkafmt.log.topic_configs import TopicConfig

        wanted = dict(partitions)
        if self._only_topic is not None:
            wanted = {self._only_topic: max(partitions.values())}
        there = cluster.partition_counts(wanted)
        for topic, count in wanted.items():
            if topic not in there:
                cluster.create_topic(topic, TopicConfig(count))
        counts: dict[str, int] = cluster.partition_counts(wanted)
        return counts

    def _target_of(self, source: TopicPartition, key: bytes | None) -> TopicPartition:
        from _kafkafmt.client.murmur2 import murmur2
        from kafkafmt.types import TopicPartition as Target

        topic = source.topic if self._only_topic is None else self._only_topic
        count = self._counts.get(topic)
        if count is None:
            raise ReplayError(
                f"{source}: expected a topic that was there at the start, found one that was created later; start the "
                "command again"
            )
        is_by_key = self._repartitions and key is not None
        number = murmur2(key) & 0x7FFFFFFF if is_by_key and key is not None else source.partition
        return Target(topic, number % count)

    def _send_all(self) -> None:
        for target in list(self._gathered):
            self._send(target)

    def _send(self, target: TopicPartition) -> None:
        from kafkafmt.mirror.deep import columns_of

        records, size = self._gathered.pop(target), self._sizes.pop(target)
        self._gathered_bytes -= size
        while self._under_way and self._under_way_bytes + size > self._max_under_way:
            self._await_oldest()
        future = self._producer.send_columns(target.topic, *columns_of(records), partition=target.partition)
        self._under_way.append((future, size))
        self._under_way_bytes += size

    def _await_oldest(self) -> None:
        from kafkafmt.mirror.refusals import IDEMPOTENT_WRITE, Right, naming_refusals

        future, size = self._under_way.popleft()
        with naming_refusals(self._address, "writing records", Right("Write", "topic"), IDEMPOTENT_WRITE):
            future.get()
        self._under_way_bytes -= size
