"""Mirror records instead of batches (`--deep`): decode them, call a handler, and encode them again.

In a folder each batch keeps its offsets and its producer fields, and gets the requested codec. For a cluster, records
become columns, from which the producer builds batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from _kafkafmt.batches.scan import BatchRun, scan
from kafkafmt.build.split import builder_like
from kafkafmt.columns.read import BinaryColumn, HeadersColumn
from kafkafmt.convert.chunks import ConvertedChunks
from kafkafmt.convert.options import ConversionOptions
from kafkafmt.mirror.handlers import Handler, NewRecord, handled_record
from kafkafmt.mirror.protocols import adjacent_batches
from kafkafmt.records.base import MemoryRecords
from kafkafmt.records.batch import RecordBatch

if TYPE_CHECKING:
    from kafkafmt.mirror.loop import Transform
    from kafkafmt.types import Codec, TopicPartition


def contiguous_records(run: BatchRun, max_decompressed_bytes: int) -> Iterator[MemoryRecords]:
    """Yield the batches of a run as record sets, one for each range of adjacent batches."""
    for batches in adjacent_batches(run):
        yield MemoryRecords(batches, max_decompressed_bytes=max_decompressed_bytes)


def deep_transform(codec: Codec | None, handler: Handler | None, max_decompressed_bytes: int) -> Transform:
    """Return the transform that encodes a run's batches again, for a folder. Its results share one memory.

    Each result is valid until the next one is requested. codec: None to keep each batch's codec.
    """

    def transform(topic_partition: TopicPartition, run: BatchRun) -> Iterator[BatchRun]:
        if handler is not None:
            for number in range(len(run)):
                batch = RecordBatch(run, number, max_decompressed_bytes)
                yield from _rebuilt(batch, codec, handler, topic_partition)
            return
        assert codec is not None
        options = ConversionOptions(None, codec=codec, max_decompressed_bytes=max_decompressed_bytes)
        for records in contiguous_records(run, max_decompressed_bytes):
            for chunk in ConvertedChunks(records, options, reuse_memory=True):
                yield scan(chunk)[0]

    return transform


def _rebuilt(
    batch: RecordBatch, codec: Codec | None, handler: Handler, topic_partition: TopicPartition
) -> Iterator[BatchRun]:
    """Yield a v2 batch of the records that the handler returns; nothing if it drops them all."""
    if batch.is_control:
        yield scan(batch.buffer)[0]
        return
    builder = builder_like(
        batch,
        magic=2,
        codec=batch.codec if codec is None else codec,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        base_sequence=batch.base_sequence,
    )
    is_empty = True
    for record in batch:
        made = handled_record(handler, topic_partition, record)
        if made is not None:
            is_empty = False
            builder.append_with_offset(record.offset, made.timestamp, made.key, made.value, made.headers)
    if not is_empty:
        yield scan(builder.build())[0]


def columns_of(records: Sequence[NewRecord]) -> tuple[Any, BinaryColumn, BinaryColumn, HeadersColumn]:
    """Return timestamps, keys, values and headers as columns for `Producer.send_columns`."""
    headers = [record.headers for record in records]
    flat = [header for some in headers for header in some]
    return (
        np.array([record.timestamp for record in records], np.int64),
        _binary(record.key for record in records),
        _binary(record.value for record in records),
        HeadersColumn(
            np.concatenate(([0], np.cumsum([len(some) for some in headers], dtype=np.int64))),
            _binary(key.encode("utf-8", "surrogateescape") for key, _ in flat),
            _binary(value for _, value in flat),
        ),
    )


def _binary(values: Iterable[bytes | None]) -> BinaryColumn:
    cells = list(values)
    offsets = np.zeros(len(cells) + 1, np.int64)
    np.cumsum([0 if cell is None else len(cell) for cell in cells], out=offsets[1:])
    data = np.frombuffer(b"".join(cell for cell in cells if cell), np.uint8)
    return BinaryColumn(offsets, data, np.array([cell is not None for cell in cells], np.bool_))
