"""The errors of sending records. Errors that the data itself causes are in `kafkafmt.errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafmt.client.accumulator.future import RecordsFuture


class BufferExhaustedError(TimeoutError):
    """The budget had no room for a record within `max_block_ms`: batches that are not delivered yet hold its bytes.

    appended: the future of the records that were appended before, if many were appended in one call; else None.
    """

    appended: RecordsFuture | None = None


class PossiblyDeliveredError(RuntimeError):
    """A broker may have the record. It is not sent again, because the broker could then store it twice."""


class AccumulatorClosedError(RuntimeError):
    """The accumulator is closed and takes no more records."""
