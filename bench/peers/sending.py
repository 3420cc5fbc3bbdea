"""Producers that send to a broker: `python -m bench.peers.sending NAME BOOTSTRAP_SERVER`.

A run sends every value of the segment, without keys, to one topic, and ends when the broker has acknowledged
the last one. All are idempotent, wait for acks=all, linger for 5 ms as Kafka 4 does, and partition as they do by
themselves; else they have their own defaults. The topic is named after the work and the contender.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

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


class Client(NamedTuple):
    """A producer; `flush` waits until the broker has acknowledged all."""

    send: Callable[[str, bytes], Any]
    flush: Callable[[], None]
    close: Callable[[], None]


def kafka_python(name: str, server: str, codec: str) -> Client:
    """kafka-python's own producer, or ours, which has its API."""
    module, producer_class = PRODUCERS[name]
    make = getattr(importlib.import_module(module), producer_class)
    producer = make(
        bootstrap_servers=server, compression_type=None if codec == "none" else codec, linger_ms=LINGER_MS
    )
    return Client(producer.send, lambda: producer.flush(_FLUSH_SECONDS), producer.close)


def librdkafka(name: str, server: str, codec: str) -> Client:
    from confluent_kafka import Producer

    options = {
        "bootstrap.servers": server,
        "compression.type": codec,
        "linger.ms": LINGER_MS,
        "enable.idempotence": True,
        "queue.buffering.max.messages": 1_000_000,
    }
    producer = Producer(options)

    def flush() -> None:
        if left := producer.flush(_FLUSH_SECONDS):
            raise TimeoutError(f"{left} records were not acknowledged")

    return Client(producer.produce, flush, flush)


class Sending:
    """The works of one client. It has one producer at a time: another one, though idle, would take time."""

    def __init__(self, name: str, server: str) -> None:
        self._name = name
        self._server = server
        self._open: Client | None = None

    def works(self) -> dict[str, Prepare]:
        return {f"send_{codec}": self._work(codec) for codec in CODECS}

    def _work(self, codec: str) -> Prepare:
        def prepare(data: bytes) -> Run:
            values = values_of(data)
            topic = topic_of(self._name, f"send_{codec}", len(values[0]))
            if self._open is not None:
                self._open.close()
            open_client = librdkafka if self._name == "librdkafka" else kafka_python
            client = self._open = open_client(self._name, self._server, codec)

            def run() -> Tally:
                for value in values:
                    client.send(topic, value)
                client.flush()
                return Tally(len(values))

            return run

        return prepare


if __name__ == "__main__":
    serve(Sending(*sys.argv[1:]).works())
