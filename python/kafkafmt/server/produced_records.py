"""Checks what a producer sends for a partition as a broker does, except for the records inside the batches.

Batches of v2 are accepted unchanged, in any number. Messages of v0 or v1 are converted to one batch of v2.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
from kafka import errors

from _kafkafmt.batches.scan import BatchRun, scan
from _kafkafmt.records.decode import LocatedRecords
from _kafkafmt.records.encode import seal_batch
from _kafkafmt.wire.layout import RECORD_BATCH_OVERHEAD
from kafkafmt import codecs
from kafkafmt.build.builder import RecordBatchBuilder
from kafkafmt.build.forwarding import RefusalReason, refusal_message, refused_batches
from kafkafmt.convert.options import ConversionStats
from kafkafmt.errors import (
    CorruptRecordError,
    KafkaFormatError,
    UnsupportedCompressionTypeError,
    UnsupportedVersionError,
)
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

ACKS_ALL, ACKS_NONE, ACKS_LEADER = -1, 0, 1
_FIRST_VERSION_OF_BATCHES = 3  # KIP-98: from this version on Produce accepts only batches of v2
_FIRST_VERSION_WITH_ZSTD = 7  # KIP-110
# The most that a wrapper of v0 or v1 may decompress to. One is converted at a time, so this limits all together.
MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
_converting = threading.Lock()

_ERRORS: dict[RefusalReason, type[errors.BrokerResponseError]] = {
    RefusalReason.SIZE: errors.MessageSizeTooLargeError,
    RefusalReason.MAGIC: errors.InvalidRecordError,
    RefusalReason.CODEC: errors.UnsupportedCompressionTypeError,
    RefusalReason.EMPTY: errors.InvalidRecordError,
    RefusalReason.GAPS: errors.InvalidRecordError,
    RefusalReason.CONTROL: errors.InvalidRecordError,
    RefusalReason.PRODUCER_STATE: errors.InvalidRecordError,
    RefusalReason.TIMESTAMP_TYPE: errors.InvalidTimestampError,
}


class RefusedRecordsError(Exception):
    """The records for a partition are refused. error: Kafka's error for the producer, beside the message."""

    def __init__(self, error: type[errors.BrokerResponseError], message: str) -> None:
        super().__init__(message)
        self.error = error


def checked_run(
    records: Buffer | None,
    version: int,
    max_message_bytes: int,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    *,
    missing_timestamp: int | None = None,
    stats: ConversionStats | None = None,
) -> BatchRun:
    """Return the batches to append, in writable memory of their own; there may be none.

    version: of Produce. max_decompressed_bytes: the limit for one wrapper of v0 or v1. missing_timestamp: the time of
    messages of v0 in milliseconds; None: they have none. The batches have valid CRCs, counts that match their offsets,
    and nothing that only brokers write.
    A conversion adds its statistics to `stats`, once its result is accepted. Raises RefusedRecordsError.
    """
    data = memoryview(b"" if records is None else records)
    run, consumed, _, _, error = scan(data)
    if error is not None:
        raise RefusedRecordsError(errors.CorruptRecordError, str(error))
    if not len(run) and version >= _FIRST_VERSION_OF_BATCHES:
        raise RefusedRecordsError(errors.InvalidRecordError, "expected at least one record batch, found none")
    if consumed != len(data):
        message = f"expected whole batches, found a part of one after {consumed} bytes"
        raise RefusedRecordsError(errors.CorruptRecordError, message)
    if not len(run):
        return run
    valid = run.valid()
    if not valid.all():
        number = int(valid.argmin())
        message = refusal_message(RefusalReason.CRC, run.index[number], None)
        raise RefusedRecordsError(errors.CorruptRecordError, _of_batch(number, message))
    is_old = version < _FIRST_VERSION_OF_BATCHES and bool((run.index["magic"] < 2).all())
    _refuse(run.index, max_message_bytes, without=RefusalReason.MAGIC if is_old else None)
    if version < _FIRST_VERSION_WITH_ZSTD and (run.index["codec"] == Codec.ZSTD).any():
        message = f"zstd: expected Produce of version {_FIRST_VERSION_WITH_ZSTD} or later, found {version}"
        raise RefusedRecordsError(errors.UnsupportedCompressionTypeError, message)
    if is_old:
        has_times = bool(run.index["magic"][0])
        conversion = ConversionStats()
        run = _converted_up(run, max_decompressed_bytes, conversion)
        if missing_timestamp is not None and not has_times:
            run = _timed(run, missing_timestamp)
        _refuse(run.index, max_message_bytes)
        if stats is not None:
            stats.add(conversion)
        return run
    return scan(bytearray(data))[0]


def _refuse(rows: NDArray[np.void], max_message_bytes: int, without: RefusalReason | None = None) -> None:
    """Raise RefusedRecordsError for the first batch that a broker would refuse."""
    masks = {
        reason: mask
        for reason, mask in refused_batches(rows, max_message_bytes).items()
        if reason is not without and mask.any()
    }
    if not masks:
        return
    number = min(int(mask.argmax()) for mask in masks.values())
    reason = next(reason for reason in _ERRORS if reason in masks and masks[reason][number])
    error = _ERRORS[reason]
    if reason is RefusalReason.PRODUCER_STATE and rows["is_transactional"][number]:
        error = errors.TransactionalIdAuthorizationFailedError
    raise RefusedRecordsError(
        error, _of_batch(number, refusal_message(reason, rows[number], max_message_bytes))
    )


def _of_batch(number: int, message: str) -> str:
    return f"batch {number}: {message}"


def _converted_up(run: BatchRun, max_decompressed_bytes: int, stats: ConversionStats) -> BatchRun:
    """Convert messages of v0 or v1 to one batch of v2: one wrapper, or messages that are not compressed.

    Their offsets are ignored: old clients may send 0 for all of them. Raises RefusedRecordsError.
    Temporary memory is what Kafka's `LogValidator` counts: the decompressed wrapper, and records before compression.
    """
    rows = run.index
    _ensure_one_kind(rows)
    try:
        with _converting:
            started = time.perf_counter()
            if rows["codec"][0] == Codec.NONE:
                located, decompressed_bytes = LocatedRecords(run), 0
            else:
                located, decompressed_bytes = _in_wrapper(run, max_decompressed_bytes)
            builder = RecordBatchBuilder(codec=Codec(int(rows["codec"][0])))
            builder.fill_located(located, 0, len(located))
            stats.records_converted += len(located)
            stats.temporary_memory_bytes += RECORD_BATCH_OVERHEAD + builder.size_in_bytes + decompressed_bytes
            batch = builder.build()
            stats.seconds += time.perf_counter() - started
    except UnsupportedCompressionTypeError as error:
        raise RefusedRecordsError(errors.UnsupportedCompressionTypeError, str(error)) from None
    except (CorruptRecordError, UnsupportedVersionError) as error:
        raise RefusedRecordsError(errors.CorruptRecordError, str(error)) from None
    except (KafkaFormatError, ValueError, OverflowError) as error:
        raise RefusedRecordsError(errors.InvalidRecordError, str(error)) from None
    return scan(bytearray(batch))[0]


def _timed(run: BatchRun, timestamp: int) -> BatchRun:
    """Give all records of a batch without timestamps the same one. Their deltas are 0 already."""
    batch = run.buffer
    assert isinstance(batch, bytearray)
    header = run.index.copy()
    header["base_timestamp"] = header["max_timestamp"] = timestamp
    seal_batch(batch, header)
    return scan(batch)[0]


def _ensure_one_kind(rows: NDArray[np.void]) -> None:
    """Raise RefusedRecordsError for mixed formats, and for a wrapper beside other messages, as LogValidator does."""
    magics = np.unique(rows["magic"])
    if len(magics) > 1:
        message = "magic: expected messages of one format, found those of v0 and v1"
        raise RefusedRecordsError(errors.InvalidRecordError, message)
    if len(rows) > 1 and rows["codec"].any():
        message = f"expected one compressed message and no other, found {len(rows)} messages"
        raise RefusedRecordsError(errors.InvalidRecordError, message)


def _in_wrapper(run: BatchRun, max_decompressed_bytes: int) -> tuple[LocatedRecords, int]:
    """Return the messages in a run that is one wrapper, and the bytes it decompresses to.

    Raises RefusedRecordsError or KafkaFormatError.
    """
    row = run.index[0]
    magic = int(row["magic"])
    payload = codecs.decompress(int(row["codec"]), run.payload(0), limit=max_decompressed_bytes, magic=magic)
    located = LocatedRecords(run, 0, 1, [payload], verify=True, strict=True)
    others = scan(payload)[0].index["magic"] != magic
    if others.any():
        message = (
            f"magic of message {int(others.argmax())} in the wrapper: expected {magic} as the wrapper's, "
            f"found {1 - magic}"
        )
        raise RefusedRecordsError(errors.InvalidRecordError, message)
    return located, len(payload)
