"""The same streams by Spark's own Kafka source and by `format("kafkafmt.kafka")`: the same micro-batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.batches import RECORDS, START_MS, send
from broker.jars import SPARK_KAFKA
from kafkafmt.scanning.data_loss import DataLossError
from kafkafmt.spark import first_line
from kafkafmt.spark.kafka.records.options import RecordReadOptions
from kafkafmt.spark.kafka.records.streaming import RecordStream
from kafkafmt.types import TopicPartition
from spark.kafka.sources import BOTH, OURS, THEIRS, Sources, admin_of, delete
from spark.kafka.topics import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

EARLIEST = {"startingOffsets": "earliest"}
BOUNDED = "stream-bounded"


@pytest.fixture(scope="module")
def sources(spark: SparkSession, broker: Broker) -> Sources:
    SPARK_KAFKA.fetch()
    broker.create_topic(BOUNDED, 2)
    send(broker, BOUNDED, range(8), 2)
    return Sources(spark, broker)


def same_stream(sources: Sources, folder: Path, **options: object) -> list[list[tuple[Any, ...]]]:
    """The micro-batches of both, which are equal. The folder has the checkpoints of both."""
    theirs, ours = (sources.stream(source, folder / source, **options) for source in BOTH)
    assert ours == theirs
    return ours


def failures(sources: Sources, folder: Path, **options: object) -> list[str]:
    """The messages of both, which fail."""
    found = []
    for source in BOTH:
        with pytest.raises(Exception, match=r".") as caught:
            sources.stream(source, folder / source, **options)
        found.append(first_line(caught.value))
    return found


def add_partition(sources: Sources, topic: str, count: int) -> None:
    admin = admin_of(sources.broker)
    admin.create_partitions({topic: count})
    wait_until(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == count)
    admin.close()


def test_stream_when_limited_and_restarted_then_has_the_same_micro_batches(
    sources: Sources, tmp_path: Path
) -> None:
    """A growing topic: more records and a partition come between two runs."""
    topic = "stream-growing"
    sources.broker.create_topic(topic, 2)
    send(sources.broker, topic, range(6), 2)
    options = {"subscribe": topic, "maxOffsetsPerTrigger": 40}
    first = same_stream(sources, tmp_path, **options, **EARLIEST)
    assert [len(rows) for rows in first] == [40, 40, 40, 30]
    add_partition(sources, topic, 3)
    send(sources.broker, topic, range(6, 9), 3)
    again = same_stream(sources, tmp_path, **options, **EARLIEST)
    assert sum(map(len, again)) == 3 * RECORDS
    # The checkpoint of Spark's own source is continued by ours: a job changes one word.
    send(sources.broker, topic, [10], 1)
    continued = sources.stream(OURS, tmp_path / THEIRS, **options)
    assert [row[:3] for rows in continued for row in rows] == [(topic, 0, 100 + n) for n in range(RECORDS)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 0),
        ({"startingOffsets": {BOUNDED: {"0": 90, "1": -1}}}, 10),
        ({"startingTimestamp": START_MS + 6000}, 2 * RECORDS),
        ({"startingOffsetsByTimestamp": {BOUNDED: {"0": START_MS + 4000, "1": 0}}, "minPartitions": 7}, 6 * RECORDS),
        ({**EARLIEST, "maxOffsetsPerTrigger": 30, "maxRecordsPerPartition": 7}, 8 * RECORDS),
        ({**EARLIEST, "minOffsetsPerTrigger": 10_000}, 8 * RECORDS),
    ],
)  # fmt: skip
def test_stream_when_it_starts_anywhere_then_has_the_same_micro_batches(
    sources: Sources, tmp_path: Path, options: dict[str, Any], count: int
) -> None:
    given = {name: json.dumps(one) if isinstance(one, dict) else one for name, one in options.items()}
    assert sum(map(len, same_stream(sources, tmp_path, subscribe=BOUNDED, **given))) == count


@pytest.mark.full
def test_stream_when_partitions_are_assigned_then_has_only_these(sources: Sources, tmp_path: Path) -> None:
    assigned = json.dumps({BOUNDED: [1]})
    (rows,) = same_stream(sources, tmp_path, assign=assigned, **EARLIEST)
    assert {row[1] for row in rows} == {1}


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {"endingOffsets": "latest"},
        {"startingTimestamp": START_MS * 2},
        {"startingOffsets": json.dumps({BOUNDED: {"0": 0}})},
        {"minOffsetsPerTrigger": 2, "maxOffsetsPerTrigger": 1},
        {"subscribe": "stream-missing"},
    ],
)
def test_stream_when_its_options_are_refused_by_spark_then_they_are_here(
    sources: Sources, tmp_path: Path, options: dict[str, object]
) -> None:
    _, ours = failures(sources, tmp_path, **{"subscribe": BOUNDED, **options})
    assert len(ours) > 10


@pytest.mark.full
def test_stream_when_records_were_deleted_then_data_loss_is_that_of_spark(
    sources: Sources, tmp_path: Path
) -> None:
    topic = "stream-lost"
    sources.broker.create_topic(topic, 1)
    send(sources.broker, topic, [0])
    options = {"subscribe": topic, **EARLIEST}
    same_stream(sources, tmp_path, **options)
    send(sources.broker, topic, range(1, 4))
    delete(sources.broker, topic, 60)
    _, ours = failures(sources, tmp_path, **options)
    assert ours.startswith(f"partition {topic}-0: expected offset 25, found the log to begin at 60")
    found = same_stream(sources, tmp_path, **options, failOnDataLoss="false")
    assert [row[2] for rows in found for row in rows] == list(range(60, 100))


@pytest.mark.full
def test_stream_when_a_topic_was_deleted_then_data_loss_is_that_of_spark(
    sources: Sources, tmp_path: Path
) -> None:
    for topic in ("stream-gone-a", "stream-gone-b"):
        sources.broker.create_topic(topic, 1)
        send(sources.broker, topic, [0])
    options = {"subscribePattern": "stream-gone-.", **EARLIEST}
    same_stream(sources, tmp_path, **options)
    admin = admin_of(sources.broker)
    admin.delete_topics(["stream-gone-a"])
    wait_until(lambda: "stream-gone-a" not in admin.list_topics())
    admin.close()
    send(sources.broker, "stream-gone-b", [1])
    _, ours = failures(sources, tmp_path, **options)
    assert ours.startswith("partition stream-gone-a-0: expected offset 25, found no such partition")
    (rows,) = same_stream(sources, tmp_path, **options, failOnDataLoss="false")
    assert {row[0] for row in rows} == {"stream-gone-b"}


def test_offsets_when_spark_passes_no_start_then_deleted_records_are_no_loss_yet(broker: Broker) -> None:
    topic = "stream-no-start"
    broker.create_topic(topic, 1)
    send(broker, topic, range(2))
    delete(broker, topic, 30)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    stream = RecordStream(RecordReadOptions.parse_stream(options))
    one = TopicPartition(topic, 0)
    assert stream.latest_offsets() == {one: 2 * RECORDS}
    assert [task.range.start for task in stream.tasks({one: 30}, {one: 2 * RECORDS})] == [30]
    with pytest.raises(DataLossError, match="expected offset 10, found the log to begin at 30"):
        stream.tasks({one: 10}, {one: 2 * RECORDS})


def test_records_when_fewer_than_the_least_then_wait_for_others(broker: Broker) -> None:
    topic = "stream-least"
    broker.create_topic(topic, 1)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    parsed = RecordReadOptions.parse_stream(
        {**options, "minOffsetsPerTrigger": "40", "maxTriggerDelay": "1h"}
    )
    stream = RecordStream(parsed)
    start, reached = stream.initial_offsets(), []
    for number in range(4):
        send(broker, topic, [number])
        start = stream.latest_offsets(start, parsed.limit)
        reached.extend(start.values())
    assert reached == [25, 25, 75, 75]
    delete(broker, topic, 90)
    with pytest.raises(DataLossError, match="expected offset 75, found the log to begin at 90"):
        stream.latest_offsets(start, parsed.limit)
