"""Batches of every codec, and how they are sent to a topic of a real broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import kafkafmt as kf
from broker.produce import produce

if TYPE_CHECKING:
    from broker.broker import Broker

RECORDS = 25
START_MS = 1_700_000_000_000


def batch(number: int, records: int = RECORDS) -> bytes:
    """One batch, of one codec after the other."""
    builder = kf.RecordBatchBuilder(codec=list(kf.Codec)[number % len(kf.Codec)])
    for record in range(records):
        headers = [("number", b"%d" % number), ("none", None)] if record % 3 == 0 else []
        value = None if record % 7 == 3 else b"value %d of batch %d" % (record, number)
        builder.append(START_MS + number * 1000 + record, b"key-%d" % record, value, headers)
    return builder.build()


def send(broker: Broker, topic: str, numbers: Iterable[int], partitions: int = 1) -> None:
    """Send batches of these numbers to one partition after the other."""
    for number in numbers:
        assert produce(broker, topic, batch(number), number % partitions) == 0
