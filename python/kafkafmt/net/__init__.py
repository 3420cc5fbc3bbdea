"""Producing over the network: kafka-python's producer on kafkafmt's accumulator and encoder (KIP-126).

Needs the extra `net`.
"""

try:
    import kafka  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "kafka":
        raise
    raise ModuleNotFoundError(
        "kafkafmt.net needs kafka-python: pip install 'kafkafmt[net]'", name="kafka"
    ) from None

from kafkafmt.net.errors import (
    BufferExhaustedError,
    ProducerClosedError,
    RecordTooLargeError,
    UndeliveredError,
)
from kafkafmt.net.producer import Producer

__all__ = [
    "BufferExhaustedError",
    "Producer",
    "ProducerClosedError",
    "RecordTooLargeError",
    "UndeliveredError",
]
