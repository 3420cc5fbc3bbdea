"""Producers that send to a broker: `python -m bench.peers.sending NAME BOOTSTRAP_SERVER MEBIBYTES`.

A run sends the values of the segment, without keys, to one topic, again and again until they are MEBIBYTES, and ends
when the broker has acknowledged the last one. The settings are those of `Settings`, for every client. The topic is
named after the contender, the work and the size of the values.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

from bench.peers.names import KAFKA_PYTHON, LIBRDKAFKA, OURS
from bench.peers.protocol import Prepare, Run, Tally, serve

SEND, SEND_MANY, SEND_COLUMNS = "send", "send_many", "send_columns"
PARTITIONS = 4
CODECS = ("lz4", "none")
# librdkafka's own batch.size, and Kafka's.
LARGE, SMALL = 1_000_000, 16_384
MIB = 1024 * 1024
# Values that are handed over together where a call takes many.
AT_ONCE = 10_000
# After so many librdkafka's reports are served: then it takes the least of the processor.
_REPORTED_AT_ONCE = 1_000
COLUMN_RECORDS = 8192
_FLUSH_SECONDS = 120.0
_FULL_SECONDS = 1.0
_PRODUCERS = {KAFKA_PYTHON: ("kafka", "KafkaProducer"), OURS: ("kafkafmt.net", "Producer")}


@dataclass(frozen=True)
class Settings:
    """What all producers are told. They also have `acks=all`, idempotence, and their codec's default level."""

    codec: str
    batch_bytes: int
    linger_ms: int = 5
    in_flight: int = 5
    request_bytes: int = MIB
    buffer_bytes: int = 32 * MIB

    def of_kafka_python(self) -> dict[str, Any]:
        """kafka-python has no limit of its buffer: `buffer_memory` is ours."""
        return {
            "acks": "all",
            "enable_idempotence": True,
            "compression_type": None if self.codec == "none" else self.codec,
            "batch_size": self.batch_bytes,
            "linger_ms": self.linger_ms,
            "max_in_flight_requests_per_connection": self.in_flight,
            "max_request_size": self.request_bytes,
        }

    def of_librdkafka(self) -> dict[str, Any]:
        return {
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": self.codec,
            "batch.size": self.batch_bytes,
            "batch.num.messages": 1_000_000,  # bytes alone limit a batch
            "linger.ms": self.linger_ms,
            "max.in.flight.requests.per.connection": self.in_flight,
            "message.max.bytes": self.request_bytes,
            "queue.buffering.max.kbytes": self.buffer_bytes // 1024,
            "queue.buffering.max.messages": 10_000_000,
        }


def work_of(way: str, settings: Settings) -> str:
    return f"{way}-{settings.codec}-{settings.batch_bytes}"


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
    """A producer. send: sends a part of the records; flush: waits until the broker has acknowledged all."""

    send: Callable[[str, Any], None]
    flush: Callable[[], Any]
    close: Callable[[], Any]


def kafka_python(name: str, server: str, way: str, settings: Settings) -> Client:
    """kafka-python's own producer, or ours, which has its API."""
    module, producer_class = _PRODUCERS[name]
    make = getattr(importlib.import_module(module), producer_class)
    own = {"buffer_memory": settings.buffer_bytes} if name == OURS else {}
    producer = make(bootstrap_servers=server, **settings.of_kafka_python(), **own)
    partitions = cycle(range(PARTITIONS))

    def send(topic: str, values: Sequence[bytes]) -> None:
        send_one = producer.send
        for value in values:
            send_one(topic, value)

    def send_columns(topic: str, columns: Sequence[Any]) -> None:
        timestamps, values = columns
        producer.send_columns(topic, timestamps, None, values, partition=next(partitions))

    def send_many(topic: str, values: Sequence[bytes]) -> None:
        producer.send_many(topic, values)

    ways = {SEND: send, SEND_MANY: send_many, SEND_COLUMNS: send_columns}
    return Client(ways[way], lambda: producer.flush(_FLUSH_SECONDS), producer.close)


def librdkafka(server: str, settings: Settings) -> Client:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": server, **settings.of_librdkafka()})

    def send(topic: str, values: Sequence[bytes]) -> None:
        produce = producer.produce
        for value in values:
            try:
                produce(topic, value)
            except BufferError:
                _produce_later(producer, topic, value)
        producer.poll(0)

    def flush() -> None:
        if left := producer.flush(_FLUSH_SECONDS):
            raise TimeoutError(f"{left} records were not acknowledged")

    return Client(send, flush, flush)


def _produce_later(producer: Any, topic: str, value: bytes) -> None:
    """Serve reports, which make room in a queue that is full, until the record has room."""
    while True:
        producer.poll(_FULL_SECONDS)
        try:
            producer.produce(topic, value)
            return
        except BufferError:
            pass


class Records(NamedTuple):
    """The records of a segment: how many, the size of a value, and the parts that a call gets."""

    count: int
    value_size: int
    parts: Sequence[Any]


def in_values(data: bytes, at_once: int = AT_ONCE) -> Records:
    values = values_of(data)
    parts = [values[first : first + at_once] for first in range(0, len(values), at_once)]
    return Records(len(values), len(values[0]), parts)


def in_columns(data: bytes) -> Records:
    """The same values, with their timestamps, in Arrow."""
    from kafkafmt import MemoryRecords

    stored = MemoryRecords(data).to_arrow(["timestamp", "value"])
    parts = [part.columns for part in stored.to_batches(COLUMN_RECORDS)]
    return Records(len(stored), len(stored.column("value")[0].as_py()), parts)


class Sending:
    """The works of one client."""

    def __init__(self, name: str, server: str, mebibytes: str) -> None:
        self._name, self._server, self._mebibytes = name, server, int(mebibytes)
        self._open: Client | None = None

    def works(self) -> Iterator[tuple[str, Prepare]]:
        for settings in (Settings(codec, size) for codec in CODECS for size in (LARGE, SMALL)):
            for way in self._ways():
                yield work_of(way, settings), self._work(way, settings)

    def _ways(self) -> Iterator[str]:
        yield SEND
        if self._name == OURS:
            yield SEND_COLUMNS
            if hasattr(importlib.import_module("kafkafmt.net").Producer, "send_many"):
                yield SEND_MANY

    def _work(self, way: str, settings: Settings) -> Prepare:
        def prepare(data: bytes) -> Run:
            records = self._records(way, data)
            copies = max(1, self._mebibytes * MIB // len(data))
            topic = topic_of(self._name, work_of(way, settings), records.value_size)
            client = self._open = self._opened(way, settings)

            def run() -> Tally:
                for _ in range(copies):
                    for part in records.parts:
                        client.send(topic, part)
                client.flush()
                return Tally(copies * records.count)

            return run

        return prepare

    def _records(self, way: str, data: bytes) -> Records:
        if way == SEND_COLUMNS:
            return in_columns(data)
        return in_values(data, _REPORTED_AT_ONCE if self._name == LIBRDKAFKA else AT_ONCE)

    def _opened(self, way: str, settings: Settings) -> Client:
        if self._name == LIBRDKAFKA:
            return librdkafka(self._server, settings)
        return kafka_python(self._name, self._server, way, settings)

    def close(self) -> None:
        """Close the producer: though idle, it would take time while others work."""
        if self._open is not None:
            self._open.close()
            self._open = None


if __name__ == "__main__":
    sending = Sending(*sys.argv[1:])
    serve(dict(sending.works()), sending.close)
