"""The accumulator with the futures and errors that users of kafka-python expect."""

from __future__ import annotations

from kafkafmt.client.accumulator import RecordAccumulator
from kafkafmt.client.errors import (
    BufferExhaustedError,
    PossiblyDeliveredError,
    ProducerClosedError,
    RecordTooLargeError,
)
from kafkafmt.client.future import FutureRecordMetadata


class ProducerAccumulator(RecordAccumulator):
    """A RecordAccumulator whose futures and errors are those that users of kafka-python expect."""

    future_type = FutureRecordMetadata
    closed_error = ProducerClosedError
    buffer_exhausted_error = BufferExhaustedError
    record_too_large_error = RecordTooLargeError
    possibly_delivered_error = PossiblyDeliveredError
