"""kafka-python, current, and (through old_kafka_python.py) as it was for the first brokers with timestamps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from driver import Task

Polled: TypeAlias = Callable[[Any], list[Any]]  # what a consumer hands out next

# Longer than the wait for metadata behind which 3.0.12 joins: where it leads, and a poll ends between its JoinGroup and
# its SyncGroup, it loses its assignment.
POLL_MS = 500
MAX_WAIT_MS = 50


def run(task: Task, consumer: Any, topic_partition: Any, error: type[Exception], polled: Polled) -> None:
    if task.group is None:
        read(task, consumer, {topic_partition(r.topic, r.partition): r.start for r in task.ranges}, polled)
    else:
        consumer.subscribe(task.topics)
        follow(task, consumer, error)
    consumer.close()


def read(task: Task, consumer: Any, starts: dict[Any, int], polled: Polled) -> None:
    consumer.assign(list(starts))
    if task.time is not None:
        found = consumer.offsets_for_times(dict.fromkeys(starts, task.time))
        starts = {partition: offset.offset for partition, offset in found.items()}
    for partition, start in starts.items():
        consumer.seek(partition, start)
    while not task.is_done:
        tell(task, polled(consumer))
        for partition in consumer.assignment() - consumer.paused():
            task.reached(*partition, consumer.position(partition))
            if not task.is_reading(*partition):
                consumer.pause(partition)  # old ones fail on what a broker sends for control records alone


def follow(task: Task, consumer: Any, error: type[Exception]) -> None:
    while not task.is_done:
        try:
            records = poll(consumer)
            tell(task, records)
            if records:
                consumer.commit()
        except error as failure:  # the server is away, or the group has to be joined again, which `poll` does
            print(repr(failure), file=sys.stderr)


def poll(consumer: Any) -> list[Any]:
    return [record for records in consumer.poll(POLL_MS).values() for record in records]


def tell(task: Task, records: list[Any]) -> None:
    for r in records:
        headers = getattr(r, "headers", None)
        task.record(r.topic, r.partition, r.offset, r.key, r.value, r.timestamp, headers)


def settings(task: Task) -> dict[str, Any]:
    return {
        "bootstrap_servers": task.bootstrap,
        "api_version": task.version_numbers,
        "group_id": task.group,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": MAX_WAIT_MS,
        "max_partition_fetch_bytes": task.fetch_bytes,
    }


def main() -> None:
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import KafkaError

    task = Task()
    consumer = KafkaConsumer(isolation_level=task.isolation, **settings(task))
    run(task, consumer, TopicPartition, KafkaError, poll)


if __name__ == "__main__":
    main()
