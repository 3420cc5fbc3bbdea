"""Spark's own Kafka source and `format("kafkafmt.kafka")` with the same options, and what they read."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from kafka import KafkaAdminClient, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from broker.broker import Broker

OURS, THEIRS = "kafkafmt.kafka", "kafka"
BOTH = (THEIRS, OURS)


@dataclass
class Sources:
    """Both sources, with the same options."""

    spark: SparkSession
    broker: Broker

    def read(self, source: str, **options: object) -> DataFrame:
        return self.spark.read.format(source).options(**self.options(options)).load()

    def options(self, options: dict[str, object]) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self.broker.bootstrap, "includeHeaders": "true"}
        return {**given, **{name.replace("__", "."): str(value) for name, value in options.items()}}

    def rows(self, source: str, **options: object) -> pa.Table:
        frame = self.read(source, **options)
        keys = [(name, "ascending") for name in ("topic", "partition", "offset")]
        return frame.toArrow().sort_by(keys)

    def same_rows(self, **options: object) -> pa.Table:
        """The rows of both, which are equal."""
        theirs, ours = (self.rows(source, **options) for source in BOTH)
        if not ours.equals(theirs):
            pairs = zip_longest(ours.to_pylist(), theirs.to_pylist())
            assert next(((mine, other) for mine, other in pairs if mine != other), None) is None
        assert ours.schema == theirs.schema
        return ours

    def stream(self, source: str, checkpoint: Path, **options: object) -> list[list[tuple[Any, ...]]]:
        """The rows of each micro-batch of a query that ends at the present end."""
        found: list[list[tuple[Any, ...]]] = []

        def keep(frame: DataFrame, _: int) -> None:
            found.append(sorted(map(tuple, frame.select("topic", "partition", "offset", "value").collect())))

        frame = self.spark.readStream.format(source).options(**self.options(options)).load()
        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return [rows for rows in found if rows]


def admin_of(broker: Broker) -> KafkaAdminClient:
    return KafkaAdminClient(bootstrap_servers=broker.bootstrap)


def delete(broker: Broker, topic: str, first: int) -> None:
    """Delete the records below an offset."""
    admin = admin_of(broker)
    admin.delete_records({TopicPartition(topic, 0): first})
    admin.close()
