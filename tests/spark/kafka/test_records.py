"""The same queries by Spark's own Kafka source and by `format("kafkafmt.kafka")`: the same schema and rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from broker.batches import RECORDS, START_MS, batch, send
from broker.jars import SPARK_KAFKA
from kafkafmt.net import Producer
from kafkafmt.spark import first_line
from spark.kafka.sources import BOTH, OURS, THEIRS, Sources, delete
from spark.kafka.topics import stored_count, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

# Of each topic: the batches and the partitions.
PLAIN, TRANSACTIONS, COMPACTED, TRUNCATED, ODD = (
    "same-plain",
    "same-transactions",
    "same-compacted",
    "same-truncated",
    "same-odd",
)
FIRST = 60  # of the truncated topic


def transact(broker: Broker) -> Producer:
    """Transactions that are committed and aborted, and an open one, whose producer it returns."""
    # Longer than all tests of this module take: the open transaction must stay open.
    limit = {"transaction_timeout_ms": 800_000}
    producer = Producer(bootstrap_servers=broker.bootstrap, transactional_id="same", **limit)
    producer.init_transactions()
    for number in range(7):
        producer.begin_transaction()
        for partition in range(2):
            producer.send(TRANSACTIONS, b"%d" % number, partition=partition)
        producer.flush()
        if number < 6:
            (producer.commit_transaction if number % 2 else producer.abort_transaction)()
    return producer


def send_odd(broker: Broker) -> None:
    """Empty and null parts, headers of one name, and the timestamps of the broker."""
    broker.create_topic(ODD, 1, {"message.timestamp.type": "LogAppendTime"})
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(ODD, b"", b"")
        producer.send(ODD, None, b"key")
        producer.send(ODD, b"no key")
        producer.send(ODD, b"v", headers=[("", b""), ("same", b"1"), ("same", b""), ("Grüße", b"\xff")])
        producer.send(ODD, bytes(500_000))


@pytest.fixture(scope="module")
def sources(spark: SparkSession, broker: Broker) -> Iterator[Sources]:
    SPARK_KAFKA.fetch()
    broker.create_topic(PLAIN, 3)
    send(broker, PLAIN, range(30), 3)
    broker.create_topic(TRANSACTIONS, 2)
    compact = {"cleanup.policy": "compact", "segment.ms": 100, "min.cleanable.dirty.ratio": 0.01}
    broker.create_topic(COMPACTED, 1, compact)
    send(broker, COMPACTED, range(20))
    broker.create_topic(TRUNCATED, 1)
    send(broker, TRUNCATED, range(5))
    delete(broker, TRUNCATED, FIRST)
    send_odd(broker)
    producer = transact(broker)
    wait_until(lambda: stored_count(broker, COMPACTED) < 20 * RECORDS)
    yield Sources(spark, broker)
    producer.abort_transaction()
    producer.close()


def offsets_of(rows: pa.Table) -> list[int]:
    found: list[int] = rows["offset"].to_pylist()
    return found


@pytest.mark.parametrize(
    "isolation", ["read_uncommitted", pytest.param("read_committed", marks=pytest.mark.full)]
)
def test_topics_when_read_by_both_then_have_the_same_rows(sources: Sources, isolation: str) -> None:
    rows = sources.same_rows(subscribePattern="same-", kafka__isolation__level=isolation)
    counts = {one["values"]: one["counts"] for one in rows["topic"].value_counts().to_pylist()}
    assert counts[PLAIN] == 30 * RECORDS
    assert counts[TRANSACTIONS] == (14 if isolation == "read_uncommitted" else 6)
    assert 0 < counts[COMPACTED] < 20 * RECORDS
    assert counts[TRUNCATED] == 5 * RECORDS - FIRST
    assert counts[ODD] == 5


@pytest.mark.full
def test_isolation_when_not_given_then_uncommitted_records_are_read(sources: Sources) -> None:
    assert sources.same_rows(subscribe=TRANSACTIONS).num_rows == 14


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": {PLAIN: {"0": 30, "1": -2, "2": 249}},
         "endingOffsets": {PLAIN: {"0": 31, "1": 80, "2": -1}}},
        {"startingOffsets": {PLAIN: {"0": 7, "1": 7, "2": 7}}, "minPartitions": 8, "includeHeaders": "false"},
        {"endingOffsets": {PLAIN: {"0": 7, "1": 7, "2": 260}}, "failOnDataLoss": "false",
         "kafkaConsumer.pollTimeoutMs": 500},
        {"kafka.fetch.max.bytes": 5000, "kafka.client.id": "a", "kafka.group.id": "g", "kafka.max.poll.records": 3},
        {"endingOffsets": {PLAIN: {"0": 250, "1": 1, "2": 0}}, "maxRecordsPerPartition": 30},
        {"startingTimestamp": START_MS + 3000, "endingTimestamp": START_MS + 25_007, "startingOffsets": "earliest"},
        {"startingTimestamp": START_MS * 2, "startingOffsetsByTimestampStrategy": "latest"},
        {"startingOffsetsByTimestamp": {PLAIN: {"0": 0, "1": START_MS + 9000, "2": START_MS * 2}},
         "endingOffsetsByTimestamp": {PLAIN: {"0": START_MS, "1": START_MS * 2, "2": START_MS * 3}},
         "startingOffsetsByTimestampStrategy": "latest"},
    ],
)  # fmt: skip
def test_bounds_when_given_to_both_then_have_the_same_rows(sources: Sources, options: dict[str, Any]) -> None:
    given = {name: json.dumps(one) if isinstance(one, dict) else one for name, one in options.items()}
    sources.same_rows(subscribe=PLAIN, **given)


@pytest.mark.full
def test_partitions_when_assigned_to_both_then_have_the_same_rows(sources: Sources) -> None:
    rows = sources.same_rows(assign=json.dumps({PLAIN: [2, 0], ODD: [0]}), minPartitions=5)
    assert rows.num_rows == 20 * RECORDS + 5
    assert sources.same_rows(subscribePattern="same-nothing.*").num_rows == 0


@pytest.mark.full
@pytest.mark.parametrize("parts", [{"minPartitions": 7}, {"maxRecordsPerPartition": 40}, {}])
def test_tasks_when_cut_then_are_as_many_as_spark_has(sources: Sources, parts: dict[str, Any]) -> None:
    given = {
        "startingOffsets": json.dumps({PLAIN: {"0": 0, "1": 90, "2": 100}}),
        "endingOffsets": json.dumps({PLAIN: {"0": 250, "1": 200, "2": 110}}),
        **parts,
    }
    theirs, ours = (sources.read(source, subscribe=PLAIN, **given).rdd.getNumPartitions() for source in BOTH)
    assert ours == theirs


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"endingOffsets": "earliest"},
        {"startingOffsets": json.dumps({PLAIN: {"0": 9, "1": 0}})},
        {"startingTimestamp": START_MS * 2},
        {"startingOffsets": json.dumps({PLAIN: {"0": 900, "1": 250, "2": 0}})},
        {"startingOffsets": json.dumps({PLAIN: {"0": 9, "1": 0, "2": 0}}),
         "endingOffsets": json.dumps({PLAIN: {"0": 8, "1": 1, "2": 1}})},
        {"kafka.auto.offset.reset": "latest"},
        {"kafka.key.deserializer": "StringDeserializer"},
        {"kafka.enable.auto.commit": "true"},
        {"kafka.interceptor.classes": "a.B"},
        {"assign": json.dumps({PLAIN: [0]})},
        {"minPartitions": 0},
    ],
)  # fmt: skip
def test_options_when_refused_by_spark_then_are_refused_here(
    sources: Sources, options: dict[str, str]
) -> None:
    for source in BOTH:
        with pytest.raises(Exception, match=r".") as caught:
            sources.rows(source, subscribe=PLAIN, **options)
        assert len(first_line(caught.value)) > 10


@pytest.mark.full
def test_truncated_topic_when_offsets_were_deleted_then_data_loss_is_that_of_spark(sources: Sources) -> None:
    starting = json.dumps({TRUNCATED: {"0": 10}})
    for source in BOTH:
        with pytest.raises(Exception, match=r".") as caught:
            sources.rows(source, subscribe=TRUNCATED, startingOffsets=starting)
        if source == OURS:
            line = f"partition {TRUNCATED}-0: expected offset 10, found the log to begin at {FIRST}; failOnDataLoss"
            assert first_line(caught.value).startswith(line)
    rows = sources.same_rows(subscribe=TRUNCATED, startingOffsets=starting, failOnDataLoss="false")
    assert offsets_of(rows) == list(range(FIRST, 5 * RECORDS))


def test_frame_when_sent_by_both_then_topics_have_the_same_records(sources: Sources) -> None:
    """Keys choose the partitions, or a column does; keys, values and headers may be null."""
    spark, broker = sources.spark, sources.broker
    rows = [
        (b"key %d" % n if n % 3 else None, f"value {n}" if n % 5 else None, n % 2 if n % 4 else None, n)
        for n in range(200)
    ]
    frame = spark.createDataFrame(rows, "key binary, value string, partition int, other int").coalesce(1)
    frame = frame.selectExpr(
        "key",
        "value",
        "CASE WHEN key IS NULL THEN other % 2 ELSE partition END AS partition",
        "CASE WHEN other % 2 = 0 THEN array(struct('n' AS key, IF(other % 8 = 0, NULL, key) AS value)) END AS headers",
        "other",
    )
    found = {}
    for source in BOTH:
        topic = f"sent-by-{source}"
        broker.create_topic(topic, 2)
        options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}
        frame.write.format(source).options(**options).mode("append").save()
        columns = ["partition", "offset", "key", "value", "headers"]
        found[source] = sources.rows(THEIRS, subscribe=topic).select(columns).to_pylist()
    assert found[OURS] == found[THEIRS]
    assert len(found[OURS]) == len(rows)


@pytest.mark.full
def test_topic_when_read_and_sent_by_a_stream_then_is_copied(sources: Sources, tmp_path: Path) -> None:
    sources.broker.create_topic("sent-copy", 3)
    options = sources.options({"subscribe": PLAIN, "startingOffsets": "earliest"})
    frame = sources.spark.readStream.format(OURS).options(**options).load()
    servers = {"kafka.bootstrap.servers": sources.broker.bootstrap, "kafka.compression.type": "zstd"}
    writer = frame.writeStream.format(OURS).options(**servers, topic="sent-copy")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    columns = [
        name
        for name in sources.rows(OURS, subscribe=PLAIN).column_names
        if name not in ("topic", "timestamp")
    ]
    copied, wanted = (sources.rows(OURS, subscribe=topic).select(columns) for topic in ("sent-copy", PLAIN))
    assert copied.equals(wanted)


def test_views_and_tables_when_made_by_sql_then_read_and_send_records(
    sources: Sources, tmp_path: Path
) -> None:
    """A view has all options. A table keeps them in its columns, for batch reads and streams."""
    spark, servers = sources.spark, f"`kafka.bootstrap.servers` '{sources.broker.bootstrap}'"
    count = "SELECT count(*), max(offset) FROM"
    options = f"OPTIONS ({servers}, subscribe '{PLAIN}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW plain_view USING kafkafmt.kafka {options}")
    spark.sql(f"CREATE TABLE plain_table USING kafkafmt.kafka {options}")
    try:
        for name in ("plain_view", "plain_table"):
            assert tuple(spark.sql(f"{count} {name}").collect()[0]) == (30 * RECORDS, 10 * RECORDS - 1)
        limited = spark.read.option("endingOffsets", json.dumps({PLAIN: {"0": 3, "1": 2, "2": 1}}))
        assert limited.table("plain_table").count() == 6
        stream = spark.readStream.option("startingOffsets", "earliest").table("plain_table")
        sources.broker.create_topic("sent-by-table", 3)
        writer = stream.drop("topic").writeStream.format(OURS).option("topic", "sent-by-table")
        writer = writer.option("kafka.bootstrap.servers", sources.broker.bootstrap).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    finally:
        spark.sql("DROP TABLE plain_table")
    sink = f"OPTIONS ({servers}, topic 'sent-by-table')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sink (value STRING) USING kafkafmt.kafka {sink}")
    spark.sql("INSERT INTO sink VALUES ('one'), ('two')")
    sent = sources.rows(OURS, subscribe="sent-by-table", columns="value,topic,partition,offset")
    assert sent.num_rows == 30 * RECORDS + 2


def test_batch_when_sent_then_has_the_records_that_are_read(sources: Sources) -> None:
    """The rows are what was sent, and not only what both read."""
    rows = sources.rows(OURS, subscribe=PLAIN, columns="value,offset,partition,topic")
    assert rows.num_rows == 30 * RECORDS
    assert rows["value"][0].as_py() == b"value 0 of batch 0"
    assert len(batch(0)) > 0
