"""Batches out of real brokers, planned and read in this process as Spark would, without a JVM of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, TopicPartition

import kafkafmt as kf
from broker.batches import RECORDS, batch, send
from kafkafmt.log import LogDirectory
from kafkafmt.net import Producer
from kafkafmt.scanning.brokers.cluster import SourceBrokers
from kafkafmt.scanning.data_loss import DataLossError
from kafkafmt.spark.kafka.options import KafkaReadOptions
from kafkafmt.spark.kafka.streaming import KafkaSource
from kafkafmt.spark.stream_reader import StreamReader
from spark.kafka.topics import WAIT_SECONDS, Query, options_of, records, rows, spans, stored_count, wait_until
from spark.reads import struct

if TYPE_CHECKING:
    from broker.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("spark")]


def span(number: int, partition: int = 0) -> tuple[int, int, int]:
    """Of the batch of that number in its partition."""
    return partition, number * RECORDS, (number + 1) * RECORDS - 1


def ours(topic: str) -> kf.TopicPartition:
    return kf.TopicPartition(topic, 0)


def stored(broker: Broker, topic: str) -> list[bytes]:
    return [bytes(one.buffer) for one in LogDirectory(broker.log_dir).partition((topic, 0)).batches()]


def test_topics_when_read_then_are_the_bytes_that_are_stored(any_broker: Broker) -> None:
    any_broker.create_topic("read-a")
    any_broker.create_topic("read-b", 2)
    send(any_broker, "read-a", range(10))
    send(any_broker, "read-b", range(4), partitions=2)
    found = rows(options_of(any_broker, "read-a"))
    assert [row["batch"] for row in found] == stored(any_broker, "read-a")
    assert spans(found) == [span(number) for number in range(10)]
    assert [row["codec"] for row in found[:5]] == ["none", "gzip", "snappy", "lz4", "zstd"]
    pattern = {
        "kafka.bootstrap.servers": any_broker.bootstrap,
        "unit": "batches",
        "subscribePattern": "read-.",
        "columns": "topic,partition",
    }
    assert [tuple(row.values()) for row in rows(pattern)] == [
        *[("read-a", 0)] * 10, *[("read-b", 0)] * 2, *[("read-b", 1)] * 2
    ]  # fmt: skip
    del pattern["subscribePattern"]
    assert [tuple(row.values()) for row in rows({**pattern, "assign": '{"read-b": [1]}'})] == [
        ("read-b", 1)
    ] * 2


def test_bounds_when_within_batches_then_the_first_is_trimmed_and_the_last_whole(broker: Broker) -> None:
    broker.create_topic("bounds")
    send(broker, "bounds", range(6))
    everything = records(rows(options_of(broker, "bounds")))
    options = {"startingOffsets": '{"bounds": {"0": 30}}', "endingOffsets": '{"bounds": {"0": 110}}'}
    found = rows(options_of(broker, "bounds", **options))
    assert spans(found) == [(0, 30, 49), span(2), span(3), span(4)]
    assert records(found) == everything[30:125]
    timed = rows(
        options_of(broker, "bounds", startingTimestamp=1_700_000_002_000, endingTimestamp=1_700_000_004_000)
    )
    assert spans(timed) == [span(2), span(3)]
    assert rows(options_of(broker, "bounds", startingTimestamp=1_800_000_000_000)) == []


def test_range_when_cut_into_partitions_then_each_has_whole_batches(broker: Broker) -> None:
    broker.create_topic("cut", 2)
    send(broker, "cut", range(22), partitions=2)
    options = options_of(broker, "cut", minPartitions=7, columns="partition,baseOffset,lastOffset")
    assert spans(rows(options)) == [span(number, partition) for partition in (0, 1) for number in range(11)]


def test_limit_when_within_a_batch_then_the_micro_batch_ends_in_front_of_it(broker: Broker) -> None:
    broker.create_topic("limited", 3)
    send(broker, "limited", range(30), partitions=3)
    query = Query(options_of(broker, "limited", maxOffsetsPerTrigger=3 * 60))
    found = [spans(query.trigger()) for _ in range(6)]
    assert found[0] == [span(number, partition) for partition in range(3) for number in (0, 1)]
    assert [len(spans) for spans in found] == [6] * 5 + [0]
    send(broker, "limited", range(30, 36), partitions=3)
    restarted = Query(options_of(broker, "limited", maxOffsetsPerTrigger=5), query.reached)
    assert spans(restarted.trigger()) == [span(10, partition) for partition in range(3)]


def test_partition_when_new_then_is_found_and_read_from_its_beginning(broker: Broker) -> None:
    broker.create_topic("grown")
    query = Query(options_of(broker, "grown", startingOffsets="latest"))
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_partitions({"grown": 2})
    admin.close()
    wait_until(lambda: broker._has_leaders("grown", 2))
    send(broker, "grown", range(4), partitions=2)
    assert spans(query.trigger()) == [span(0, 0), span(1, 0), span(0, 1), span(1, 1)]


def test_transactions_when_committed_alone_are_read_then_aborted_ones_and_markers_are_left_out(
    broker: Broker,
) -> None:
    broker.create_topic("transactions")
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id="spark-kafka") as producer:
        producer.init_transactions()
        for number in range(4):
            producer.begin_transaction()
            producer.send("transactions", b"%d" % number, partition=0)
            producer.flush()
            (producer.commit_transaction if number % 2 else producer.abort_transaction)()
        producer.begin_transaction()
        producer.send("transactions", b"open", partition=0).get(WAIT_SECONDS)
        committed = rows(options_of(broker, "transactions"))
        producer.abort_transaction()
    # A transaction ends before its marker is written.
    wait_until(lambda: len(stored(broker, "transactions")) == 10)
    values = [one.value for row in committed for one in kf.MemoryRecords(row["batch"]).records()]
    assert values == [b"1", b"3"]
    read = {"kafka.isolation.level": "read_uncommitted", "columns": "isControl"}
    assert [row["isControl"] for row in rows(options_of(broker, "transactions", **read))] == [False] * 5
    kept = rows(options_of(broker, "transactions", includeControlBatches="true"))
    assert [row["isControl"] for row in kept] == [False, True] * 5
    assert [row["batch"] for row in kept] == stored(broker, "transactions")


def test_records_when_deleted_then_are_lost_data_or_passed_over(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_topic("deleted")
    query = Query(options_of(broker, "deleted"))
    start = query.reached
    send(broker, "deleted", range(4))
    end = query.stream.latest_offsets(start)
    (planned,) = query.stream.tasks(start, end)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.delete_records({TopicPartition("deleted", 0): 60})
    admin.close()
    line = (
        "partition deleted-0: expected offset 0, found the log to begin at 60; failOnDataLoss=false continues"
    )
    with pytest.raises(DataLossError, match=f"^{line}"):
        query.trigger()
    with pytest.raises(
        DataLossError, match=r"^partition deleted-0, offsets 0 to 99: expected offset 0, found the log"
    ):
        list(query._read(planned))
    tolerant = Query(options_of(broker, "deleted", failOnDataLoss="false"), start)
    assert spans(tolerant.trigger()) == [(0, 60, 74), span(3)]
    found = [row for part in tolerant._read(planned) for row in part.to_pylist()]
    assert spans(found) == [(0, 60, 74), span(3)]
    assert [message.partition(": continuing")[1] for message in caplog.messages if "expected" in message] == [
        ": continuing"
    ] * 2


def test_topic_when_made_anew_then_what_is_missing_is_lost_data_or_passed_over(broker: Broker) -> None:
    broker.create_topic("anew")
    send(broker, "anew", range(4))
    query = Query(options_of(broker, "anew"))
    start, end = query.reached, query.stream.latest_offsets(query.reached)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.delete_topics(["anew"])
    wait_until(lambda: "anew" not in admin.list_topics())
    admin.close()
    with pytest.raises(
        DataLossError, match=r"^partition anew-0: expected offset 0, found no such partition; failOn"
    ):
        query.trigger()
    tolerant = Query(options_of(broker, "anew", failOnDataLoss="false"), start)
    assert tolerant.trigger() == []
    broker.create_topic("anew")
    send(broker, "anew", [0])
    with pytest.raises(
        DataLossError, match=r"^partition anew-0: expected offset 100, found the log to end at 25"
    ):
        Query(options_of(broker, "anew"), start).stream.tasks(start, end)
    (task,) = tolerant.stream.tasks(start, end)
    assert spans([row for part in tolerant._read(task) for row in part.to_pylist()]) == [span(0)]


def test_batch_edges_when_the_offset_is_deleted_since_then_are_the_offset(broker: Broker) -> None:
    broker.create_topic("edges")
    send(broker, "edges", range(4))
    cluster = SourceBrokers(KafkaReadOptions.parse(options_of(broker, "edges")).brokers)
    found = {
        offset: cluster.batch_edges({ours("edges"): offset})[ours("edges")] for offset in (0, 25, 26, 49, 50)
    }
    assert found == {0: (0, 0), 25: (25, 25), 26: (25, 50), 49: (25, 50), 50: (50, 50)}
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.delete_records({TopicPartition("edges", 0): 60})
    admin.close()
    assert cluster.batch_edges({ours("edges"): 30}) == {ours("edges"): (30, 30)}
    assert cluster.batch_edges({ours("edges"): 61}) == {ours("edges"): (50, 75)}
    cluster.close()


def test_compacted_topic_when_limited_within_a_gap_then_has_every_batch_once(broker_3: Broker) -> None:
    config = {"cleanup.policy": "compact", "segment.bytes": 2000, "min.cleanable.dirty.ratio": 0.01}
    broker_3.create_topic("compacted", 1, config)
    send(broker_3, "compacted", range(40))
    wait_until(lambda: stored_count(broker_3, "compacted") < 20 * RECORDS)
    query = Query(options_of(broker_3, "compacted", maxOffsetsPerTrigger=40))
    found: list[dict[str, Any]] = []
    while query.reached[ours("compacted")] < 40 * RECORDS:
        found += query.trigger()
    assert sorted(set(spans(found))) == spans(found)
    latest = {key: value for *_, key, value, _ in records(found)}
    assert latest == {key: value for *_, key, value, _ in records([{"partition": 0, "batch": batch(39)}])}


def test_topic_when_missing_or_offsets_outside_then_one_line(broker: Broker) -> None:
    broker.create_topic("bad")
    assigned = options_of(broker, "bad", assign='{"bad": [0, 1]}')
    del assigned["subscribe"]
    for options, message in [
        (options_of(broker, "nowhere"), "no such topic: nowhere"),
        (options_of(broker, "bad,nowhere"), "no such topic: nowhere"),
        (assigned, "no such partition: bad-1"),
        (options_of(broker, "bad", startingOffsets='{"bad": {"1": 0}}'), "expected an offset for every partition"),
        (options_of(broker, "bad", endingOffsets='{"bad": {"0": 7}}'), "endingOffsets 7 is outside the log"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            rows(options)


def test_brokers_when_not_there_then_one_line(broker: Broker) -> None:
    options = options_of(
        broker, "a", **{"kafka.bootstrap.timeout.ms": "500", "kafka.bootstrap.servers": "127.0.0.1:1"}
    )
    with pytest.raises(OSError, match=r"^127\.0\.0\.1:1: .*bootstrap.*$"):
        rows(options)


def test_batch_when_damaged_then_ends_the_reading_with_its_offsets_or_is_passed_over(broker: Broker) -> None:
    broker.create_topic("damaged")
    send(broker, "damaged", range(6))
    path = LogDirectory(broker.log_dir).partition(("damaged", 0)).segments()[-1].path
    third = [one.position for one in kf.FileRecords(path).batches()][2]
    with path.open("r+b") as file:
        file.seek(third + 70)
        file.write(b"\xff\x00\xff")
    with pytest.raises(kf.CorruptRecordError, match="damaged-0") as caught:
        rows(options_of(broker, "damaged"))
    assert "50" in str(caught.value)
    assert spans(rows(options_of(broker, "damaged", onCorrupt="skip"))) == [span(n) for n in (0, 1, 3, 4, 5)]


def test_offsets_when_kept_in_a_checkpoint_then_are_spark_s_json(broker: Broker) -> None:
    broker.create_topic("json")
    send(broker, "json", [0])
    reader = StreamReader(KafkaSource(options_of(broker, "json"), struct("`size` bigint")))
    start, end = reader.initialOffset(), reader.latestOffset()
    assert (json.dumps(start), json.dumps(end)) == ('{"json": {"0": 0}}', '{"json": {"0": 25}}')
    (task,) = reader.partitions(start, end)
    (part,) = reader.read(task)
    assert part.column("size").to_pylist() == [len(batch(0))]
