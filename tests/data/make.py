#!/usr/bin/env python3
"""Fill topics of a real Kafka broker and keep their log folders and what a consumer reads in them.

    python tests/data/make.py            writes tests/data/logs/ and tests/data/expected/ anew

A batch is what is sent between two flushes, so the batches are the same each time; producer ids, append times and what
the cleaner reached are the broker's. Formats v0 and v1, which a broker no longer writes, come from Kafka's own segment
writer, and the broker then serves them from its log folder like any other. README.md beside this says what each
topic holds.
"""

from __future__ import annotations

import json
import lzma
import random
import shutil
import sys
import tempfile
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from broker.broker import Broker  # noqa: E402  (the helpers are packages under tests/)
from broker.client import Headers, JavaClient, Message  # noqa: E402
from oracle.kafka import KafkaOracle  # noqa: E402

LOGS = HERE / "logs"
EXPECTED = HERE / "expected"
SEED = 20240501
START_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CITIES = ("Ancona", "Bergen", "Cádiz", "Dundee", "Erfurt", "Fukuoka", "Gdańsk", "Haifa")
CLEANED = {
    "cleanup.policy": "compact",
    "segment.bytes": 4000,
    "min.cleanable.dirty.ratio": 0.01,
    "delete.retention.ms": 10 * 365 * 86_400_000,  # tombstones and markers stay, with a horizon
}


class Kafka(JavaClient):
    """Ordinary clients, and Kafka's own segment writer, against one broker."""

    def __init__(self, oracle: KafkaOracle, broker: Broker) -> None:
        super().__init__(oracle.jvm, broker)
        self.oracle = oracle

    def write_segments(self, folder: Path, batches: list[bytes], per_segment: int) -> None:
        """Put batches into segments with indexes."""
        log = self.jvm.org.apache.kafka.storage.internals.log
        config = log.LogConfig({"index.interval.bytes": "1024", "segment.index.bytes": "4096"})
        time_source = self.jvm.org.apache.kafka.common.utils.Time.SYSTEM
        for first in range(0, len(batches), per_segment):
            part = batches[first : first + per_segment]
            bounds = [self.oracle.decode(data) for data in part]
            base_offset = bounds[0][0]["base_offset"]
            directory = self.jvm.java.io.File(str(folder))
            segment = log.LogSegment.open(directory, base_offset, config, time_source, 0, False)
            for data, decoded in zip(part, bounds, strict=True):
                buffer = self.jvm.java.nio.ByteBuffer.wrap(data)
                records = self.jvm.org.apache.kafka.common.record.MemoryRecords.readableRecords(buffer)
                segment.append(decoded[-1]["last_offset"], records)
            segment.onBecomeInactiveSegment()
            segment.flush()
            segment.close()


class Orders:
    """Made-up orders, the same in each run: keys repeat, values compress, time goes on by some milliseconds."""

    def __init__(self, seed: int) -> None:
        self.random, self.now = random.Random(seed), START_MS

    def order(self, **overrides: Any) -> Message:
        r = self.random
        self.now += r.randrange(50)
        customer = r.randrange(200)
        value = {"customer": customer, "city": r.choice(CITIES), "cents": r.randrange(10**6)}
        text = json.dumps(value, ensure_ascii=False).encode()
        order = {"timestamp": self.now, "key": b"customer-%d" % customer, "value": text}
        return Message(**{**order, **overrides})

    def orders(self, count: int) -> list[Message]:
        return [self.order() for _ in range(count)]


# Topics that a producer fills. Each maker takes the client and the topic's name; `config` is the topic's.


def make_codec(kafka: Kafka, topic: str) -> None:
    orders = Orders(SEED)
    with kafka.producer(topic, enable_idempotence="false") as producer:
        for size in (1, 2, 40, 100, 7, 80):
            kafka.send(producer, topic, orders.orders(size))


def make_idempotent(kafka: Kafka, topic: str) -> None:
    orders = Orders(SEED + 1)
    with kafka.producer("lz4") as first, kafka.producer("none") as second:
        for size in (30, 1, 60):
            kafka.send(first, topic, orders.orders(size))
            kafka.send(second, topic, orders.orders(3))


def make_mixed_codecs(kafka: Kafka, topic: str) -> None:
    orders = Orders(SEED + 2)
    for codec in (*CODECS, *reversed(CODECS)):
        with kafka.producer(codec) as producer:
            kafka.send(producer, topic, orders.orders(25))


def make_headers(kafka: Kafka, topic: str) -> None:
    orders = Orders(SEED + 3)
    sets: list[Headers] = [
        [],
        [("trace", b"\x00\x01\xfe\xff")],
        [("null", None), ("empty", b"")],
        [("twice", b"1"), ("twice", None), ("twice", b"1")],
        [("", b"a key of no characters")],
        [("ключ-ø-鍵", "värde".encode()), ("long", b"x" * 300)],
        [(f"h{i}", b"%d" % i if i % 3 else None) for i in range(70)],
    ]
    for codec in ("none", "zstd"):
        with kafka.producer(codec) as producer:
            kafka.send(producer, topic, [orders.order(headers=headers) for headers in sets])
            for headers in sets:
                kafka.send(producer, topic, [orders.order(headers=headers)])


def make_nulls(kafka: Kafka, topic: str) -> None:
    orders = Orders(SEED + 4)
    choices = (None, b"", b"x")
    pairs = [(key, value) for key in choices for value in choices]
    for codec in ("none", "gzip", "snappy"):
        with kafka.producer(codec, enable_idempotence="false") as producer:
            kafka.send(producer, topic, [orders.order(key=key, value=value) for key, value in pairs])
            for key, value in pairs:
                kafka.send(producer, topic, [orders.order(key=key, value=value)])


def make_sizes(kafka: Kafka, topic: str) -> None:
    orders = Orders(SEED + 5)
    sizes = [0, 1, 50, 63, 64, 100, 127, 128, 8180, 8191, 8192, 16384]
    for codec in ("none", "lz4", "zstd", "snappy", "gzip"):
        with kafka.producer(codec) as producer:
            values = [orders.order(value=(b"%d " % n * n)[:n], key=b"k" * min(n, 200)) for n in sizes]
            kafka.send(producer, topic, values)
    with kafka.producer("gzip") as producer:  # what a compressor makes larger
        kafka.send(producer, topic, [orders.order(value=orders.random.randbytes(30_000))])


def make_time_travel(kafka: Kafka, topic: str) -> None:
    """Timestamps that go backwards, repeat, jump by decades, and are 0."""
    orders = Orders(SEED + 6)
    times = [START_MS + 5, START_MS, START_MS, 0, START_MS * 2, 1, START_MS - 86_400_000]
    for codec in ("none", "lz4"):
        with kafka.producer(codec) as producer:
            kafka.send(producer, topic, [orders.order(timestamp=timestamp) for timestamp in times])
            for timestamp in times:
                kafka.send(producer, topic, [orders.order(timestamp=timestamp)])


def make_single(kafka: Kafka, topic: str) -> None:
    orders = Orders(SEED + 7)
    with kafka.producer("none", enable_idempotence="false") as producer:
        for message in orders.orders(400):
            kafka.send(producer, topic, [message])


def make_segments(kafka: Kafka, topic: str) -> None:
    orders = Orders(SEED + 8)
    with kafka.producer("none") as plain, kafka.producer("lz4") as lz4:
        for number in range(60):
            kafka.send(lz4 if number % 3 == 2 else plain, topic, orders.orders(1 + number % 17))


def make_partitions(kafka: Kafka, topic: str) -> None:
    orders = Orders(SEED + 9)
    with kafka.producer("snappy") as producer:
        for _ in range(6):
            batch = orders.orders(45)
            for message in batch:
                message.partition = (message.key or b"?")[-1] % 3
            kafka.send(producer, topic, batch)


def make_append_time(kafka: Kafka, topic: str) -> None:
    orders = Orders(SEED + 10)
    for codec in CODECS:
        with kafka.producer(codec) as producer:
            kafka.send(producer, topic, orders.orders(20))
            kafka.send(producer, topic, orders.orders(1))


def make_transactions(kafka: Kafka, topic: str) -> None:
    """Two transactional producers and a plain one, interleaved; aborts in several segments."""
    orders = Orders(SEED + 11)
    with (
        kafka.producer("none", transactional_id="first") as first,
        kafka.producer("lz4", transactional_id="second") as second,
        kafka.producer("none", enable_idempotence="false") as plain,
    ):
        for number in range(14):
            first.beginTransaction()
            second.beginTransaction()
            kafka.send(first, topic, orders.orders(4 + number))
            kafka.send(second, topic, orders.orders(12))
            kafka.send(plain, topic, orders.orders(1))
            kafka.send(first, topic, orders.orders(2))
            _end(second, commit=number % 3 != 1)
            _end(first, commit=number % 2 == 0)


def make_open_transaction(kafka: Kafka, topic: str) -> None:
    """The last transaction neither committed nor aborted: a committed reader stops before it."""
    orders = Orders(SEED + 12)
    with kafka.producer("none", transactional_id="closed") as closed:
        for commit in (True, False):
            closed.beginTransaction()
            kafka.send(closed, topic, orders.orders(5))
            _end(closed, commit)
    hanging = kafka.open_producer(transactional_id="hanging", transaction_timeout_ms="900000")
    hanging.beginTransaction()
    kafka.send(hanging, topic, orders.orders(6))
    with kafka.producer("none", enable_idempotence="false") as plain:
        kafka.send(plain, topic, orders.orders(4))
    hanging.close(kafka.jvm.java.time.Duration.ofMillis(0))  # a close that may wait would abort


def _end(producer: Any, commit: bool) -> None:
    if commit:
        producer.commitTransaction()
    else:
        producer.abortTransaction()


def make_compacted(kafka: Kafka, topic: str) -> None:
    """Keys written over and over, tombstones, a transaction, and a producer of whose records none is left."""
    orders = Orders(SEED + 13)

    def about(customers: Iterable[int], deleted: Callable[[int], bool] = lambda _: False) -> list[Message]:
        return [
            orders.order(key=b"customer-%d" % c, **({"value": None} if deleted(c) else {})) for c in customers
        ]

    with kafka.producer("none") as overwritten:
        kafka.send(overwritten, topic, about(range(10)))
    with kafka.producer("lz4", transactional_id="compacting") as transactional:
        for commit in (True, False, True):
            transactional.beginTransaction()
            kafka.send(transactional, topic, about([*range(5, 25), *range(200, 210)]))
            _end(transactional, commit)
    with kafka.producer("gzip") as gzip, kafka.producer("zstd") as zstd, kafka.producer("none") as plain:
        kafka.send(gzip, topic, about(range(60)))
        kafka.send(plain, topic, about(range(0, 60, 2)))
        kafka.send(gzip, topic, about(range(30), deleted=lambda c: c % 4 == 0))
        kafka.send(zstd, topic, about(range(40, 80), deleted=lambda c: c % 5 == 0))
        kafka.send(plain, topic, about(range(70, 90)))
        for customer in range(100, 160):  # fills the segment, so that all before it may be cleaned
            kafka.send(plain, topic, about([customer % 120]))
    kafka.broker.wait_for_cleaner(topic)


@dataclass
class Topic:
    make: Callable[[Kafka, str], None]
    config: dict[str, Any] = field(default_factory=dict)
    partitions: int = 1


TOPICS = {
    **{codec: Topic(make_codec) for codec in CODECS},
    "idempotent": Topic(make_idempotent),
    "mixed-codecs": Topic(make_mixed_codecs),
    "headers": Topic(make_headers),
    "nulls": Topic(make_nulls),
    "sizes": Topic(make_sizes),
    "time-travel": Topic(make_time_travel),
    "single": Topic(make_single, {"index.interval.bytes": 1024}),
    "segments": Topic(make_segments, {"segment.bytes": 8_000, "index.interval.bytes": 1024}),
    "partitions": Topic(make_partitions, partitions=3),
    "append-time": Topic(make_append_time, {"message.timestamp.type": "LogAppendTime"}),
    "transactions": Topic(make_transactions, {"segment.bytes": 10_000, "index.interval.bytes": 1024}),
    "open-transaction": Topic(make_open_transaction),
    "compacted": Topic(make_compacted, CLEANED),
}

# A topic whose broker was killed: the log is preallocated, so its tail is zeros, and its indexes keep their full size.
PREALLOCATED = "preallocated"
PREALLOCATED_CONFIG = {"preallocate": "true", "segment.bytes": 16_384, "segment.index.bytes": 1024}


def make_preallocated(kafka: Kafka, topic: str) -> None:
    orders = Orders(SEED + 14)
    with kafka.producer("none") as producer:
        for _ in range(16):
            kafka.send(producer, topic, orders.orders(12))


# Topics in the formats that brokers wrote before 0.11, and one that lived through both upgrades.


def legacy_batches(oracle: KafkaOracle, magic: int) -> list[bytes]:
    """Plain messages and a wrapper of each codec in turn; gaps inside wrappers and between them; nulls."""
    orders, offset, batches = Orders(SEED + 20 + magic), 0, []
    for number in range(36):
        codec = number % 4
        records = []
        for index in range(1 + (number * 5) % 9):
            order = orders.order(**({"key": None} if index % 4 == 2 else {}))
            records.append(
                {
                    "offset": offset,
                    "timestamp": -1 if number == 8 and magic == 1 else order.timestamp - index * 7,
                    "key": order.key,
                    "value": (None, b"", order.value)[min(index, 2)] if number % 6 == 5 else order.value,
                }
            )
            offset += 1 + (number % 5 == 3 and index % 2)
        spec: dict[str, Any] = {"op": "build", "magic": magic, "codec": codec}
        spec["base_offset"] = records[0]["offset"]
        if magic == 1 and number % 7 == 6:
            spec |= {"timestamp_type": 1, "log_append_time": orders.now}
        batches.append({**spec, "records": records})
        offset += 3 if number % 9 == 8 else 0
    return [_built(answer) for answer in oracle.ask(batches)]


def upgraded_batches(oracle: KafkaOracle) -> list[bytes]:
    """One log that holds v0, then v1, then v2, as topics that outlived two upgrades do."""
    orders, offset, specs = Orders(SEED + 30), 0, []
    for number, (magic, codec) in enumerate(product((0, 1, 2), range(4))):
        records = [
            {"offset": offset + i, "timestamp": m.timestamp, "key": m.key, "value": m.value}
            for i, m in enumerate(orders.orders(4 + number))
        ]
        spec = {"op": "build", "magic": magic, "codec": codec, "base_offset": offset}
        specs.append({**spec, "records": records})
        offset += len(records)
    return [_built(answer) for answer in oracle.ask(specs)]


def _built(answer: dict[str, Any]) -> bytes:
    if "error" in answer:
        raise ValueError(f"{answer['error']}: {answer['message']}")
    data: bytes = answer["bytes"]
    return data


def place(kafka: Kafka, topic: str, batches: list[bytes], per_segment: int) -> None:
    """Into the log folder of a topic whose broker is stopped."""
    folder = kafka.broker.log_dir / f"{topic}-0"
    for file in folder.glob("0*"):
        file.unlink()
    kafka.write_segments(folder, batches, per_segment)


def keep_log(broker: Broker, name: str) -> None:
    shutil.copytree(broker.log_dir / name, LOGS / name)


def keep_expected(kafka: Kafka, topic: str, partition: int) -> None:
    committed = {record.offset for record in kafka.consume(topic, partition, isolation="read_committed")}
    lines = []
    for record in kafka.consume(topic, partition):
        fields = {**vars(record), "committed": record.offset in committed}
        lines.append(json.dumps(fields, ensure_ascii=False, default=lambda data: b64encode(data).decode()))
    data = lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9)
    (EXPECTED / f"{topic}-{partition}.jsonl.xz").write_bytes(data)


def make(kafka: Kafka) -> None:
    broker, oracle = kafka.broker, kafka.oracle
    old = {
        "legacy-v0": (legacy_batches(oracle, 0), 13),
        "legacy-v1": (legacy_batches(oracle, 1), 13),
        "upgraded": (upgraded_batches(oracle), 5),
    }
    for name, topic in TOPICS.items():
        broker.create_topic(name, topic.partitions, topic.config)
        topic.make(kafka, name)
        print(f"{name}: filled", flush=True)
    for name in old:
        broker.create_topic(name)
    broker.stop()
    for name, (batches, per_segment) in old.items():
        place(kafka, name, batches, per_segment)
    broker.start()
    partitions = [(name, p) for name, topic in TOPICS.items() for p in range(topic.partitions)]
    partitions += [(name, 0) for name in old]
    for name, partition in partitions:
        keep_expected(kafka, name, partition)
    broker.create_topic(PREALLOCATED, config=PREALLOCATED_CONFIG)
    make_preallocated(kafka, PREALLOCATED)
    keep_expected(kafka, PREALLOCATED, 0)
    keep_log(broker, f"{PREALLOCATED}-0")
    broker.stop()
    for name, partition in partitions:
        keep_log(broker, f"{name}-{partition}")


def main() -> None:
    for folder in (LOGS, EXPECTED):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    with (
        tempfile.TemporaryDirectory(prefix="kafkafmt-data-") as folder,
        KafkaOracle() as oracle,
        Broker(Path(folder), {"log.roll.hours": 1_000_000}) as broker,  # markers are of now, records are not
        Kafka(oracle, broker) as kafka,
    ):
        make(kafka)
    total = sum(f.stat().st_size for d in (LOGS, EXPECTED) for f in d.rglob("*") if f.is_file())
    print(f"{total / 1e6:.2f} MB in {LOGS} and {EXPECTED}")


if __name__ == "__main__":
    main()
