"""Topics that a mirror has to carry, each of one kind of batches, filled by librdkafka.

A batch is what is sent between two flushes, so the batches are the same on every broker; producer ids, append times
and what the cleaner leaves are the broker's.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import Producer

from client.cluster import Cluster

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MIB = 1 << 20
SECONDS = 60
START_MS = time.time_ns() // 1_000_000 - 3_600_000  # no later: 4.x refuses times that lie ahead by an hour
SEED = 712
CITIES = ("Ancona", "Bergen", "Cádiz", "Dundee", "Erfurt", "Fukuoka", "Gdańsk", "Haifa")


class Message(NamedTuple):
    """One record to send."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 0


class Orders:
    """Made-up orders, the same in each run: keys repeat, values compress, time goes on by some milliseconds."""

    def __init__(self) -> None:
        self._random, self._now = random.Random(SEED), START_MS

    def order(self, **overrides: Any) -> Message:
        customer = self._random.randrange(200)
        self._now += self._random.randrange(50)
        value = f'{{"customer": {customer}, "city": "{self._random.choice(CITIES)}"}}'.encode()
        return Message(self._now, b"customer-%d" % customer, value)._replace(**overrides)

    def take(self, count: int, **overrides: Any) -> list[Message]:
        return [self.order(**overrides) for _ in range(count)]

    def noise(self, size: int, **overrides: Any) -> Message:
        """An order with a value that does not compress."""
        return self.order(value=self._random.randbytes(size), **overrides)


class Feed:
    """What fills the topics of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.orders = Orders()

    @contextmanager
    def producer(self, codec: str = "none", **config: Any) -> Iterator[Producer]:
        producer = self.open_producer(codec, **config)
        yield producer
        assert producer.flush(SECONDS) == 0

    def open_producer(self, codec: str = "none", **config: Any) -> Producer:
        settings = {
            "bootstrap.servers": self.cluster.bootstrap,
            "compression.type": codec,
            "linger.ms": 10_000,  # a batch is closed by flush() alone
            "batch.size": MIB,
            "message.max.bytes": MIB,
            "acks": "all",
            **{name.replace("_", "."): value for name, value in config.items()},
        }
        producer = Producer(settings)
        if "transactional_id" in config:
            producer.init_transactions(SECONDS)
        return producer

    def send(self, producer: Producer, topic: str, messages: Iterable[Message]) -> None:
        """One batch for each partition in it, where it fits in one."""
        failures: list[str] = []

        def note(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error.str())

        for m in messages:
            producer.produce(
                topic,
                m.value,
                m.key,
                m.partition,
                timestamp=m.timestamp,
                headers=list(m.headers),
                on_delivery=note,
            )
        assert producer.flush(SECONDS) == 0
        assert failures == []


def fill_codecs(feed: Feed, topic: str) -> None:
    """A partition a codec; batches of one record and of many; idempotent, so that they carry producer state."""
    for partition, codec in enumerate(CODECS):
        with feed.producer(codec, enable_idempotence=True) as producer:
            for size in (1, 40, 200, 3):
                feed.send(producer, topic, feed.orders.take(size, partition=partition))


def fill_mixed_codecs(feed: Feed, topic: str) -> None:
    """One codec after another, without producer state."""
    for codec in (*CODECS, *reversed(CODECS)):
        with feed.producer(codec) as producer:
            feed.send(producer, topic, feed.orders.take(25))


def fill_tiny(feed: Feed, topic: str) -> None:
    """Batches of one record."""
    with feed.producer("lz4", batch_num_messages=1, enable_idempotence=True) as producer:
        feed.send(producer, topic, feed.orders.take(400))


def fill_large(feed: Feed, topic: str) -> None:
    """Batches of nearly 1 MiB, and one that decompresses to that from little; several segments."""
    for codec in ("none", "lz4", "zstd"):
        with feed.producer(codec, enable_idempotence=codec == "lz4") as producer:
            feed.send(producer, topic, [feed.orders.noise(100_000) for _ in range(10)])
    with feed.producer("gzip") as producer:
        feed.send(producer, topic, [feed.orders.order(value=bytes(900_000))])


def fill_odd_records(feed: Feed, topic: str) -> None:
    """Null and empty keys and values; headers null, empty, twice, long; timestamps that go back."""
    pairs = [(key, value) for key in (None, b"", b"x") for value in (None, b"", b"x")]
    headers: list[tuple[tuple[str, bytes | None], ...]] = [
        (("trace", b"\x00\x01\xfe\xff"),),
        (("null", None), ("empty", b"")),
        (("twice", b"1"), ("twice", None), ("twice", b"1")),
        (("ключ-ø-鍵", "värde".encode()), ("long", b"x" * 300)),
        tuple((f"h{i}", b"%d" % i if i % 3 else None) for i in range(70)),
    ]
    times = (START_MS + 5, START_MS, START_MS, 1, START_MS - 86_400_000)
    messages = [
        *(feed.orders.order(key=key, value=value) for key, value in pairs),
        *(feed.orders.order(headers=each) for each in headers),
        *(feed.orders.order(timestamp=timestamp) for timestamp in times),
    ]
    for codec in CODECS:
        with feed.producer(codec) as producer:
            feed.send(producer, topic, messages)
            for message in messages:
                feed.send(producer, topic, [message])


def fill_sparse(feed: Feed, topic: str) -> None:
    """Partitions with records beside empty ones."""
    with feed.producer("snappy") as producer:
        for size in (30, 1, 7):
            feed.send(
                producer, topic, [m for p in (0, 2) for m in feed.orders.take(size, partition=p, key=None)]
            )


def fill_append_time(feed: Feed, topic: str) -> None:
    for codec in CODECS:
        with feed.producer(codec) as producer:
            feed.send(producer, topic, feed.orders.take(20))
            feed.send(producer, topic, feed.orders.take(1))


def fill_transactions(feed: Feed, topic: str) -> None:
    """Two transactional producers and a plain one, interleaved; every other transaction is aborted."""
    first = feed.open_producer("none", transactional_id=f"{topic}-first")
    second = feed.open_producer("lz4", transactional_id=f"{topic}-second")
    with feed.producer("gzip") as plain:
        for number in range(6):
            first.begin_transaction()
            second.begin_transaction()
            feed.send(first, topic, feed.orders.take(4 + number))
            feed.send(second, topic, feed.orders.take(12))
            feed.send(plain, topic, feed.orders.take(2))
            feed.send(first, topic, feed.orders.take(2))
            end(second, is_commit=number % 3 != 1)
            end(first, is_commit=number % 2 == 0)


def fill_open_transaction(feed: Feed, topic: str) -> None:
    """The last transaction neither committed nor aborted: a committed reader stops before it."""
    closed = feed.open_producer("zstd", transactional_id=f"{topic}-closed")
    for is_commit in (True, False):
        closed.begin_transaction()
        feed.send(closed, topic, feed.orders.take(5))
        end(closed, is_commit)
    hanging = feed.open_producer(transactional_id=f"{topic}-hanging", transaction_timeout_ms=900_000)
    hanging.begin_transaction()
    feed.send(hanging, topic, feed.orders.take(6))
    with feed.producer() as plain:
        feed.send(plain, topic, feed.orders.take(4))


def end(producer: Producer, is_commit: bool) -> None:
    if is_commit:
        producer.commit_transaction(SECONDS)
    else:
        producer.abort_transaction(SECONDS)


def fill_compacted(feed: Feed, topic: str) -> None:
    """Keys written over and over, deletions, a transaction, and a producer of whose records none is left.

    The segments end by size, the smallest that 4.x allows: then noise fills them.
    """
    orders = feed.orders

    def about(
        customers: Iterable[int], are_deleted: Callable[[int], bool] = lambda _: False
    ) -> list[Message]:
        found = [orders.order(key=b"customer-%d" % c) for c in customers]
        return [
            m._replace(value=None) if are_deleted(c) else m for c, m in zip(customers, found, strict=True)
        ]

    with feed.producer("none", enable_idempotence=True) as overwritten:
        feed.send(overwritten, topic, about(range(10)))
    transactional = feed.open_producer("lz4", transactional_id=f"{topic}-compacting")
    for is_commit in (True, False, True):
        transactional.begin_transaction()
        feed.send(transactional, topic, about([*range(5, 25), *range(200, 210)]))
        end(transactional, is_commit)
    for codec, first in zip(CODECS, range(0, 500, 100), strict=True):
        with feed.producer(codec, enable_idempotence=codec == "gzip") as producer:
            feed.send(producer, topic, about(range(first, first + 60)))
            feed.send(producer, topic, about(range(first, first + 60, 2)))
            feed.send(producer, topic, about(range(first, first + 30), lambda c: c % 4 == 0))
            feed.send(producer, topic, about(range(first + 40, first + 80), lambda c: c % 5 == 0))
    with feed.producer() as plain:
        feed.send(plain, topic, about(range(900, 910)))  # these stay as they are
        for number in range(2):
            feed.send(plain, topic, [orders.noise(MIB * 9 // 10, key=b"noise-%d" % number)])
    feed.cluster.broker.wait_for_cleaner(topic)
    feed.cluster.alter_topic(
        topic, {"cleanup.policy": "delete"}
    )  # a copy is not cleaned while it is looked at


def fill_nothing(feed: Feed, topic: str) -> None:
    pass


@dataclass(frozen=True)
class Scenario:
    """A topic: how it is filled, its partitions, and its configuration."""

    fill: Callable[[Feed, str], None]
    partitions: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)


SCENARIOS = {
    "codecs": Scenario(fill_codecs, partitions=len(CODECS)),
    "mixed-codecs": Scenario(fill_mixed_codecs),
    "tiny": Scenario(fill_tiny),
    "large": Scenario(fill_large, config={"segment.bytes": 2 * MIB, "retention.ms": 864_000_000_000}),
    "odd-records": Scenario(fill_odd_records),
    "sparse": Scenario(fill_sparse, partitions=4),
    "append-time": Scenario(fill_append_time, config={"message.timestamp.type": "LogAppendTime"}),
    "transactions": Scenario(fill_transactions),
    "open-transaction": Scenario(fill_open_transaction),
    "compacted": Scenario(
        fill_compacted,
        config={
            "cleanup.policy": "compact",
            "segment.bytes": MIB,
            "min.cleanable.dirty.ratio": 0.01,
            "delete.retention.ms": 10 * 365 * 86_400_000,  # deletions and markers stay, with a horizon
        },
    ),
    "empty": Scenario(
        fill_nothing, partitions=2, config={"cleanup.policy": "compact,delete", "max.message.bytes": 700_000}
    ),
}
PARTITIONS = [(name, number) for name, scenario in SCENARIOS.items() for number in range(scenario.partitions)]


def fill(cluster: Cluster, prefix: str) -> None:
    """Create and fill `<prefix>.<scenario>` for each."""
    feed = Feed(cluster)
    for name, scenario in SCENARIOS.items():
        topic = cluster.create_topic(f"{prefix}.{name}", scenario.partitions, scenario.config)
        scenario.fill(feed, topic)


class Direction(NamedTuple):
    """From cluster to cluster; the scenarios' topics of the source begin with `prefix` and a dot."""

    source: Cluster
    target: Cluster
    prefix: str

    def topic(self, scenario: str) -> str:
        return f"{self.prefix}.{scenario}"

    @property
    def pattern(self) -> str:
        """A regular expression for all of the scenarios' topics, and no other."""
        return rf"{re.escape(self.prefix)}\.({'|'.join(SCENARIOS)})"
