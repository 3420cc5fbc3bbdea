"""Kafka's record format at native speed: read, check, convert, trim, split and build record batches.

>>> builder = RecordBatchBuilder(codec=Codec.ZSTD)
>>> builder.append(1_700_000_000_000, b"user-1", b'{"clicks": 3}')
>>> records = MemoryRecords(builder.build())
>>> [(record.offset, record.key, record.value) for record in records.records()]
[(0, b'user-1', b'{"clicks": 3}')]
>>> list(records.down_convert(1, zstd_fallback=Codec.LZ4).records.batches())[0].magic
1
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from _kafkafmt.batches.scan import INDEX_DTYPE, BatchRun
from _kafkafmt.crc.checksums import crc32c
from _kafkafmt.records.decode import Record
from kafkafmt import accumulator, codecs, log
from kafkafmt.build.builder import RecordBatchBuilder, build_batches
from kafkafmt.build.estimator import CompressionRatioEstimator, RecentRatioEstimator
from kafkafmt.build.forwarding import (
    BatchForwarder,
    ForwardedRun,
    ProduceRefusal,
    RefusalReason,
    check_produce,
)
from kafkafmt.build.split import split_batch, split_to_fit
from kafkafmt.client.accumulator import (
    AccumulatorOptions,
    BufferExhaustedError,
    RecordAccumulator,
)
from kafkafmt.columns.read import BinaryColumn, HeadersColumn
from kafkafmt.convert.chunks import ChunkMemory, ConvertedChunks
from kafkafmt.convert.fetch_response import FetchResponse, FetchSend
from kafkafmt.convert.lazy import LazyDownConvertRecords, LazyDownConvertSend
from kafkafmt.convert.options import ConversionOptions, ConversionStats
from kafkafmt.errors import (
    CorruptRecordError,
    DecompressionLimitError,
    InvalidRecordError,
    KafkaFormatError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedVersionError,
)
from kafkafmt.memory import MemoryBudget, MemoryBudgetError, MemoryPlan, MemoryPlanError
from kafkafmt.records.base import ConvertedRecords, MemoryRecords, Records
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.file import FileRecords
from kafkafmt.records.remote import RemoteRecords
from kafkafmt.types import Codec, ControlRecord, ControlRecordType, TimestampType, TopicPartition

if TYPE_CHECKING:
    from kafkafmt.scanning.errors import ScanError
    from kafkafmt.scanning.scan import Scan, scan

__version__ = "0.2.0.dev0"

# The modules of names that are imported at their first use.
_LAZY = {"Scan": "scanning.scan", "ScanError": "scanning.errors", "scan": "scanning.scan"}

__all__ = [
    "INDEX_DTYPE",
    "AccumulatorOptions",
    "BatchForwarder",
    "BatchRun",
    "BinaryColumn",
    "BufferExhaustedError",
    "ChunkMemory",
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
    "ForwardedRun",
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
    "Scan",
    "ScanError",
    "TimestampType",
    "TopicPartition",
    "UnsupportedCompressionTypeError",
    "UnsupportedVersionError",
    "accumulator",
    "build_batches",
    "check_produce",
    "codecs",
    "crc32c",
    "log",
    "scan",
    "split_batch",
    "split_to_fit",
]


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, "decode"})


def __getattr__(name: str) -> Any:
    """Import a name at its first use. So `import kafkafmt` needs no PyArrow.

    Without PyArrow `decode` is no attribute: AttributeError says what to install. `import kafkafmt.decode` raises
    ModuleNotFoundError.
    """
    if name in _LAZY:
        return getattr(import_module(f"kafkafmt.{_LAZY[name]}"), name)
    if name == "decode":
        try:
            return import_module("kafkafmt.decode")
        except ModuleNotFoundError as error:
            raise AttributeError(str(error), name=name, obj=sys.modules[__name__]) from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
