"""The accumulator with the futures and errors that users of kafka-python expect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkafmt.client.accumulator import RecordAccumulator
from kafkafmt.client.errors import (
    BufferExhaustedError,
    PossiblyDeliveredError,
    ProducerClosedError,
    RecordTooLargeError,
)
from kafkafmt.client.future import FutureRecordMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkafmt.client.accumulator import AccumulatorOptions, ProducerBatch


class ProducerAccumulator(RecordAccumulator):
    """A RecordAccumulator whose futures and errors are those that users of kafka-python expect.

    may_wait: whether the caller's thread may wait for memory: the sender's must not, because it releases the memory.
    options, others: as RecordAccumulator has them.
    """

    future_type = FutureRecordMetadata
    closed_error = ProducerClosedError
    buffer_exhausted_error = BufferExhaustedError
    record_too_large_error = RecordTooLargeError
    possibly_delivered_error = PossiblyDeliveredError

    def __init__(
        self, options: AccumulatorOptions, *, may_wait: Callable[[], bool] = lambda: True, **others: Any
    ) -> None:
        super().__init__(options, **others)
        self._may_wait = may_wait

    def _wait_for(self, batch: ProducerBatch, size: int, max_block_ms: float | None) -> None:
        super()._wait_for(batch, size, max_block_ms if self._may_wait() else 0)
