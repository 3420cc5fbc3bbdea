"""aiokafka's producer; options: its codec, and "idempotent"."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaProducer
from producer_driver import Producing


async def main() -> None:
    told = Producing()
    codec, *idempotent = told.options
    producer = AIOKafkaProducer(
        bootstrap_servers=told.bootstrap,
        acks="all",
        linger_ms=5,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=bool(idempotent),
    )
    await producer.start()
    sent = [await producer.send(told.topic, value, key, 0) for key, value in told.records()]
    await asyncio.gather(*sent)
    await producer.stop()


if __name__ == "__main__":
    asyncio.run(main())
