"""`format("kafkafmt.kafka")` on a real Spark: a shallow mirror between two brokers, and into log directories."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from broker.batches import RECORDS, send
from kafkafmt.log import LogDirectory
from kafkafmt.net import Producer
from kafkafmt.spark import first_line
from spark.kafka.topics import Record, options_of, records, rows, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from broker.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

PARTITIONS = 2
# Of 12 batches in two partitions these are eight and four.
LIMIT = 8 * RECORDS
FORMAT = "kafkafmt.kafka"
READ_ALL = {"availableNow": True}


def stream(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    given = {"columns": "topic,partition,batch", **options}
    return spark.readStream.format(FORMAT).options(**given).load()


def mirror(frame: DataFrame, target: Broker, checkpoint: Path, trigger: Any = READ_ALL) -> StreamingQuery:
    """A query that sends what is read to the topics of the same names."""
    writer = frame.writeStream.format(FORMAT).option("kafka.bootstrap.servers", target.bootstrap)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()


def content(broker: Broker, topic: str) -> list[Record]:
    """All committed records of a topic, without their offsets: those of a mirror may be others."""
    return [(one[0], 0, *one[2:]) for one in records(rows(options_of(broker, topic)))]


def test_topic_when_mirrored_from_a_checkpoint_on_then_has_the_same_records(
    spark: SparkSession, broker_3: Broker, broker: Broker, tmp_path: Path
) -> None:
    topic = "spark-mirror"
    for one in (broker_3, broker):
        one.create_topic(topic, PARTITIONS)
    send(broker_3, topic, range(12), PARTITIONS)
    options = options_of(broker_3, topic, maxOffsetsPerTrigger=LIMIT)
    query = mirror(stream(spark, options), broker, tmp_path)
    query.awaitTermination()
    reads = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert reads == [8, 4]
    assert content(broker, topic) == content(broker_3, topic)
    with Producer(bootstrap_servers=broker_3.bootstrap, transactional_id="spark") as producer:
        producer.init_transactions()
        for value, end in (
            (b"aborted", producer.abort_transaction),
            (b"committed", producer.commit_transaction),
        ):
            producer.begin_transaction()
            producer.send(topic, value, partition=0)
            producer.flush()
            end()
    # A transaction ends before its marker is written. Until then its records are not read.
    wait_until(lambda: sum(batch.is_control for _, batch in batches(broker_3.log_dir, topic)) == 2)
    send(broker_3, topic, range(12, 16), PARTITIONS)
    query = mirror(stream(spark, options), broker, tmp_path, {"processingTime": "0 seconds"})
    query.processAllAvailable()
    query.stop()
    found = content(broker, topic)
    assert found == content(broker_3, topic)
    assert len(found) == 16 * RECORDS + 1
    # Every batch was the broker's once, in its order; none of the source's producer is left.
    assert {batch.is_transactional for _, batch in batches(broker.log_dir, topic)} == {False}


def batches(log_dir: Path, topic: str) -> list[tuple[int, Any]]:
    logs = [(number, LogDirectory(log_dir).partition((topic, number))) for number in range(PARTITIONS)]
    return [(number, batch) for number, log in logs for batch in log.batches()]


def killing_once(flag: Path) -> Callable[[Any], Any]:
    """Kills the worker in which it first comes to the last batch of partition 1, in the second micro-batch."""
    last = (1, 6 * RECORDS - 1)

    def passed(parts: Any) -> Any:
        for part in parts:
            spans = zip(part.column(1).to_pylist(), part.column(2).to_pylist(), strict=True)
            if not flag.exists() and last in spans:
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield part.select([0, 1, 3])

    return passed


def test_mirror_when_a_worker_is_killed_then_goes_on_and_has_all_records(
    spark: SparkSession, broker_3: Broker, broker: Broker, tmp_path: Path
) -> None:
    topic = "spark-killed"
    for one in (broker_3, broker):
        one.create_topic(topic, PARTITIONS)
    send(broker_3, topic, range(12), PARTITIONS)
    options = options_of(
        broker_3, topic, maxOffsetsPerTrigger=LIMIT, columns="topic,partition,lastOffset,batch"
    )
    flag = tmp_path / "killed"
    frame = stream(spark, options).mapInArrow(killing_once(flag), "topic string, partition int, batch binary")
    with suppress(Exception):  # Spark's own word for it
        mirror(frame, broker, tmp_path / "checkpoint").awaitTermination()
    assert flag.exists()
    mirror(frame, broker, tmp_path / "checkpoint").awaitTermination()
    wanted, found = content(broker_3, topic), content(broker, topic)
    assert sorted(set(found), key=repr) == sorted(wanted, key=repr)
    assert len(found) <= len(wanted) + 4 * RECORDS  # no more than a micro-batch is there twice


def test_topic_when_backed_up_then_the_log_directory_has_its_bytes_once(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic = "spark-backup"
    broker.create_topic(topic, PARTITIONS)
    options = options_of(broker, topic, includeControlBatches="true")
    for first in (0, 5):
        send(broker, topic, range(first, first + 5), PARTITIONS)
        writer = stream(spark, options).writeStream.format("kafkafmt").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
            str(tmp_path / "logs")
        )
        query.awaitTermination()
    wanted, found = (
        [(number, bytes(batch.buffer)) for number, batch in batches(path, topic)]
        for path in (broker.log_dir, tmp_path / "logs")
    )
    assert len(found) == 10
    assert found == wanted
    again = spark.read.format("kafkafmt").options(unit="batches", columns="topic,partition,batch")
    broker.create_topic("spark-restored", PARTITIONS)
    restored = again.load(str(tmp_path / "logs")).selectExpr(
        "'spark-restored' AS topic", "partition", "batch"
    )
    restored.write.format(FORMAT).mode("append").option("kafka.bootstrap.servers", broker.bootstrap).save()
    assert content(broker, "spark-restored") == content(broker, topic)


def test_batch_read_when_options_are_wrong_then_one_line(spark: SparkSession, broker: Broker) -> None:
    reader = spark.read.format(FORMAT).options(**options_of(broker, "nowhere"))
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        reader.load().collect()
    assert first_line(caught.value) == f"{broker.bootstrap}: no such topic: nowhere"
    frame = spark.createDataFrame(pa.table({"batch": [b"no batch"]}))
    writer = frame.write.format(FORMAT).mode("append").option("kafka.bootstrap.servers", broker.bootstrap)
    with pytest.raises(Exception, match="whole batches") as caught:
        writer.options(topic="nowhere", partition="0").save()
    assert first_line(caught.value).startswith("partition nowhere-0: expected whole batches, found 8 bytes")
