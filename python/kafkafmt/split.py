"""Splitting a batch that turned out too large (KIP-126)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from _kafkafmt.layout import LOG_OVERHEAD, MESSAGE_OVERHEAD_V0, MESSAGE_OVERHEAD_V1, RECORD_BATCH_OVERHEAD
from kafkafmt.batch import RecordBatch, only_batch
from kafkafmt.builder import RecordBatchBuilder
from kafkafmt.decoding import describe
from kafkafmt.errors import InvalidRecordError, RecordTooLargeError
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from _kafkafmt.decode import Record

# What surrounds a record's sizes, key, value and headers at the most, as Kafka's DefaultRecord reckons.
_MAX_RECORD_OVERHEAD = 21


def split_batch(
    batch: RecordBatch, split_batch_size: int, *, estimated_ratio: float = 1.0
) -> list[RecordBatch]:
    """Split a batch where Kafka's producer splits it (KIP-126, ProducerBatch.split).

    A part ends where the estimated size of it and one more record would pass `split_batch_size` bytes; so a
    part may still be larger than that, and a first record always fits. `estimated_ratio` is the compression
    ratio to reckon with: 1.0 right after a split. Magic, codec, headers, timestamps and producer state are
    kept; the sequence numbers of the parts follow one another and wrap at 2^31. Offsets begin anew at 0 in
    each part, since a broker assigns them.

    Raises RecordTooLargeError for a batch of one record, which cannot be split.
    """
    records = list(batch)
    if len(records) < 2:
        raise RecordTooLargeError(
            f"batch to split: expected two records or more, found {len(records)} in {batch.size_in_bytes} bytes",
            position=batch.position,
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
        )
    parts: list[RecordBatch] = []
    builder: RecordBatchBuilder | None = None
    done = 0
    for record in records:
        fields = (record.timestamp, record.key, record.value, record.headers)
        if builder is None or not builder.has_room_for(*fields):
            if builder is not None:
                parts.append(only_batch(builder.build()))
                done += len(builder)
            limit = max(_upper_bound(batch, record), split_batch_size)
            builder = _builder_like(batch, done, limit, estimated_ratio)
        try:
            builder.append(*fields)
        except ValueError as error:  # what the batch says cannot be written again
            raise describe(InvalidRecordError(str(error)), batch.run, batch.number) from None
    assert builder is not None
    parts.append(only_batch(builder.build()))
    return parts


def _builder_like(batch: RecordBatch, done: int, limit: int, estimated_ratio: float) -> RecordBatchBuilder:
    """A builder for the part that begins `done` records into the batch."""
    sequence = batch.base_sequence
    return RecordBatchBuilder(
        batch.magic,
        batch.codec,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=(sequence + done) & 0x7FFFFFFF if sequence >= 0 else sequence,
        is_transactional=batch.is_transactional,
        batch_size=limit,
        estimated_ratio=estimated_ratio,
    )


def _upper_bound(batch: RecordBatch, record: Record) -> int:
    """What a batch of that one record takes at the most (AbstractRecords.estimateSizeInBytesUpperBound)."""
    key, value = record.key, record.value
    size = len(key or b"") + len(value or b"")
    if batch.magic < 2:
        overhead = MESSAGE_OVERHEAD_V1 if batch.magic == 1 else MESSAGE_OVERHEAD_V0
        wrapper = 0 if batch.codec == Codec.NONE else overhead - LOG_OVERHEAD
        return size + overhead + wrapper
    for field in (key, value):
        size += _size_of_varint(-1 if field is None else len(field))
    size += _size_of_varint(len(record.headers))
    for name, content in record.headers:
        encoded = len(name.encode("utf-8", "surrogateescape"))
        size += _size_of_varint(encoded) + encoded
        size += _size_of_varint(-1) if content is None else _size_of_varint(len(content)) + len(content)
    return RECORD_BATCH_OVERHEAD + _MAX_RECORD_OVERHEAD + size


def _size_of_varint(value: int) -> int:
    zigzag = value * 2 if value >= 0 else -value * 2 - 1
    return max(zigzag.bit_length() + 6, 7) // 7


class Part(NamedTuple):
    """A part of a batch: its records begin at `first` of the batch; it fits, or is one record that does not."""

    first: int
    batch: RecordBatch
    fits: bool


def measured_parts(batch: RecordBatch, max_size: int, *, level: int | None = None) -> list[Part]:
    """For now by halves, until the measured way takes its place."""
    done: list[Part] = []
    todo = [batch]
    first = 0
    while todo:
        part = todo.pop()
        if part.size_in_bytes <= max_size or part.count == 1:
            done.append(Part(first, part, part.size_in_bytes <= max_size))
            first += part.count
        else:
            todo.extend(reversed(split_batch(part, part.size_in_bytes // 2)))
    return done
