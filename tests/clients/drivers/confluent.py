"""confluent-kafka, librdkafka in Python: a consumer for a partition, one after the other.

One for many topics fails at api.version.request=false, as librdkafka takes no Metadata v0 of many topics (2.3 to 2.16).
"""

from __future__ import annotations

import sys

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from driver import Range, Task

MAX_WAIT_MS = 50
POLL_SECONDS = 0.5
MAX_SECONDS = 60
MOST_MESSAGES, MOST_QUEUED = 500, 1_000


def settings(task: Task) -> dict[str, object]:
    """What librdkafka is told, here and by kcat; of a broker that is older than ApiVersions it has to be told."""
    told = {
        "bootstrap.servers": task.bootstrap,
        "auto.offset.reset": "earliest",
        "isolation.level": task.isolation,
        "fetch.wait.max.ms": MAX_WAIT_MS,
        "max.partition.fetch.bytes": task.fetch_bytes,
        "queued.min.messages": MOST_QUEUED,  # it waits for a second where there are more
    }
    if task.version is not None:
        told |= {"api.version.request": False, "broker.version.fallback": task.version}
    return told


def consumer_of(task: Task) -> Consumer:
    return Consumer(
        {
            "group.id": task.group or "none",
            "enable.auto.commit": False,
            "enable.partition.eof": task.group is None,
            **settings(task),
        }
    )


def read(task: Task, wanted: Range) -> None:
    consumer = consumer_of(task)
    topic, partition = wanted.topic, wanted.partition
    start = TopicPartition(topic, partition, wanted.start)
    if task.time is not None:
        (start,) = consumer.offsets_for_times([TopicPartition(topic, partition, task.time)], MAX_SECONDS)
    consumer.assign([start])
    while task.is_reading(topic, partition):
        message = consumer.poll(POLL_SECONDS)
        if message is None:
            continue
        if message.error() is None:
            tell(task, message)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            task.reached(topic, partition, message.offset())
        elif not message.error().retriable():
            raise KafkaException(message.error())
    consumer.close()


def follow(task: Task) -> None:
    consumer = consumer_of(task)
    consumer.subscribe(task.topics)
    while not task.is_done:
        messages = [m for m in consumer.consume(MOST_MESSAGES, POLL_SECONDS) if m.error() is None]
        for message in messages:
            tell(task, message)
        if messages:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as failure:
                print(repr(failure), file=sys.stderr)
    consumer.close()


def tell(task: Task, message: Message) -> None:
    kind, timestamp = message.timestamp()
    task.record(
        message.topic(),
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        message.headers() or (),
    )


def main() -> None:
    task = Task()
    if task.group is not None:
        follow(task)
        return
    for wanted in task.ranges:
        read(task, wanted)


if __name__ == "__main__":
    main()
