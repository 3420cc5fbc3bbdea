"""What the driver asks the brokers: which partitions there are, where they begin and end, and where batches end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from kafka import IsolationLevel, OffsetSpec
from kafka.errors import (
    NoError,
    OffsetOutOfRangeError,
    RetriableError,
    UnknownTopicOrPartitionError,
    for_code,
)

from kafkafmt.net.errors import CorruptRecordError
from kafkafmt.spark.kafka.clients import BrokerError, assign, broker_errors
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    import numpy as np
    from kafka import KafkaAdminClient

    from kafkafmt.net import RawConsumer
    from kafkafmt.spark.kafka.options import KafkaReadOptions

_LOG = logging.getLogger(__name__)

# What a broker sends of a partition whose batch is looked for: if that is larger, it comes alone in an answer.
_PEEKED_BYTES = 64 * 1024
_POLL_MS = 1000
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 2.0

_Answer = TypeVar("_Answer")


class Cluster:
    """The brokers that the options name, over connections that are made once. To be asked by one thread.

    Once they have answered, everything is tried again while brokers are away, for as long as a poll may take; then it
    raises BrokerError.
    """

    def __init__(self, options: KafkaReadOptions) -> None:
        self._options = options
        self._servers = options.clients.bootstrap_servers

    @cached_property
    def _admin(self) -> KafkaAdminClient:
        return self._options.clients.admin()

    @cached_property
    def _peeking(self) -> RawConsumer:
        """A consumer of what is stored, whatever the isolation of the reads."""
        return self._options.clients.consumer(
            isolation_level="read_uncommitted",
            keep_control_batches=True,
            trim_first_batch=False,
            check_crcs=False,
            max_partition_fetch_bytes=_PEEKED_BYTES,
        )

    def close(self) -> None:
        """Give up the connections."""
        for name in ("_admin", "_peeking"):
            client = self.__dict__.pop(name, None)
            if client is not None:
                client.close()

    def partitions(self) -> list[TopicPartition]:
        """Those that the options select and that are there, in order.

        Topics that are named and not there are left out, as are Kafka's internal ones that a pattern matches.
        """
        topics, assigned = self._options.topics, self._options.assigned
        names = None if topics.pattern is not None else list(topics.names)
        if assigned is not None:
            names = sorted({one.topic for one in assigned})
        found = {
            TopicPartition(topic["name"], partition["partition_index"])
            for topic in self._asked(lambda admin: _described(admin, names))
            if names is not None or (topic["name"] in topics and not topic["is_internal"])
            for partition in topic["partitions"]
        }
        return sorted(found if assigned is None else found & assigned)

    def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind what a consumer of the isolation that is asked for gets to read of each partition."""
        return self._offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))

    def at_timestamp(
        self, partitions: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int | None]:
        """The offset of the first record with that timestamp in milliseconds or a later one; None without any."""
        found = self._offsets(dict.fromkeys(partitions, timestamp))
        return {one: offset if offset >= 0 else None for one, offset in found.items()}

    def batch_edges(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Where no batch is cut: the nearest offsets to each one, the one not above it and the other not below.

        Both are that offset itself where one batch ends and another begins. Of a compressed v0/v1 wrapper, which does
        not tell where it begins, both are its end; where there is damage, of which the tasks tell, the offset behind.
        """
        wanted, found = dict(offsets), {}
        deadline = time.monotonic() + self._options.poll_timeout_ms / 1000
        with broker_errors(self._servers):
            while wanted:
                assign(self._peeking, {one: max(offset - 1, 0) for one, offset in wanted.items()})
                try:
                    polled = self._peeking.poll_runs(timeout_ms=_POLL_MS)
                except CorruptRecordError as error:
                    partition = TopicPartition(*error.topic_partition)
                    behind = max(error.next_offset or 0, wanted.pop(partition))
                    found[partition] = behind, behind
                    continue
                except OffsetOutOfRangeError as error:  # deleted since; the tasks are told of it
                    for one in error.args[0]:
                        partition = TopicPartition(*one)
                        found[partition] = wanted[partition], wanted.pop(partition)
                    continue
                for one, runs in polled.items():
                    partition = TopicPartition(*one)
                    found[partition] = _edges(runs[0].index[0], wanted.pop(partition))
                # Of an answer without any batch: there is none there up to the end of the log.
                if not polled and all(
                    self._peeking.highwater(one) is not None for one in self._peeking.assignment()
                ):
                    return {**found, **{one: (offset, offset) for one, offset in wanted.items()}}
                if time.monotonic() > deadline:
                    waited = f"no answer in {self._options.poll_timeout_ms} ms (kafkaConsumer.pollTimeoutMs)"
                    raise BrokerError(f"{self._servers}: {', '.join(map(str, sorted(wanted)))}: {waited}")
        return found

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
    """Those nearest to an offset; `row` is the first batch that ends behind the record in front of it."""
    first, after = int(row["base_offset"]), int(row["last_offset"]) + 1
    if first >= offset or after == offset:
        return offset, offset
    return (after if first < 0 else first), after


def _described(admin: KafkaAdminClient, names: Collection[str] | None) -> list[dict[str, Any]]:
    """The topics that are there; raises what is wrong with one that cannot be described for another reason."""
    found = []
    for topic in admin.describe_topics(names):
        error = for_code(topic["error_code"])
        if error is NoError:
            found.append(topic)
        elif error is not UnknownTopicOrPartitionError:
            raise error(topic["name"])
    return found
