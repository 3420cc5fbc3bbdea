"""Clients of a topic whose ID is written while it is served: they are told that its old ID is gone, and read on."""

from __future__ import annotations

import asyncio
import threading
import uuid
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from kafka.errors import UnknownTopicIdError

from endpoints.endpoint_here import SECONDS, Client, serving
from endpoints.fetched import read
from endpoints.requests import Wanted, fetch, metadata
from kafkafmt.log.partition_metadata import write_topic_id
from log.samples import batch, batches, put_segment

ID = uuid.UUID(int=7)
BY_ID = 13  # from this version on Fetch has IDs
METADATA = 12


async def topic_id(client: Client) -> uuid.UUID:
    (topic,) = (await client.ask(metadata(), METADATA)).topics
    return uuid.UUID(str(topic.topic_id))


async def until_written(client: Client) -> None:
    while await topic_id(client) != ID:
        await asyncio.sleep(0.001)


def test_fetch_when_the_id_of_its_topic_was_written_meanwhile_then_the_old_one_is_unknown(
    tmp_path: Path,
) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 10, 5))

    async def main() -> None:
        async with serving(tmp_path) as here:
            with await here.client() as client:

                async def fetched(one: uuid.UUID) -> tuple[int, list[int]]:
                    (topic,) = (await client.ask(fetch(Wanted("", topic_id=one)), BY_ID)).responses
                    (partition,) = topic.partitions
                    return partition.error_code, read(partition, 0)

                derived = await topic_id(client)
                assert await fetched(derived) == (0, list(range(10)))
                write_topic_id(tmp_path / "t-0", ID)
                await asyncio.wait_for(until_written(client), SECONDS)
                assert await fetched(derived) == (UnknownTopicIdError.errno, [])
                assert await fetched(ID) == (0, list(range(10)))

    asyncio.run(main())


def test_consumer_when_the_id_of_its_topic_is_written_meanwhile_then_reads_each_record_once(
    tmp_path: Path,
) -> None:
    path = put_segment(tmp_path / "t-0", 0, batches(0, 10, 5))
    read_some, is_over = threading.Event(), threading.Event()
    offsets: list[int] = []

    def consume(bootstrap: str) -> None:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
        consumer.assign([TopicPartition("t", 0, 0)])
        while len(offsets) < 20 and not is_over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                offsets.append(message.offset())
            if len(offsets) == 10:
                read_some.set()
        consumer.close()

    async def main() -> None:
        async with serving(tmp_path) as here:
            host, port = here.endpoint.address
            reading = asyncio.create_task(asyncio.to_thread(consume, f"{host}:{port}"))
            try:
                assert await asyncio.to_thread(read_some.wait, SECONDS)
                write_topic_id(tmp_path / "t-0", ID)
                with await here.client() as client:
                    await asyncio.wait_for(until_written(client), SECONDS)
                with path.open("ab") as file:
                    file.write(bytes(batch(10, 10)))
                await asyncio.wait_for(asyncio.shield(reading), SECONDS)
            finally:
                is_over.set()
                await reading

    asyncio.run(main())
    assert offsets == list(range(20))
