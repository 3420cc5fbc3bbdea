"""The options of records of brokers: those of Spark's Kafka source, and errors in one line."""

from __future__ import annotations

import pytest

from kafkafmt.scanning.brokers.runs import PartitionRange
from kafkafmt.scanning.selection import EARLIEST, LATEST
from kafkafmt.spark.kafka.records.options import RecordReadOptions
from kafkafmt.spark.kafka.records.ranges import cut_ranges
from kafkafmt.types import TopicPartition

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "a"}


def test_options_when_not_given_then_are_the_defaults_of_spark() -> None:
    batch, stream = RecordReadOptions.parse(GIVEN), RecordReadOptions.parse_stream(GIVEN)
    assert (batch.starting.offsets, stream.starting.offsets) == (EARLIEST, LATEST)
    assert batch.ending.offsets == LATEST
    assert batch.brokers.clients.config["isolation_level"] == "read_uncommitted"
    assert (batch.brokers.fails_on_data_loss, batch.include_headers) == (True, False)
    assert (batch.attempts, batch.max_delay_seconds) == ((3, 1), 900)


def test_bounds_when_several_are_given_then_the_timestamp_of_all_has_precedence() -> None:
    by_timestamp = {"startingOffsetsByTimestamp": '{"a": {"0": 5}}', "startingOffsets": "latest"}
    options = RecordReadOptions.parse({**GIVEN, **by_timestamp, "startingTimestamp": "7"})
    assert options.starting.timestamps == 7
    options = RecordReadOptions.parse({**GIVEN, **by_timestamp})
    assert options.starting.timestamps == {TopicPartition("a", 0): 5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "option startingOffsets: a batch read cannot have latest there"),
        ({"startingOffsets": '{"a": {"0": -1}}'}, "option startingOffsets: a batch read cannot have latest there"),
        ({"endingOffsets": "earliest"}, "option endingOffsets: a batch read cannot have earliest there"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "option startingOffsets: expected earliest, latest or JSON as"),
        ({"startingOffsets": "[" * 100_000}, "option startingOffsets: expected earliest, latest or JSON as"),
        ({"startingOffsets": '{"a": {"0": 5}}', "endingOffsets": '{"a": {"0": 4}}'},
         "partition a-0: startingOffsets 5 is after endingOffsets 4"),
        ({"minPartitions": "0"}, "option minPartitions: expected"),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"},
         "option minOffsetsPerTrigger: expected at most maxOffsetsPerTrigger, 2, found 3"),
        ({"maxTriggerDelay": "soon"}, "option maxTriggerDelay: expected a duration, as 100ms"),
        ({"kafka.auto.offset.reset": "latest"}, "option kafka.auto.offset.reset: expected it left out"),
        ({"includeControlBatches": "true"}, "option includeControlBatches: control batches have no records"),
        ({"assign": '{"a": [0]}'}, "options subscribe and assign: expected one of them"),
    ],
)  # fmt: skip
def test_options_when_they_cannot_be_then_are_one_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        RecordReadOptions.parse({**GIVEN, **options})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("(?i)ORDERS", ["orders", "eu-orders-2"]),
        ("^orders|^visits$", ["orders", "visits"]),
        ("(?x) orders  # and their like", ["orders", "eu-orders-2"]),
    ],
)
def test_pattern_when_given_then_is_found_anywhere_in_a_name(pattern: str, matched: list[str]) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribePattern": pattern}
    selection = RecordReadOptions.parse(options).subscription.topics
    assert [name for name in ("orders", "eu-orders-2", "visits", "visits-2") if name in selection] == matched


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_stream_when_given_an_end_then_refuses_it(name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "5"}.get(name, '{"a": {"0": 5}}')
    with pytest.raises(ValueError, match=f"^option {name}: a stream does not take it"):
        RecordReadOptions.parse_stream({**GIVEN, name: value})


def test_ranges_when_cut_then_are_in_proportion_and_have_each_offset_once() -> None:
    small, large = (
        PartitionRange(TopicPartition("a", 0), 5, 15),
        PartitionRange(TopicPartition("a", 1), 0, 90),
    )
    empty = PartitionRange(TopicPartition("a", 2), 7, 7)
    cut = cut_ranges([small, large, empty], least=6)
    assert cut[0] == small
    assert [one.end - one.start for one in cut[1:]] == [18] * 5
    assert [one.start for one in cut[1:]] == [0, 18, 36, 54, 72]
    assert [one.end - one.start for one in cut_ranges([large], most_records=40)] == [30, 30, 30]
    assert cut_ranges([empty]) == []


def test_options_of_streams_when_given_to_a_batch_read_then_a_warning_names_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"fetchOffset.numRetries": "5", "fetchoffset.retryintervalms": "10", "maxTriggerDelay": "1s"}
    options = RecordReadOptions.parse({**GIVEN, **given})
    options.warn_of_ignored(given, is_stream=True)
    assert not caplog.messages
    options.warn_of_ignored(given, is_stream=False)
    names = ("maxTriggerDelay", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
    assert caplog.messages == [f"option {name} has no effect in a batch read" for name in names]
