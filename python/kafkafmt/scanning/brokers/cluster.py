"""Requests for planning: partitions, their first offsets and ends, and the edges of batches."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from kafka import IsolationLevel, OffsetSpec
from kafka.errors import (
    NoError,
    OffsetOutOfRangeError,
    RetriableError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    for_code,
)

from kafkafmt.client.errors import CorruptFetchedBatchError
from kafkafmt.scanning.brokers.clients import assign
from kafkafmt.scanning.brokers.errors import BrokerError, broker_errors
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    import numpy as np
    from kafka import KafkaAdminClient

    from kafkafmt.client.raw_consumer import RawConsumer
    from kafkafmt.scanning.brokers.options import BrokerOptions

_LOG = logging.getLogger(__name__)

# The fetch size when looking for a batch. If a batch is larger, the broker sends it alone.
_PEEKED_BYTES = 64 * 1024
_POLL_MS = 1000
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 2.0

_Answer = TypeVar("_Answer")


class SourceBrokers:
    """The brokers of the options, for use by one thread. Connections are opened once.

    Once the brokers have answered, requests are retried while brokers are unavailable, for up to `poll_timeout_ms`.
    Then they raise BrokerError.

    bootstrap_ms: how long the first request waits for a broker, as for `ClientConfig.admin`.
    """

    def __init__(self, options: BrokerOptions, bootstrap_ms: int | None = None) -> None:
        self._options = options
        self._bootstrap_ms = bootstrap_ms
        self._servers = options.clients.bootstrap_servers
        self._leaders: dict[TopicPartition, int] = {}

    @cached_property
    def _admin(self) -> KafkaAdminClient:
        return self._options.clients.admin(self._bootstrap_ms)

    @cached_property
    def _peeking(self) -> RawConsumer:
        """A consumer of all stored batches, for any isolation level of the reads."""
        return self._options.clients.consumer(
            isolation_level="read_uncommitted",
            keep_control_batches=True,
            trim_first_batch=False,
            check_crcs=False,
            max_partition_fetch_bytes=_PEEKED_BYTES,
        )

    def close(self) -> None:
        """Close the connections."""
        for name in ("_admin", "_peeking"):
            client = self.__dict__.pop(name, None)
            if client is not None:
                client.close()

    def partitions(self, topics: Collection[str] | None) -> list[TopicPartition]:
        """Return the partitions of the topics that exist, in order.

        topics: names; None for all topics except internal ones.
        """
        found = {
            TopicPartition(topic["name"], partition["partition_index"]): partition["leader_id"]
            for topic in self._asked(lambda admin: _described(admin, topics))
            if topics is not None or not topic["is_internal"]
            for partition in topic["partitions"]
        }
        self._leaders.update(found)
        return sorted(found)

    def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each partition by the isolation level: its high watermark or last stable offset."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))

    def local_beginning(self, one: TopicPartition) -> int:
        """Return the first offset of a partition on the disks of its leader: earlier ones are in tiered storage."""

        def ask(admin: KafkaAdminClient) -> int:
            try:
                found = admin.list_partition_offsets({one: OffsetSpec.EARLIEST_LOCAL})
            except UnsupportedVersionError:  # the broker has no tiered storage
                return 0
            ((_, answer),) = found.items()
            return int(answer.offset)

        return self._asked(ask)

    def stored_bytes(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the size of the log of each partition that `partitions` has found, as its leader has it on its disks.

        Partitions whose leader does not say are left out, as those of a user without the right to describe the cluster.
        """
        of_topics: dict[str, list[int]] = defaultdict(list)
        for one in partitions:
            of_topics[one.topic].append(one.partition)
        leaders = sorted({self._leaders[one] for one in partitions if self._leaders.get(one, -1) >= 0})
        try:
            with broker_errors(self._servers):
                answers = self._admin.describe_log_dirs(of_topics, leaders)
        except BrokerError as error:
            _LOG.info("the sizes of logs are unknown: %s", error)
            return {}
        return {
            one: found["partition_size"]
            for answer in answers
            for folder in answer["log_dirs"]
            for topic in folder["topics"]
            for found in topic["partitions"]
            if self._leaders.get(one := TopicPartition(topic["name"], found["partition_index"]))
            == answer["broker"]
            and not found["is_future_key"]
        }

    def at_timestamp(
        self, partitions: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record at or after a timestamp in milliseconds, or None without any."""
        found = self._offsets(dict.fromkeys(partitions, timestamp))
        return {one: offset if offset >= 0 else None for one, offset in found.items()}

    def batch_edges(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the nearest edges between batches for each offset: one at or below it, and one at or above it.

        Both are the offset itself if it is an edge. In a compressed v0/v1 wrapper, whose first offset is unknown, both
        are its end. In a damaged range, both are its end, and the tasks report the damage. Raises BrokerError.
        """
        wanted, found, is_alone = dict(offsets), {}, False
        deadline = time.monotonic() + self._options.poll_timeout_ms / 1000
        with broker_errors(self._servers):
            while wanted:
                asked = {one: max(offset - 1, 0) for one, offset in wanted.items()}
                if is_alone:
                    asked = dict([min(asked.items())])
                assign(self._peeking, asked)
                try:
                    polled = self._peeking.poll_runs(timeout_ms=_POLL_MS)
                except CorruptFetchedBatchError as error:
                    partition = TopicPartition(*error.topic_partition)
                    following = max(error.next_offset or 0, wanted.pop(partition))
                    found[partition] = following, following
                    continue
                except OffsetOutOfRangeError as error:  # deleted since; the tasks will detect it
                    for one in error.args[0]:
                        partition = TopicPartition(*one)
                        found[partition] = wanted[partition], wanted.pop(partition)
                    continue
                for one, runs in polled.items():
                    partition = TopicPartition(*one)
                    found[partition] = _edges(runs[0].index[0], wanted.pop(partition))
                if not polled and self._are_all_answered():
                    # If a partition was asked alone, it has no batch up to its end, unless tiered storage is slow.
                    if is_alone and all(start >= self.local_beginning(one) for one, start in asked.items()):
                        found.update((one, (wanted[one], wanted.pop(one))) for one in asked)
                    is_alone = True
                if wanted and time.monotonic() > deadline:
                    waited = f"no answer in {self._options.poll_timeout_ms} ms ({self._options.names.poll_timeout})"
                    raise BrokerError(f"{self._servers}: {', '.join(map(str, sorted(wanted)))}: {waited}")
        return found

    def _are_all_answered(self) -> bool:
        return all(self._peeking.highwater(one) is not None for one in self._peeking.assignment())

    def _offsets(self, specs: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
        if not specs:
            return {}
        isolation = IsolationLevel.build_from(self._options.clients.config["isolation_level"])
        found = self._asked(lambda admin: admin.list_partition_offsets(specs, isolation))
        return {TopicPartition(*one): answer.offset for one, answer in found.items()}

    def _asked(self, ask: Callable[[KafkaAdminClient], _Answer]) -> _Answer:
        deadline = time.monotonic() + self._options.poll_timeout_ms / 1000
        wait = _FIRST_WAIT_SECONDS
        with broker_errors(self._servers):
            admin = self._admin
            while True:
                try:
                    return ask(admin)
                except RetriableError as error:
                    if time.monotonic() > deadline:
                        raise
                    _LOG.info("%s: %s: asking again", self._servers, error)
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)


def _edges(row: np.void, offset: int) -> tuple[int, int]:
    """Return the edges nearest to `offset`. `row` is the first batch that ends at or after it."""
    first, after = int(row["base_offset"]), int(row["last_offset"]) + 1
    if first >= offset or after == offset:
        return offset, offset
    return (after if first < 0 else first), after


def _described(admin: KafkaAdminClient, names: Collection[str] | None) -> list[dict[str, Any]]:
    """Return the descriptions of the topics that exist. Raises the KafkaError of a topic for any other reason."""
    found = []
    for topic in admin.describe_topics(names):
        error = for_code(topic["error_code"])
        if error is NoError:
            found.append(topic)
        elif error is not UnknownTopicOrPartitionError:
            raise error(topic["name"])
    return found
