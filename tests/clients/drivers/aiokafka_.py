"""aiokafka, current."""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from driver import Task

MAX_WAIT_MS = 50
POLL_MS = 200


async def main() -> None:
    task = Task()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=task.bootstrap,
        isolation_level=task.isolation,
        group_id=task.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=MAX_WAIT_MS,
        max_partition_fetch_bytes=task.fetch_bytes,
    )
    await consumer.start()
    if task.group is None:
        await read(task, consumer)
    else:
        await follow(task, consumer)
    await consumer.stop()


async def read(task: Task, consumer: AIOKafkaConsumer) -> None:
    partitions = {TopicPartition(r.topic, r.partition): r.start for r in task.ranges}
    consumer.assign(list(partitions))
    if task.time is not None:
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, task.time))
        partitions = {partition: offset.offset for partition, offset in found.items()}
    for partition, start in partitions.items():
        consumer.seek(partition, start)
    while not task.is_done:
        await tell(task, consumer)
        for partition in partitions:
            task.reached(*partition, await consumer.position(partition))


async def follow(task: Task, consumer: AIOKafkaConsumer) -> None:
    consumer.subscribe(task.topics)
    while not task.is_done:
        if await tell(task, consumer):
            try:
                await consumer.commit()
            except KafkaError as failure:  # the group has to be joined again
                print(repr(failure), file=sys.stderr)


async def tell(task: Task, consumer: AIOKafkaConsumer) -> int:
    """Tell of what was fetched; returns how many records that is."""
    count = 0
    for records in (await consumer.getmany(timeout_ms=POLL_MS)).values():
        for r in records:
            task.record(r.topic, r.partition, r.offset, r.key, r.value, r.timestamp, r.headers)
        count += len(records)
    return count


if __name__ == "__main__":
    asyncio.run(main())
