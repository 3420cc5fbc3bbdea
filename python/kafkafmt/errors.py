"""The errors that data causes. Wrong arguments are `ValueError` and `TypeError`, as everywhere.

They are defined beside the kernels, which raise them; this is where users find them.
"""

from _kafkafmt.status import (
    CorruptRecordError,
    DecompressionLimitError,
    InvalidRecordError,
    KafkaFormatError,
    RecordTooLargeError,
    UnsupportedCompressionTypeError,
    UnsupportedVersionError,
)

__all__ = [
    "CorruptRecordError",
    "DecompressionLimitError",
    "InvalidRecordError",
    "KafkaFormatError",
    "RecordTooLargeError",
    "UnsupportedCompressionTypeError",
    "UnsupportedVersionError",
]
