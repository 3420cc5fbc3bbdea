"""Producers that send to a broker: `python -m bench.peers.sending NAME BOOTSTRAP_SERVER`.

A run sends every value of the segment, without keys, to one topic, and ends when the broker has acknowledged
the last one. All are idempotent, wait for acks=all, linger for 5 ms as Kafka 4 does, and partition as they do by
themselves; else they have their own defaults. The topic is named after the work and the contender.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from bench.peers.protocol import Prepare, Run, Tally, serve

PARTITIONS = 4
CODECS = ("lz4", "none")
LINGER_MS = 5
_FLUSH_SECONDS = 120.0
PRODUCERS = {"kafka-python": ("kafka", "KafkaProducer"), "ours": ("kafkafmt.net", "Producer")}


def topic_of(contender: str, work: str, value_size: int) -> str:
    return f"{contender}-{work}-{value_size}"


def values_of(data: bytes) -> list[bytes]:
    """kafka-python reads them: it is there whoever sends."""
    from kafka.record.memory_records import MemoryRecords

    records = MemoryRecords(data)
    values: list[bytes] = []
    while records.has_next():
        values += (bytes(record.value) for record in records.next_batch())
    return values


def by_kafka_python(name: str, server: str, codec: str) -> Prepare:
    """kafka-python's own producer, or ours, which has its API."""
    module, producer_class = PRODUCERS[name]
    make: Callable[..., Any] = getattr(importlib.import_module(module), producer_class)

    def prepare(data: bytes) -> Run:
        values = values_of(data)
        topic = topic_of(name, f"send_{codec}", len(values[0]))
        producer = make(
            bootstrap_servers=server,
            compression_type=None if codec == "none" else codec,
            linger_ms=LINGER_MS,
        )

        def run() -> Tally:
            for value in values:
                producer.send(topic, value)
            producer.flush(_FLUSH_SECONDS)
            return Tally(len(values))

        return run

    return prepare


def by_librdkafka(name: str, server: str, codec: str) -> Prepare:
    from confluent_kafka import Producer

    def prepare(data: bytes) -> Run:
        values = values_of(data)
        topic = topic_of(name, f"send_{codec}", len(values[0]))
        producer = Producer(
            {
                "bootstrap.servers": server,
                "compression.type": codec,
                "linger.ms": LINGER_MS,
                "enable.idempotence": True,
                "queue.buffering.max.messages": 1_000_000,
            }
        )

        def run() -> Tally:
            for value in values:
                producer.produce(topic, value)
            if left := producer.flush(_FLUSH_SECONDS):
                raise TimeoutError(f"{left} records were not acknowledged")
            return Tally(len(values))

        return run

    return prepare


def main(name: str, server: str) -> None:
    by = by_librdkafka if name == "librdkafka" else by_kafka_python
    serve({f"send_{codec}": by(name, server, codec) for codec in CODECS})


if __name__ == "__main__":
    main(*sys.argv[1:])
