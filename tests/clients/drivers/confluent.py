"""confluent-kafka, librdkafka in Python: a consumer for a partition, one after the other.

One for many topics fails at api.version.request=false, as librdkafka takes no Metadata v0 of many topics (2.3 to 2.16).
"""

from __future__ import annotations

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, KafkaException, TopicPartition
from driver import Range, Task

MAX_WAIT_MS = 50
POLL_SECONDS = 0.5


def settings(version: str | None) -> dict[str, object]:
    """A broker that is older than ApiVersions has to be told of."""
    return {"api.version.request": False, "broker.version.fallback": version} if version else {}


def read(task: Task, wanted: Range) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": task.isolation,
            "fetch.wait.max.ms": MAX_WAIT_MS,
            **settings(task.version),
        }
    )
    topic, partition = wanted.topic, wanted.partition
    consumer.assign([TopicPartition(topic, partition, wanted.start)])
    while task.is_reading(topic, partition) and not task.is_done:
        message = consumer.poll(POLL_SECONDS)
        if message is None:
            continue
        if message.error() is None:
            kind, timestamp = message.timestamp()
            if kind == TIMESTAMP_NOT_AVAILABLE:
                timestamp = None
            key, value, headers = message.key(), message.value(), message.headers() or ()
            task.record(topic, partition, message.offset(), key, value, timestamp, headers)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            task.reached(topic, partition, message.offset())
        else:
            raise KafkaException(message.error())
    consumer.close()


def main() -> None:
    task = Task()
    for wanted in task.ranges:
        read(task, wanted)


if __name__ == "__main__":
    main()
