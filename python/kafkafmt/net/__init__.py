"""Producing over the network: kafka-python's producer on kafkafmt's accumulator and encoder (KIP-126).

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
    PossiblyDeliveredError,
    ProducerClosedError,
    RecordTooLargeError,
    UndeliveredError,
)
from kafkafmt.net.producer import Producer

__all__ = [
    "BufferExhaustedError",
    "PossiblyDeliveredError",
    "Producer",
    "ProducerClosedError",
    "RecordTooLargeError",
    "UndeliveredError",
]
