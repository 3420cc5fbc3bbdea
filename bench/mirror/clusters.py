"""The two clusters, of one real broker each: the source's topics are linked segments, the target has one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kafka import KafkaConsumer, TopicPartition
from kafka.protocol.admin import DeleteTopicsRequest
from tests.broker.broker import KAFKA_4, Broker

from bench import BUILD
from bench.broker import broker_in, broker_of
from bench.mirror.works import Work
from bench.serve.logs import topic_of

ROOT = BUILD / "mirror"
# Nothing is in it: what a run takes that mirrors no record.
EMPTY = "bench-empty"
_DELETE_VERSION, _DELETE_MS = 5, 30_000


@dataclass(frozen=True)
class Clusters:
    source: Broker
    target: Broker

    @contextmanager
    def target_topic(self, topic: str, partitions: int) -> Iterator[None]:
        """An empty topic at the target while the context lasts, so that no run pays for the one before it."""
        self.target.create_topic(topic, partitions)
        try:
            yield
        finally:
            request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=_DELETE_MS)
            (deleted,) = self.target.request(request, _DELETE_VERSION).responses
            if deleted.error_code:
                raise RuntimeError(f"delete {topic}: error code {deleted.error_code}")

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
    folders = {work.topic: [*topic_of(work.segment, 1, logs).folders] * work.partitions for work in works}
    with broker_of(folders, ROOT) as source, broker_in(ROOT, kafka=KAFKA_4) as target:
        source.create_topic(EMPTY, works[0].partitions)
        yield Clusters(source, target)
