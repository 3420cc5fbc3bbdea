"""Produce requests of one producer, and the responses to them, encoded and decoded natively."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from kafka.protocol.producer import ProduceRequest

from _kafkafmt.client.messages import RequestHeader
from _kafkafmt.client.produce import OLDEST_VERSION, PRODUCE_DTYPE, ProduceEncoder, produced_partitions

if TYPE_CHECKING:
    from kafka.protocol.broker_version_data import BrokerVersionData
    from typing_extensions import Buffer

    from kafkafmt.client.accumulator import ProducerBatch

# From version 12 on the request itself adds partitions to a transaction (KIP-890), which `Transactions` does not do.
_NEWEST_VERSION = 11
_TOPIC = attrgetter("topic_partition.topic")
# A row of PRODUCE_DTYPE: numbers of topic and partition, size of the records.
_ROW = struct.Struct("<iii")
assert _ROW.size == PRODUCE_DTYPE.itemsize


class ProducedPartition(NamedTuple):
    """The answer of a broker for one partition.

    record_errors: numbers of records, and messages (KIP-467).
    leader_id, leader_epoch: the new leader, if the broker does not lead the partition and knows who does (KIP-951); -1.
    """

    topic: bytes
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    leader_id: int = -1
    leader_epoch: int = -1


class ProduceRequests:
    """Encodes the requests of a producer and decodes their responses.

    timeout_ms: how long a broker waits for its replicas.
    """

    def __init__(
        self, *, client_id: str | None, transactional_id: str | None, acks: int, timeout_ms: int
    ) -> None:
        self._client_id = None if client_id is None else client_id.encode()
        transaction = None if transactional_id is None else transactional_id.encode()
        self._encoder = ProduceEncoder(transaction, acks, timeout_ms)
        self._names: dict[str, bytes] = {}
        self._versions: BrokerVersionData | None = None  # for which `_version` was found
        self._version = OLDEST_VERSION

    def version_for(self, versions: BrokerVersionData) -> int:
        """Return the version to use with a broker. Raises IncompatibleBrokerVersion for one before 0.11."""
        if versions is not self._versions:
            self._version = versions.api_version(
                ProduceRequest, min_version=OLDEST_VERSION, max_version=_NEWEST_VERSION
            )
            self._versions = versions
        return self._version

    def encode(
        self, batches: Sequence[ProducerBatch], version: int, correlation_id: int
    ) -> tuple[list[ProducerBatch], list[Buffer]]:
        """Return the batches in the order of the request, and its bytes: the data of the batches is not copied."""
        ordered = sorted(batches, key=_TOPIC) if len(batches) > 1 else list(batches)
        topics: list[bytes] = []
        rows = b""
        pieces: list[Buffer] = []
        last = None
        for batch in ordered:
            topic, partition = batch.topic_partition
            if topic != last:
                topics.append(self.name_of(topic))
                last = topic
            data = batch.data
            rows += _ROW.pack(len(topics) - 1, partition, len(data))  # type: ignore[arg-type]
            pieces.append(data)
        header = RequestHeader(version, correlation_id, self._client_id)
        around = self._encoder.encode(header, topics, rows)
        joined: list[Buffer] = [b""] * (2 * len(pieces) + 1)
        joined[::2] = around
        joined[1::2] = pieces
        return ordered, joined

    def name_of(self, topic: str) -> bytes:
        """Return the name of a topic as a request and its response have it."""
        name = self._names.get(topic)
        if name is None:
            name = self._names[topic] = topic.encode()
        return name

    def decode(self, response: Buffer, version: int) -> tuple[int, Iterable[ProducedPartition]]:
        """Return for how many milliseconds the broker throttles the client, and the answer for each partition.

        Raises MalformedResponseError and UnicodeDecodeError.
        """
        throttle_time_ms, partitions = produced_partitions(response, version)
        return throttle_time_ms, map(ProducedPartition._make, partitions)
