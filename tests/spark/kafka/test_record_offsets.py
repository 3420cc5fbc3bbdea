"""The offsets of a record stream if a broker does not know a partition for a moment."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kafkafmt.scanning.brokers.options import BrokerOptions
from kafkafmt.scanning.data_loss import DataLossError
from kafkafmt.spark.kafka.records import streaming
from kafkafmt.spark.kafka.records.options import RecordReadOptions
from kafkafmt.spark.kafka.records.streaming import RecordStream
from kafkafmt.types import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
END = 10


class Brokers:
    """Brokers whose logs have the offsets below END. listings: the partitions that each listing has."""

    listings: list[list[TopicPartition]]

    def __init__(self, options: BrokerOptions) -> None:
        pass

    def partitions(self, topics: Iterable[str] | None) -> list[TopicPartition]:
        return self.listings.pop(0)

    def beginnings(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, END)


def stream_of(
    monkeypatch: pytest.MonkeyPatch, *listings: list[TopicPartition], **options: str
) -> RecordStream:
    monkeypatch.setattr(streaming, "SourceBrokers", Brokers)
    monkeypatch.setattr(Brokers, "listings", list(listings), raising=False)
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "a,b", "fetchOffset.retryIntervalMs": "0"}
    return RecordStream(RecordReadOptions.parse_stream({**given, **options}))


@pytest.mark.parametrize("fails", ["true", "false"])
def test_offsets_when_a_listing_lacks_a_known_partition_then_it_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    stream = stream_of(monkeypatch, [B], [A, B], failOnDataLoss=fails)
    assert stream.latest_offsets({A: 5, B: 5}) == {A: END, B: END}
    assert [task.range.start for task in stream.tasks({A: 5, B: 5}, {A: END, B: END})] == [5, 5]


def test_offsets_when_each_listing_lacks_a_known_partition_then_it_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = stream_of(monkeypatch, [B], [B], [B])
    with pytest.raises(DataLossError, match=r"^partition a-0: expected offset 5, found no such partition"):
        stream.latest_offsets({A: 5, B: 5})
    assert Brokers.listings == []


def test_offsets_when_the_listing_of_the_end_lacks_a_known_partition_then_its_offset_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = stream_of(monkeypatch, [B], [A, B])
    stream.fix_end()
    start = {A: 5, B: 5}
    end = stream.latest_offsets(start)
    assert end == {A: 5, B: END}
    assert [task.range.topic_partition for task in stream.tasks(start, end)] == [B]
