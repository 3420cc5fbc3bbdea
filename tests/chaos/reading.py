"""What logs have: topics as a reader of committed records sees them, and a backup as a scan returns it."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

import kafkafmt
from chaos.checker import Log
from chaos.history import Row, name_of
from chaos.workloads.load import PARTITIONS

READ_SECONDS = 120
MOST_POLLED = 1000
ANSWER_SECONDS = 20


class TopicReader:
    """Reads one topic to its end, again and again; librdkafka's consumer, which is not kafkafmt's."""

    def __init__(self, servers: str, topic: str) -> None:
        self.topic = topic
        self.log: dict[int, list[Row]] = {number: [] for number in range(PARTITIONS)}
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "checker",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
            }
        )

    @property
    def count(self) -> int:
        return sum(map(len, self.log.values()))

    def read(self, seconds: float = READ_SECONDS) -> None:
        """Read on until the end of each partition was reached. Raises TimeoutError if that takes longer."""
        deadline, ended = time.monotonic() + seconds, set[int]()
        nexts = {number: rows[-1].offset + 1 if rows else 0 for number, rows in self.log.items()}
        self._consumer.assign([TopicPartition(self.topic, *each) for each in nexts.items()])
        while len(ended) < PARTITIONS:
            for message in self._consumer.consume(MOST_POLLED, 0.5):
                error = message.error()
                if error is None:
                    row = Row(message.offset(), name_of(message.value()))
                    self.log[message.partition()].append(row)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise KafkaException(error)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.topic} was not read within {seconds:.0f} s")

    def close(self) -> None:
        self._consumer.close()


def committed(servers: str, group: str, topic: str) -> dict[int, int]:
    """The committed offsets of a group; absent ones are -1."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    try:
        wanted = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        found = consumer.committed(wanted, timeout=ANSWER_SECONDS)
        return {one.partition: max(one.offset, -1) for one in found}
    finally:
        consumer.close()


def backed_up(backup: Path, topic: str) -> Log:
    """The committed records of a topic in the last generation of a backup."""
    log: dict[int, list[Row]] = {number: [] for number in range(PARTITIONS)}
    records = kafkafmt.scan(
        f"backup+{backup.as_uri()}",
        topics=topic,
        columns=["partition", "offset", "value"],
        isolation="read_committed",
    )
    for batch in records.to_batches():
        for partition, offset, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            log[partition].append(Row(offset, name_of(data)))
    return log
