"""What can go wrong on the way to a broker, beside what the data itself causes (`kafkafmt.errors`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafmt.accumulator.future import RecordsFuture


class BufferExhaustedError(TimeoutError):
    """No room for a record within `max_block_ms`: the batches that wait for their broker hold the whole budget.

    appended: of records that were appended in columns, the future of those that were taken; None for a single one.
    """

    appended: RecordsFuture | None = None


class PossiblyDeliveredError(RuntimeError):
    """A record that a broker may have, and that is not sent again, lest it is there twice."""


class AccumulatorClosedError(RuntimeError):
    """The accumulator takes no more records, or gave up those that it had."""
