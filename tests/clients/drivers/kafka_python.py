"""kafka-python, current, and (through old_kafka_python.py) as it was for the first brokers with timestamps."""

from __future__ import annotations

from typing import Any

from driver import Task

POLL_MS = 200
MAX_WAIT_MS = 50


def read(task: Task, consumer: Any, topic_partition: Any) -> None:
    partitions = {topic_partition(r.topic, r.partition): r.start for r in task.ranges}
    consumer.assign(list(partitions))
    for partition, start in partitions.items():
        consumer.seek(partition, start)
    while not task.is_done:
        for records in consumer.poll(POLL_MS).values():
            for r in records:
                headers = getattr(r, "headers", None)
                task.record(r.topic, r.partition, r.offset, r.key, r.value, r.timestamp, headers)
        for partition in consumer.assignment() - consumer.paused():
            task.reached(*partition, consumer.position(partition))
            if not task.is_reading(*partition):
                consumer.pause(partition)  # old ones fail on what a broker sends for control records alone
    consumer.close()


def main() -> None:
    from kafka import KafkaConsumer, TopicPartition

    task = Task()
    consumer = KafkaConsumer(
        bootstrap_servers=task.bootstrap,
        api_version=task.version_numbers,
        isolation_level=task.isolation,
        fetch_max_wait_ms=MAX_WAIT_MS,
    )
    read(task, consumer, TopicPartition)


if __name__ == "__main__":
    main()
