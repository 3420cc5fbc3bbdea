"""kafka-python, current, and (through old_kafka_python.py) as it was for the first brokers with timestamps."""

from __future__ import annotations

import sys
from typing import Any

from driver import Task

POLL_MS = 200
MAX_WAIT_MS = 50


def run(task: Task, consumer: Any, topic_partition: Any, error: type[Exception]) -> None:
    if task.group is None:
        read(task, consumer, {topic_partition(r.topic, r.partition): r.start for r in task.ranges})
    else:
        consumer.subscribe(task.topics)
        follow(task, consumer, error)
    consumer.close()


def read(task: Task, consumer: Any, starts: dict[Any, int]) -> None:
    consumer.assign(list(starts))
    for partition, start in starts.items():
        consumer.seek(partition, start)
    while not task.is_done:
        tell(task, consumer)
        for partition in consumer.assignment() - consumer.paused():
            task.reached(*partition, consumer.position(partition))
            if not task.is_reading(*partition):
                consumer.pause(partition)  # old ones fail on what a broker sends for control records alone


def follow(task: Task, consumer: Any, error: type[Exception]) -> None:
    while not task.is_done:
        if tell(task, consumer):
            try:
                consumer.commit()
            except error:
                print(f"not committed: {sys.exc_info()[1]}", file=sys.stderr)


def tell(task: Task, consumer: Any) -> int:
    polled = [r for records in consumer.poll(POLL_MS).values() for r in records]
    for r in polled:
        headers = getattr(r, "headers", None)
        task.record(r.topic, r.partition, r.offset, r.key, r.value, r.timestamp, headers)
    return len(polled)


def settings(task: Task) -> dict[str, Any]:
    return {
        "bootstrap_servers": task.bootstrap,
        "api_version": task.version_numbers,
        "group_id": task.group,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": MAX_WAIT_MS,
    }


def main() -> None:
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import KafkaError

    task = Task()
    consumer = KafkaConsumer(isolation_level=task.isolation, **settings(task))
    run(task, consumer, TopicPartition, KafkaError)


if __name__ == "__main__":
    main()
