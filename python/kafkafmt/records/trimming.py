"""Runs limited to a range of offsets, whose bounds may be within a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from _kafkafmt.records.encode import encode_records, seal_batch
from _kafkafmt.wire.layout import RECORD_BATCH_OVERHEAD
from kafkafmt import codecs
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.convert.engine import Converter
from kafkafmt.convert.options import ConversionOptions
from kafkafmt.errors import InvalidRecordError, KafkaFormatError
from kafkafmt.records.batch import RecordBatch, only_batch
from kafkafmt.records.decoding import ascending_offsets
from kafkafmt.records.runs import first_offset, first_offsets, slice_run, with_batch
from kafkafmt.types import Codec, TimestampType

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun


def base_offset_of(
    run: BatchRun, number: int = 0, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
) -> int:
    """Return the first offset of a batch. A v0/v1 wrapper is decompressed; if that fails, its last offset counts."""
    try:
        return RecordBatch(run, number, max_decompressed_bytes).base_offset
    except KafkaFormatError:
        return first_offset(run, number)


def rows_between(
    run: BatchRun,
    start_offset: int = 0,
    end_offset: int | None = None,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> tuple[int, int]:
    """Return the first and stop numbers of the batches with offsets from `start_offset` to `end_offset` (exclusive).

    A batch that contains a bound is included, because a broker returns such a batch whole. The header of a v0/v1
    wrapper has no base offset. So a wrapper that ends at `end_offset` or later is decompressed, unless the batch before
    it ends there. A wrapper that cannot be decompressed is included: its reader reports the error.
    """
    last_offsets = run.index["last_offset"]
    reaching = last_offsets >= start_offset
    first = int(reaching.argmax()) if reaching.any() else len(run)
    if end_offset is None:
        return first, len(run)
    beyond = first_offsets(run.index) >= end_offset
    stop = int(beyond.argmax()) if beyond.any() else len(run)
    if stop < len(run) and run.index["base_offset"][stop] < 0:
        follows = stop > 0 and last_offsets[stop - 1] >= end_offset - 1
        stop += not follows and _begins_before(RecordBatch(run, stop, max_decompressed_bytes), end_offset)
    return first, max(first, stop)


def _begins_before(batch: RecordBatch, offset: int) -> bool:
    try:
        return batch.base_offset < offset
    except KafkaFormatError:
        return True


def trimmed_run(
    run: BatchRun,
    number: int,
    first_offset: int,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> BatchRun:
    """Return a run of batch `number` alone, without the records below an offset. v0 and v1 are converted to v2.

    Raises as `RecordBatch.trim` does, with the position of the batch in the run.
    """
    try:
        batch = _in_v2(run, number, max_decompressed_bytes)
        if batch.last_offset < first_offset:  # that of the wrapper is damaged
            message = f"last offset: expected {first_offset} or more, found {batch.last_offset}"
            raise InvalidRecordError(message)
        trimmed = batch.trim(first_offset)
    except KafkaFormatError as error:
        raise with_batch(error, run, number) from None
    return slice_run(trimmed.run, trimmed.number, trimmed.number + 1)


def cut_run(
    run: BatchRun,
    number: int,
    end_offset: int,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> BatchRun | None:
    """Return a run of batch `number` alone, without the records from an offset on; None if no record remains.

    The batch is encoded again with the same codec. Its other fields stay. v0 and v1 are converted to v2. Raises
    KafkaFormatError for a damaged batch.
    """
    try:
        return _cut(_in_v2(run, number, max_decompressed_bytes), end_offset)
    except KafkaFormatError as error:
        raise with_batch(error, run, number) from None


def _cut(batch: RecordBatch, end_offset: int) -> BatchRun | None:
    run, number = batch.run, batch.number
    located = batch.locate(verify=True)
    offsets = ascending_offsets(located, run, number)
    if len(offsets) and offsets[0] < batch.base_offset:
        message = f"offset of the first record: expected {batch.base_offset} or more, found {offsets[0]}"
        raise InvalidRecordError(message)
    count = int(offsets.searchsorted(end_offset))
    if not count:
        return None
    header = run.index[number : number + 1].copy()
    row = header[0]
    row["count"], row["last_offset"] = count, offsets[count - 1]
    if row["timestamp_type"] != TimestampType.LOG_APPEND_TIME:
        row["max_timestamp"] = located.timestamps()[:count].max()
    encoded = encode_records(located, 0, count, int(row["base_offset"]), int(row["base_timestamp"]))
    if row["codec"] != Codec.NONE:
        payload = codecs.compress(int(row["codec"]), memoryview(encoded)[RECORD_BATCH_OVERHEAD:], magic=2)
        encoded = bytearray(RECORD_BATCH_OVERHEAD)
        encoded += payload
    seal_batch(encoded, header)
    return only_batch(encoded).run


def runs_before(run: BatchRun, end_offset: int) -> Iterator[BatchRun]:
    """Yield a run without the records from an offset on: whole batches, and then a batch that contains it, cut.

    Raises KafkaFormatError for a batch that contains the offset and cannot be read, after the batches before it.
    """
    stop = int((run.index["last_offset"] < end_offset).sum())
    if stop:
        yield slice_run(run, 0, stop)
    if stop and run.index["last_offset"][stop - 1] == end_offset - 1:
        return
    # A wrapper has -1 there. Only its records have its first offset.
    if stop < len(run) and run.index["base_offset"][stop] < end_offset:
        cut = cut_run(run, stop, end_offset)
        if cut is not None:
            yield cut


def _in_v2(run: BatchRun, number: int, max_decompressed_bytes: int) -> RecordBatch:
    batch = RecordBatch(run, number, max_decompressed_bytes)
    if batch.magic == 2:
        return batch
    converter = Converter(ConversionOptions(to_magic=2, max_decompressed_bytes=max_decompressed_bytes))
    converter.convert(run, number, number + 1)
    return only_batch(converter.output, max_decompressed_bytes=max_decompressed_bytes)
