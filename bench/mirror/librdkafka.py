"""MirrorMaker's way in Python: a loop of confluent-kafka's consumer and producer, which open and build every batch.

It runs by itself, mirrors what a topic holds when it starts, and ends:
`python -m bench.mirror.librdkafka SOURCE TARGET TOPIC PARTITIONS GROUP CODEC`. Partition, key, value, headers and
timestamp are kept. `produce_batch`, which takes no headers, is no way to do it.
"""

from __future__ import annotations

import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

_AT_ONCE = 10_000
_WAIT_SECONDS = 30.0
_FULL_SECONDS = 0.1  # for which it waits for room in a queue that is full
# As large requests and batches as brokers take, and queues that do not run dry.
_CONSUMER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "fetch.max.bytes": 50 << 20,
    "max.partition.fetch.bytes": 1 << 20,
    "check.crcs": True,
}
_PRODUCER = {
    "enable.idempotence": True,
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 100_000,
}


class Loop:
    """Forwards messages; raises KafkaException where one could not be delivered."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic

    def forward(self, message: Message) -> None:
        if message.error() is not None:
            raise KafkaException(message.error())
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    message.value(),
                    message.key(),
                    message.partition(),
                    timestamp=message.timestamp()[1],
                    headers=message.headers(),
                    on_delivery=_ensure_delivered,
                )
                return
            except BufferError:
                self._producer.poll(_FULL_SECONDS)


def _ensure_delivered(error: object, message: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def main(source: str, target: str, topic: str, partitions: str, group: str, codec: str) -> None:
    consumer = Consumer({"bootstrap.servers": source, "group.id": group, **_CONSUMER})
    producer = Producer({"bootstrap.servers": target, "compression.type": codec, **_PRODUCER})
    loop = Loop(producer, topic)
    parts = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(int(partitions))]
    left = sum(consumer.get_watermark_offsets(part, timeout=_WAIT_SECONDS)[1] for part in parts)
    consumer.assign(parts)
    while left:
        messages = consumer.consume(min(_AT_ONCE, left), _WAIT_SECONDS)
        if not messages:
            sys.exit(f"no record within {_WAIT_SECONDS:.0f} seconds, {left} to come")
        for message in messages:
            loop.forward(message)
        producer.poll(0)
        left -= len(messages)
    if undelivered := producer.flush(_WAIT_SECONDS):
        sys.exit(f"{undelivered} records were not delivered")
    if sum(part.offset > 0 for part in consumer.position(parts)):
        consumer.commit(asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
