"""confluent-kafka through the gateway: `python -m chaos.workloads.stranger FOLDER ROLE NAME TOPIC SERVER SEED START`.

ROLE is `produce`: a new, idempotent producer, whose requests pass. Or `consume`: a member of a group as a client of
Kafka 0.10, for which the gateway converts records to message format v1.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from chaos.history import Writer, name_of, now, value
from chaos.workloads.load import LEAST_BYTES, MOST_A_PAUSE, MOST_BYTES, PARTITIONS, PAUSE_SECONDS

GROUP = "strangers"
OLD_CLIENT = {"api.version.request": False, "broker.version.fallback": "0.10.0.1"}
END_SECONDS = 100
DELIVERY_MS = 600_000
"""Longer than any outage: if records of a batch in flight expire, librdkafka sends the others again in a new epoch."""
MOST_POLLED = 200


def produce(run: str, topic: str, server: str, folder: Path, seed: str, is_over: threading.Event) -> None:
    chance, history, number = random.Random(f"{seed} {run}"), Writer(folder / f"{run}.sent"), 0
    producer = Producer(
        {
            "bootstrap.servers": server,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "delivery.timeout.ms": DELIVERY_MS,
            "request.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 1000,
        }
    )

    def delivered(error: KafkaError | None, message: Message) -> None:
        named = name_of(message.value()).rpartition(":")[2]
        if error is None:
            offset = message.offset()  # None if librdkafka does not know it
            history.write([f"a {named} {message.partition()} {-1 if offset is None else offset}"])
        else:
            history.write([f"f {named} {error.name()}"])

    while not is_over.is_set():
        first, number = number, number + chance.randint(1, MOST_A_PAUSE)
        history.write([f"s {number}"])
        for each in range(first, number):
            data, partition = (
                value(run, each, chance.randint(LEAST_BYTES, MOST_BYTES)),
                chance.randrange(PARTITIONS),
            )
            while True:
                try:
                    producer.produce(topic, data, partition=partition, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(1)
        producer.poll(PAUSE_SECONDS)
    producer.flush(END_SECONDS)


def consume(run: str, topic: str, server: str, folder: Path, is_over: threading.Event) -> None:
    history = Writer(folder / f"{run}.received")
    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10_000,
            "reconnect.backoff.max.ms": 1000,
            **OLD_CLIENT,
        }
    )

    def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
        history.write(f"g {now()} {one.topic} {one.partition}" for one in partitions)

    consumer.subscribe([topic], on_assign=assigned)
    while not is_over.is_set():
        messages = [one for one in consumer.consume(MOST_POLLED, 0.3) if one.error() is None]
        history.write(
            f"r {now()} {topic} {one.partition()} {one.offset()} {name_of(one.value())}" for one in messages
        )
        if not messages:
            continue
        ends = {one.partition(): one.offset() + 1 for one in messages}
        try:
            done = consumer.commit(
                offsets=[TopicPartition(topic, *end) for end in ends.items()], asynchronous=False
            )
        except KafkaException as error:
            print(f"{time.monotonic():.2f} {error!r}", flush=True)
            continue
        history.write(f"k {now()} {topic} {one.partition} {one.offset}" for one in done if one.error is None)
    consumer.close()


def main(folder: str, role: str, name: str, topic: str, server: str, seed: str, start: str) -> None:
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    if role == "produce":
        produce(f"{name}.{start}", topic, server, Path(folder), seed, is_over)
    else:
        consume(f"{name}.{start}", topic, server, Path(folder), is_over)


if __name__ == "__main__":
    main(*sys.argv[1:])
