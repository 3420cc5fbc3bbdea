"""Kafka's record format at native speed: read, check, convert, trim, split and build record batches.

>>> builder = RecordBatchBuilder(codec=Codec.ZSTD)
>>> builder.append(1_700_000_000_000, b"user-1", b'{"clicks": 3}')
>>> records = MemoryRecords(builder.build())
>>> [(record.offset, record.key, record.value) for record in records.records()]
[(0, b'user-1', b'{"clicks": 3}')]
>>> list(records.down_convert(1, zstd_fallback=Codec.LZ4).records.batches())[0].magic
1
"""

from _kafkafmt.crc import crc32c
from _kafkafmt.decode import Record
from _kafkafmt.scan import INDEX_DTYPE
from kafkafmt import codecs, log
from kafkafmt.accumulator import (
    AccumulatorOptions,
    BufferExhaustedError,
    RecordAccumulator,
)
from kafkafmt.batch import RecordBatch
from kafkafmt.builder import RecordBatchBuilder, build_batches
from kafkafmt.columns import BinaryColumn, HeadersColumn
from kafkafmt.conversion import ConversionOptions, ConversionStats, ConvertedRecords
from kafkafmt.converted_chunks import ConvertedChunks
from kafkafmt.down_conversion import LazyDownConvertRecords, LazyDownConvertSend
from kafkafmt.errors import (
    CorruptRecordError,
    DecompressionLimitError,
    InvalidRecordError,
    KafkaFormatError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedVersionError,
)
from kafkafmt.estimator import CompressionRatioEstimator, RecentRatioEstimator
from kafkafmt.fetch_response import FetchResponse, FetchSend
from kafkafmt.forwarding import BatchForwarder, ProduceRefusal, RefusalReason, check_produce
from kafkafmt.memory import MemoryBudget, MemoryBudgetError, MemoryPlan, MemoryPlanError
from kafkafmt.records import FileRecords, MemoryRecords, Records
from kafkafmt.remote import RemoteRecords
from kafkafmt.split import split_batch, split_to_fit
from kafkafmt.types import Codec, ControlRecord, ControlRecordType, TimestampType, TopicPartition

__version__ = "0.1.0"

__all__ = [
    "INDEX_DTYPE",
    "AccumulatorOptions",
    "BatchForwarder",
    "BinaryColumn",
    "BufferExhaustedError",
    "Codec",
    "CompressionRatioEstimator",
    "ControlRecord",
    "ControlRecordType",
    "ConversionOptions",
    "ConversionStats",
    "ConvertedChunks",
    "ConvertedRecords",
    "CorruptRecordError",
    "DecompressionLimitError",
    "FetchResponse",
    "FetchSend",
    "FileRecords",
    "HeadersColumn",
    "InvalidRecordError",
    "KafkaFormatError",
    "LazyDownConvertRecords",
    "LazyDownConvertSend",
    "MemoryBudget",
    "MemoryBudgetError",
    "MemoryPlan",
    "MemoryPlanError",
    "MemoryRecords",
    "ProduceRefusal",
    "RecentRatioEstimator",
    "Record",
    "RecordAccumulator",
    "RecordBatch",
    "RecordBatchBuilder",
    "RecordTooLargeError",
    "Records",
    "RefusalReason",
    "RemoteRecords",
    "TimestampType",
    "TopicPartition",
    "UnsupportedCompressionTypeError",
    "UnsupportedVersionError",
    "build_batches",
    "check_produce",
    "codecs",
    "crc32c",
    "log",
    "split_batch",
    "split_to_fit",
]
