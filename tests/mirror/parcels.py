"""What the topics have that the pages on mirrors are about: batches of 100 records with zstd."""

from __future__ import annotations

import kafkafmt as kf
from broker.broker import Broker
from kafkafmt.net import RawProducer

START_MS = 1_700_000_000_000
RECORDS = 100
BATCHES = 30
PARTITIONS = 3


def send_parcels(broker: Broker, topic: str) -> None:
    """Fill a topic of three partitions."""
    with RawProducer(bootstrap_servers=broker.bootstrap, send_raw_bytes=True) as producer:
        for number in range(BATCHES):
            producer.send(topic, _batch(number * RECORDS), partition=number % PARTITIONS)


def _batch(first: int) -> bytes:
    builder = kf.RecordBatchBuilder(codec=kf.Codec.ZSTD)
    for number in range(first, first + RECORDS):
        builder.append(START_MS + number, b"parcel-%d" % (number % 40), b'{"parcel": %d, "kg": 3}' % number)
    return bytes(builder.build())
