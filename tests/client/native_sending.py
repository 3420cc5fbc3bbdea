"""A sender of records without connections: the native part of a producer on an accumulator of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kafkafmt as kf
from _kafkafmt.client.partitions import KnownTopics, TopicPartitions
from _kafkafmt.client.sending import ManyRecords, RecordSender
from client.accumulator.partitions import accumulator_of
from kafkafmt.client.accumulator import RecordAccumulator

TOPIC = "clicks"


class GeneralPath(Exception):
    """A record was left to the general path. The arguments are those of the call."""


class LocalSender(RecordSender):
    """Sends to the partitions of one topic. What needs the checks of a producer raises GeneralPath.

    news: counts how often a batch was begun or became full.
    """

    def __init__(
        self, accumulator: RecordAccumulator, partitions: int = 4, tell: Callable[[], None] = lambda: None
    ) -> None:
        self.accumulator = accumulator
        self._told = tell
        self.news = 0
        by_number = {number: kf.TopicPartition(TOPIC, number) for number in range(partitions)}
        topics = KnownTopics()
        topics.topics[TOPIC] = TopicPartitions(by_number, list(by_number.values()))
        self._begin_sending_natively(accumulator, topics, self.tell, 1 << 20)
        self._closed = False

    def tell(self) -> None:
        self.news += 1
        self._told()

    def send_many(self, *columns: Any, partition: int | None = None) -> ManyRecords:
        """Send what takes the native path; a column may be missing."""
        records = ManyRecords(*columns, *[None] * (4 - len(columns)))
        self._send_next(TOPIC, records, partition)
        return records

    def _append(self, topic_partition: Any, timestamp: int, key: Any, value: Any, headers: Any) -> Any:
        appended = self.accumulator._append(
            topic_partition, timestamp, key, value, headers or (), 0, None, False
        )
        assert appended is not None
        if appended[1]:
            self.tell()
        return appended[0]

    def _send(self, *arguments: Any) -> Any:
        raise GeneralPath(*arguments)


def sender_of(partitions: int = 4, **options: Any) -> LocalSender:
    return LocalSender(accumulator_of(**options), partitions)
