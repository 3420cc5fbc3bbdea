"""pykafka: a consumer for a topic, one after the other."""

from __future__ import annotations

from driver import Task
from pykafka import KafkaClient, Topic
from pykafka.common import OffsetType

MAX_WAIT_MS = 50
POLL_MS = 1_000
MOST_MESSAGES = 100


def offset_at(topic: Topic, partition: int, time: int) -> int:
    return int(topic.fetch_offset_limits(time)[partition].offset[0])


def main() -> None:
    task = Task()
    client = KafkaClient(hosts=task.bootstrap, broker_version=task.version)
    for wanted in task.ranges:
        topic = client.topics[wanted.topic.encode()]
        partition = topic.partitions[wanted.partition]
        consumer = topic.get_simple_consumer(
            partitions=[partition],
            auto_start=False,
            compacted_topic=True,  # it expects gaps
            consumer_timeout_ms=POLL_MS,
            fetch_wait_max_ms=MAX_WAIT_MS,
            fetch_message_max_bytes=task.fetch_bytes,
            queued_max_messages=MOST_MESSAGES,
        )
        start = wanted.start if task.time is None else offset_at(topic, wanted.partition, task.time)
        last_consumed = start - 1 if start else OffsetType.EARLIEST  # whose own number is -2
        raise_failure = consumer._raise_worker_exceptions
        # It fetches ahead, and would drop what it has fetched where the next batch is one that it cannot read.
        consumer._raise_worker_exceptions = lambda consumer=consumer, fail=raise_failure: (
            None if any(owned.message_count for owned in consumer._partitions.values()) else fail()
        )
        consumer.reset_offsets([(partition, last_consumed)])
        consumer.start()
        while task.is_reading(wanted.topic, wanted.partition):
            message = consumer.consume()
            if message is not None:
                timestamp = message.timestamp if message.protocol_version else None
                key, value = message.partition_key, message.value
                task.record(wanted.topic, wanted.partition, message.offset, key, value, timestamp)
        consumer.stop()


if __name__ == "__main__":
    main()
