"""aiokafka, current."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition
from driver import Task

MAX_WAIT_MS = 50
POLL_MS = 200


async def main() -> None:
    task = Task()
    partitions = {TopicPartition(r.topic, r.partition): r.start for r in task.ranges}
    consumer = AIOKafkaConsumer(
        bootstrap_servers=task.bootstrap,
        isolation_level=task.isolation,
        fetch_max_wait_ms=MAX_WAIT_MS,
        max_partition_fetch_bytes=task.fetch_bytes,
    )
    await consumer.start()
    consumer.assign(list(partitions))
    for partition, start in partitions.items():
        consumer.seek(partition, start)
    while not task.is_done:
        for records in (await consumer.getmany(timeout_ms=POLL_MS)).values():
            for r in records:
                task.record(r.topic, r.partition, r.offset, r.key, r.value, r.timestamp, r.headers)
        for partition in partitions:
            task.reached(*partition, await consumer.position(partition))
    await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main())
