"""The offsets of a stream of records or batches if a broker does not know a partition for a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from kafkafmt.scanning.brokers.listing import Attempts
from kafkafmt.scanning.brokers.options import BrokerOptions
from kafkafmt.scanning.data_loss import DataLossError
from kafkafmt.spark.kafka import offset_stream
from kafkafmt.spark.kafka.offset_stream import KafkaStream
from kafkafmt.spark.kafka.options import KafkaReadOptions
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


Streams = Callable[..., RecordStream | KafkaStream]


@pytest.fixture(params=["records", "batches"])
def stream_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Streams:
    """Makes a stream of a unit. Its brokers return the given listings, one after the other, without a pause."""
    monkeypatch.setattr(streaming, "SourceBrokers", Brokers)
    monkeypatch.setattr(offset_stream, "SourceBrokers", Brokers)
    monkeypatch.setattr(offset_stream, "Attempts", lambda: Attempts(interval_seconds=0))

    def make(*listings: list[TopicPartition], **options: str) -> RecordStream | KafkaStream:
        monkeypatch.setattr(Brokers, "listings", list(listings), raising=False)
        given = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "a,b", **options}
        if request.param == "batches":
            return KafkaStream(KafkaReadOptions.parse_stream({**given, "unit": "batches"}))
        return RecordStream(RecordReadOptions.parse_stream({**given, "fetchOffset.retryIntervalMs": "0"}))

    return make


@pytest.mark.parametrize("fails", ["true", "false"])
def test_offsets_when_a_listing_lacks_a_known_partition_then_it_is_asked_for_again(
    stream_of: Streams, fails: str
) -> None:
    stream = stream_of([B], [A, B], failOnDataLoss=fails)
    assert stream.latest_offsets({A: 5, B: 5}) == {A: END, B: END}
    assert [task.range.start for task in stream.tasks({A: 5, B: 5}, {A: END, B: END})] == [5, 5]


def test_tasks_when_a_restarted_query_lists_without_a_known_partition_then_it_is_asked_for_again(
    stream_of: Streams,
) -> None:
    stream = stream_of([B], [A, B])
    tasks = stream.tasks({A: 5, B: 5}, {A: END, B: END})
    assert [task.range.topic_partition for task in tasks] == [A, B]


def test_tasks_when_a_restarted_query_finds_no_new_partition_of_its_batch_then_it_is_lost(
    stream_of: Streams,
) -> None:
    stream = stream_of([B], [B], [B])
    with pytest.raises(DataLossError, match=r"^partition a-0: expected offset 10, found no such partition"):
        stream.tasks({B: 5}, {A: END, B: END})
    assert Brokers.listings == []


def test_offsets_when_each_listing_lacks_a_known_partition_then_it_is_lost(stream_of: Streams) -> None:
    stream = stream_of([B], [B], [B])
    with pytest.raises(DataLossError, match=r"^partition a-0: expected offset 5, found no such partition"):
        stream.latest_offsets({A: 5, B: 5})
    assert Brokers.listings == []


@pytest.mark.parametrize("stream_of", ["batches"], indirect=True)
def test_offsets_when_a_partition_was_deleted_then_later_listings_do_not_wait_for_it(
    stream_of: Streams,
) -> None:
    stream = stream_of([B], [B], [B], [B], [A, B], failOnDataLoss="false")
    first = stream.latest_offsets({A: 5, B: 5})
    assert len(Brokers.listings) == 2
    assert stream.latest_offsets(first) == first == {A: 5, B: END}
    assert stream.latest_offsets(first) == {A: END, B: END}


def test_offsets_when_the_listing_of_the_end_lacks_a_known_partition_then_its_offset_stays(
    stream_of: Streams,
) -> None:
    stream = stream_of([B], [A, B])
    stream.fix_end()
    start = {A: 5, B: 5}
    end = stream.latest_offsets(start)
    assert end == {A: 5, B: END}
    assert [task.range.topic_partition for task in stream.tasks(start, end)] == [B]
