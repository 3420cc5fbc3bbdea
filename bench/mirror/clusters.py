"""The two clusters, of one real broker each: the source's topics are linked segments, the target has one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.broker.broker import KAFKA_4, Broker

from bench import BUILD
from bench.broker import broker_in, broker_of
from bench.mirror.works import Work
from bench.serve.logs import topic_of
from kafkafmt.log import LogDirectory, PartitionLog

ROOT = BUILD / "mirror"
# Nothing is in it: what a run takes that mirrors no record.
EMPTY = "bench-empty"


@dataclass(frozen=True)
class Clusters:
    source: Broker
    target: Broker

    def records_at_target(self, topic: str, partitions: int) -> int:
        """Those in the target's log. Markers of transactions take offsets, too, and are none."""
        logs = LogDirectory(self.target.log_dir)
        return sum(_records_of(logs.partition((topic, number))) for number in range(partitions))


def _records_of(log: PartitionLog) -> int:
    count = 0
    for segment in log.segments():
        with segment.open() as found:
            for run in found.runs():
                count += int(run.index["count"][~run.index["is_control"]].sum())
    return count


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
