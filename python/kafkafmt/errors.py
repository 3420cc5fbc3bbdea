"""The errors that data causes. Wrong arguments raise `ValueError`, `TypeError` or `OverflowError`.

The kernels raise these errors and define them. This module exports them for users.
"""

from _kafkafmt.wire.status import (
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
