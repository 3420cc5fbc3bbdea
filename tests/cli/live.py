"""Topics of a real broker for the tests of live sources: skewed, of every codec, with transactions of both ends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from broker.broker import Broker
from kafkafmt.net import Producer

FIRST_TIMESTAMP = 1_700_000_000_000
CODECS = (None, "gzip", "lz4", "snappy", "zstd")
_numbers = count()


def new_topic(broker: Broker, name: str, partitions: int) -> str:
    """Create a topic whose name no other test has."""
    topic = f"{name}-{random.randrange(10**9)}-{next(_numbers)}"
    broker.create_topic(topic, partitions)
    return topic


def produce(
    broker: Broker, topic: str, partitions: int, *, records: int, first: int = 0, seed: int = 1
) -> None:
    """Produce `records` for partition 0, a half as many for 1, and so on; some delete a key, some have none."""
    rng = random.Random(seed)
    for number in range(partitions):
        codec = CODECS[number % len(CODECS)]
        with Producer(
            bootstrap_servers=broker.bootstrap, compression_type=codec, batch_size=4096, linger_ms=5
        ) as producer:
            for at in range(first, first + max(records >> number, 20)):
                value = None if at % 7 == 3 and at % 11 else b"%d " % at + rng.randbytes(rng.randrange(400))
                producer.send(
                    topic,
                    value,
                    key=b"key %d" % rng.randrange(records // 4 + 1) if at % 11 else None,
                    partition=number,
                    timestamp_ms=FIRST_TIMESTAMP + at * 10 + rng.randrange(100),
                    headers=[("at", b"%d" % at)],
                )
            producer.flush()


@contextmanager
def transaction(broker: Broker, topic: str, name: str, *, commits: bool | None) -> Iterator[Producer]:
    """A transaction that ends at the end of the block: committed, aborted, or None: left open."""
    producer = Producer(bootstrap_servers=broker.bootstrap, transactional_id=f"{topic}-{name}")
    try:
        producer.init_transactions()
        producer.begin_transaction()
        yield producer
        producer.flush()
        if commits is not None:
            (producer.commit_transaction if commits else producer.abort_transaction)()
    finally:
        producer.close(0 if commits is None else None)
