"""Producing and consuming over the network, with kafka-python's clients.

Its producer on kafkafmt's accumulator and encoder (KIP-126), and its consumer, of whole batches as they are stored
(KIP-712).

Needs the extra `net`.
"""

try:
    import kafka.errors  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in {"kafka", "kafka.errors"}:  # a mere folder `kafka` is a package, too
        raise
    raise ModuleNotFoundError(
        "kafkafmt.net needs kafka-python: pip install 'kafkafmt[net]'", name="kafka"
    ) from None

from kafkafmt.net.errors import (
    BufferExhaustedError,
    CorruptRecordError,
    PossiblyDeliveredError,
    ProducerClosedError,
    RecordTooLargeError,
    UndeliveredError,
)
from kafkafmt.net.producer import Producer
from kafkafmt.net.raw_consumer import RawConsumer
from kafkafmt.net.raw_producer import RawProducer

__all__ = [
    "BufferExhaustedError",
    "CorruptRecordError",
    "PossiblyDeliveredError",
    "Producer",
    "ProducerClosedError",
    "RawConsumer",
    "RawProducer",
    "RecordTooLargeError",
    "UndeliveredError",
]
