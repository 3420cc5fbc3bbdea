from collections.abc import Sequence
from enum import IntFlag
from typing import Any

from _kafkafmt.types import TooLargeRecord

__pyx_capi__: dict[str, object]

class Status(IntFlag):
    OK = 0
    BATCH_TOO_SMALL = 1
    UNKNOWN_MAGIC = 2
    CRC_MISMATCH = 3
    ENDS_EARLY = 4
    VARINT_TOO_LONG = 5
    RECORD_LENGTH = 6
    RECORD_HAS_MORE = 7
    KEY_SIZE = 8
    VALUE_SIZE = 9
    HEADER_COUNT = 10
    HEADER_KEY_SIZE = 11
    HEADER_VALUE_SIZE = 12
    RECORDS_COUNT = 13
    BYTES_LEFT_OVER = 14
    MESSAGE_SIZE = 15
    INNER_CRC = 16
    INNER_PARTIAL = 17
    INNER_MAGIC = 18
    INNER_COMPRESSED = 19
    WRAPPER_VALUE_NULL = 20
    WRAPPER_EMPTY = 21
    WRAPPER_OFFSET = 22
    OFFSET_NEGATIVE = 23
    FIELD_ENDS_EARLY = 24
    FIELD_LENGTH = 25
    FIELD_COUNT = 26
    FIELD_BYTES_LEFT = 27
    FIELD_NOT_UTF8 = 28
    FRAME_VERSION = 29

class KafkaFormatError(Exception):
    message: str
    position: int | None
    base_offset: int | None
    last_offset: int | None
    next_position: int | None
    path: str | None
    def __init__(
        self,
        message: str,
        *,
        position: int | None = None,
        base_offset: int | None = None,
        last_offset: int | None = None,
        next_position: int | None = None,
        path: str | None = None,
    ) -> None: ...

class CorruptRecordError(KafkaFormatError): ...
class InvalidRecordError(KafkaFormatError): ...
class UnsupportedCompressionTypeError(KafkaFormatError): ...
class UnsupportedVersionError(KafkaFormatError): ...

class RecordTooLargeError(KafkaFormatError):
    records: Sequence[TooLargeRecord]
    parts: Sequence[Any]
    def __init__(
        self,
        message: str,
        *,
        records: Sequence[TooLargeRecord] = (),
        parts: Sequence[Any] = (),
        position: int | None = None,
        base_offset: int | None = None,
        last_offset: int | None = None,
        next_position: int | None = None,
        path: str | None = None,
    ) -> None: ...

class DecompressionLimitError(KafkaFormatError): ...
class MalformedResponseError(KafkaFormatError): ...
