"""The two clusters, of one real broker each: the source's topics are linked segments, the target has one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kafka import KafkaConsumer, TopicPartition
from tests.broker.broker import KAFKA_4, Broker

from bench import BUILD
from bench.broker import broker_in, broker_of
from bench.mirror.works import Work
from bench.serve.logs import topic_of

ROOT = BUILD / "mirror"
# Nothing is in it: what a run takes that mirrors no record.
EMPTY = "bench-empty"


@dataclass(frozen=True)
class Clusters:
    source: Broker
    target: Broker

    def records_at_target(self, topic: str, partitions: int) -> int:
        consumer = KafkaConsumer(bootstrap_servers=self.target.bootstrap)
        try:
            ends = consumer.end_offsets([TopicPartition(topic, number) for number in range(partitions)])
        finally:
            consumer.close()
        return sum(ends.values())


@contextmanager
def clusters(works: Sequence[Work]) -> Iterator[Clusters]:
    """A broker of Kafka 3.9.1 that has the topics, and one of Kafka 4."""
    logs = ROOT / "logs"
    folders = {
        work.topic: [*topic_of(work.segment, 1, logs, work.copies).folders] * work.partitions
        for work in works
    }
    with broker_of(folders, ROOT) as source, broker_in(ROOT, kafka=KAFKA_4) as target:
        source.create_topic(EMPTY, works[0].partitions)
        yield Clusters(source, target)
