"""Produce and consume over the network, with kafka-python's connections.

- `Producer` is kafka-python's producer with kafkafmt's accumulator and encoder (KIP-126).
- `Consumer` is kafka-python's consumer, which also returns columns.
- `RawProducer` sends whole batches, and `RawConsumer` returns them, as they are stored (KIP-712).

Requires the extra `net`.
"""

from kafkafmt._util.extras import needed_by

with needed_by("kafkafmt.net", "net"):
    import kafka.errors  # noqa: F401  # a folder named `kafka` is a package, too

from kafkafmt.client.consumer import Consumer
from kafkafmt.client.errors import (
    BufferExhaustedError,
    PossiblyDeliveredError,
    ProducerClosedError,
    RecordTooLargeError,
    UndeliveredError,
)
from kafkafmt.client.errors import CorruptFetchedBatchError as CorruptRecordError
from kafkafmt.client.producer import Producer
from kafkafmt.client.raw_consumer import RawConsumer
from kafkafmt.client.raw_producer import RawProducer

__all__ = [
    "BufferExhaustedError",
    "Consumer",
    "CorruptRecordError",
    "PossiblyDeliveredError",
    "Producer",
    "ProducerClosedError",
    "RawConsumer",
    "RawProducer",
    "RecordTooLargeError",
    "UndeliveredError",
]
