"""Java's producer and consumer, the ordinary clients, against a broker of the tests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from py4j.java_gateway import get_field

if TYPE_CHECKING:
    from typing_extensions import Self

WAIT_SECONDS = 60

Headers = list[tuple[str, "bytes | None"]]


@dataclass
class Message:
    """One record to send."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=list)
    partition: int = 0


@dataclass
class Received:
    """One record as the consumer hands it out."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Server(Protocol):
    """What clients connect to: a Broker, say."""

    @property
    def bootstrap(self) -> str: ...


class JavaClient:
    """Clients in a JVM that has Kafka's jars (py4j's `jvm`). A context manager that closes its consumers."""

    def __init__(self, jvm: Any, broker: Server) -> None:
        self.jvm, self.broker = jvm, broker
        self._consumers: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the consumers; the next `consume` opens another. Needed before the broker's address changes."""
        while self._consumers:
            self._consumers.popitem()[1].close()

    def open_producer(self, codec: str = "none", **config: str) -> Any:
        serializer = "org.apache.kafka.common.serialization.ByteArraySerializer"
        settings = {
            "bootstrap.servers": self.broker.bootstrap,
            "key.serializer": serializer,
            "value.serializer": serializer,
            "compression.type": codec,
            "linger.ms": "60000",  # a batch is closed by flush() alone
            "batch.size": "1000000",
            **{name.replace("_", "."): value for name, value in config.items()},
        }
        producer = self.jvm.org.apache.kafka.clients.producer.KafkaProducer(settings)
        if "transactional_id" in config:
            producer.initTransactions()
        return producer

    @contextmanager
    def producer(self, codec: str = "none", **config: str) -> Iterator[Any]:
        producer = self.open_producer(codec, **config)
        try:
            yield producer
        finally:
            producer.close()

    def send(self, producer: Any, topic: str, batch: Iterable[Message]) -> None:
        """One batch for each partition in it."""
        java = self.jvm.org.apache.kafka
        sent = []
        for m in batch:
            headers = [java.common.header.internals.RecordHeader(k, v) for k, v in m.headers]
            record = java.clients.producer.ProducerRecord(
                topic, m.partition, m.timestamp, m.key, m.value, headers
            )
            sent.append(producer.send(record))
        producer.flush()
        for future in sent:
            future.get()  # raises what the broker refused

    def consume(
        self, topic: str, partition: int = 0, *, isolation: str = "read_uncommitted", start: int | None = None
    ) -> list[Received]:
        """The records of a partition, from its start or an offset, to its end."""
        consumer = self._consumers.get(isolation)
        if consumer is None:
            consumer = self._consumers[isolation] = self._open_consumer(isolation)
        where = self.jvm.org.apache.kafka.common.TopicPartition(topic, partition)
        consumer.assign([where])
        if start is None:
            consumer.seekToBeginning([where])
        else:
            consumer.seek(where, start)
        end = consumer.endOffsets([where])[where]
        found: list[Received] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while consumer.position(where) < end:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}-{partition}: at {consumer.position(where)} of {end}")
            polled = consumer.poll(self.jvm.java.time.Duration.ofMillis(200)).iterator()
            while polled.hasNext():
                found.append(_received(polled.next()))
        return found

    def _open_consumer(self, isolation: str) -> Any:
        deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
        settings = {
            "bootstrap.servers": self.broker.bootstrap,
            "key.deserializer": deserializer,
            "value.deserializer": deserializer,
            "isolation.level": isolation,
            "fetch.max.wait.ms": "10",  # a fetch at the end of one log holds up the next log's
        }
        return self.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)


def _received(record: Any) -> Received:
    return Received(
        offset=record.offset(),
        timestamp=record.timestamp(),
        timestamp_type=get_field(record.timestampType(), "id"),
        key=record.key(),
        value=record.value(),
        headers=[(header.key(), header.value()) for header in record.headers().toArray()],
    )
