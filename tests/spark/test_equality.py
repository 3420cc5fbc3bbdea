"""The same logs through Spark's own Kafka source, from a running broker, and as its folder: the same schema and rows.

The broker has the logs of tests/data, which it takes for its own, and topics that Java's producer writes to it while it
runs, one of them with transactions that go on.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from broker.broker import Broker
from broker.client import JavaClient, Message
from broker.jars import SPARK_KAFKA
from data import real_logs
from oracle.kafka import KafkaOracle

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.spark, pytest.mark.xdist_group("spark")]

# One that was torn by a crash, which a broker that was stopped in order does not have.
LOGS = [real_logs.LOGS / name for name in real_logs.NAMES if name != "preallocated-0"]
ANY_TOPIC = "[^_].*"  # but for those of the broker
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ISOLATIONS = ("read_uncommitted", "read_committed")
PARTITIONS = 3
BATCHES = 4
BATCH_RECORDS = 40
NOW_MS = 1_700_000_000_000
STEP_MS = 10
MICROSECONDS = 1000
OPEN_MS = 900_000  # as long as the broker lets a transaction be open
PRODUCED = {"codecs": {}, "stamped": {"message.timestamp.type": "LogAppendTime"}, "transactional": {}}


def topic_of(log: Path) -> str:
    return log.name.rpartition("-")[0]


def messages(batch: int) -> list[Message]:
    """A batch for each partition: keys, values and headers are null, empty or neither; timestamps go back and forth."""
    first = batch * BATCH_RECORDS
    return [
        Message(
            timestamp=NOW_MS + STEP_MS * (number ^ 1),
            key=(None, b"", b"key %d" % number)[number % 3],
            value=(b"value %d " % number * (number % 50), b"", None)[number % 7 % 3],
            headers=[("n", b"%d" % number), ("null", None), ("n", b"")] if number % 4 == 0 else [],
            partition=number % PARTITIONS,
        )
        for number in range(first, first + BATCH_RECORDS)
    ]


def produce(client: JavaClient) -> None:
    for topic in ("codecs", "stamped"):
        for number, codec in enumerate(CODECS):
            with client.producer(codec) as producer:
                for batch in range(BATCHES):
                    client.send(producer, topic, messages(number * BATCHES + batch))


def transact(client: JavaClient) -> Any:
    """Transactions, ended and with other records between, and one that stays open, whose producer it returns."""
    with (
        client.producer("lz4", transactional_id="ended") as producer,
        client.producer() as other,
    ):
        for number in range(2 * BATCHES):
            producer.beginTransaction()
            client.send(producer, "transactional", messages(2 * number))
            client.send(other, "transactional", messages(2 * number + 1))
            producer.abortTransaction() if number % 3 else producer.commitTransaction()
        open_one = client.open_producer(transactional_id="open", transaction_timeout_ms=str(OPEN_MS))
        open_one.beginTransaction()
        client.send(open_one, "transactional", messages(0)[:PARTITIONS])
        client.send(other, "transactional", messages(1))
        return open_one


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker to which the logs of tests/data are its own."""
    with Broker(tmp_path_factory.mktemp("equality")) as broker:
        for topic, partitions in Counter(map(topic_of, LOGS)).items():
            broker.create_topic(topic, partitions)
        broker.stop()
        for log in LOGS:
            for file in (broker.log_dir / log.name).glob("0*"):
                file.unlink()
            for file in log.glob("0*"):
                shutil.copy(file, broker.log_dir / log.name)
        broker.start()
        for topic, config in PRODUCED.items():
            broker.create_topic(topic, PARTITIONS, config)
        yield broker


@dataclass(frozen=True)
class Sources:
    """The two sources, told the same."""

    spark: SparkSession
    broker: Broker

    def theirs(self, isolation: str = "read_uncommitted", **options: str) -> DataFrame:
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.broker.bootstrap)
        return reader.option("kafka.isolation.level", isolation).options(**options).load()

    def ours(self, isolation: str = "read_uncommitted", **options: str) -> DataFrame:
        reader = self.spark.read.format("kafkafmt").option("isolation", isolation)
        return reader.options(**options).load(str(self.broker.log_dir))


@pytest.fixture(scope="module")
def sources(spark: SparkSession, oracle: KafkaOracle, broker: Broker) -> Iterator[Sources]:
    SPARK_KAFKA.fetch()
    with JavaClient(oracle.jvm, broker) as client:
        produce(client)
        producer = transact(client)
        yield Sources(spark, broker)
        producer.abortTransaction()
        producer.close()


def in_order(frame: DataFrame) -> pa.Table:
    return frame.toArrow().sort_by([(name, "ascending") for name in ("topic", "partition", "offset")])


def assert_same_rows(sources: Sources, **options: str) -> pa.Table:
    """The rows of both sources, which are not none."""
    theirs, ours = in_order(sources.theirs(**options)), in_order(sources.ours(**options))
    assert theirs.num_rows > 0
    if not ours.equals(theirs):
        pairs = zip_longest(ours.to_pylist(), theirs.to_pylist())
        assert next(((mine, other) for mine, other in pairs if mine != other), None) is None
    assert ours.schema == theirs.schema
    return ours


@pytest.mark.parametrize("headers", ["false", "true"])
def test_schema_when_headers_are_asked_for_or_not_then_is_that_of_spark_s_kafka_source(
    sources: Sources, headers: str
) -> None:
    options = {"subscribe": "codecs", "includeHeaders": headers}
    assert sources.ours(**options).schema == sources.theirs(**options).schema


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_rows_of_every_topic_when_read_by_both_then_are_the_same(sources: Sources, isolation: str) -> None:
    rows = assert_same_rows(sources, isolation=isolation, subscribePattern=ANY_TOPIC, includeHeaders="true")
    assert set(rows["topic"].to_pylist()) == {*PRODUCED, *map(topic_of, LOGS)}


def test_isolation_when_transactions_are_aborted_or_open_then_leaves_rows_out(sources: Sources) -> None:
    """What is compared above differs between the two."""
    uncommitted, committed = (
        Counter(row.partition for row in sources.ours(isolation, subscribe="transactional").collect())
        for isolation in ISOLATIONS
    )
    assert len(committed) == PARTITIONS
    assert all(0 < committed[partition] < uncommitted[partition] for partition in committed)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_rows_between_offsets_when_given_for_each_partition_then_are_the_same(
    sources: Sources, isolation: str
) -> None:
    """Offsets within a batch and at markers, the log's own ends, and no rows at all."""
    starting = {"transactional": {"0": 30, "1": -2, "2": 41}, "codecs": {"0": 5, "1": 100, "2": 0}}
    ending = {"transactional": {"0": 61, "1": 40, "2": -1}, "codecs": {"0": 6, "1": 100, "2": -1}}
    assert_same_rows(
        sources,
        isolation=isolation,
        subscribe="transactional,codecs",
        startingOffsets=json.dumps(starting),
        endingOffsets=json.dumps(ending),
    )


@pytest.mark.parametrize("topic", ["codecs", "stamped", "segments"])
def test_rows_between_timestamps_when_given_then_are_the_same(sources: Sources, topic: str) -> None:
    times = sources.ours(subscribe=topic, columns="timestamp").toArrow()["timestamp"].cast(pa.int64())
    low, high = (
        value.as_py() // MICROSECONDS for value in pc.quantile(times, [0.25, 0.75], interpolation="lower")
    )
    rows = assert_same_rows(
        sources, subscribe=topic, startingTimestamp=str(low), endingTimestamp=str(high + 1)
    )
    assert rows.num_rows < len(times)
