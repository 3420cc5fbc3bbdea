from enum import IntFlag

__pyx_capi__: dict[str, object]

class Status(IntFlag):
    OK = 0
    BATCH_TOO_SMALL = 1
    UNKNOWN_MAGIC = 2
    CRC_MISMATCH = 3
    BATCH_ENDS_EARLY = 4
    ENDS_EARLY = 5
    VARINT_TOO_LONG = 6
    RECORD_LENGTH = 7
    RECORD_HAS_MORE = 8
    KEY_SIZE = 9
    VALUE_SIZE = 10
    HEADER_COUNT = 11
    HEADER_KEY_SIZE = 12
    HEADER_VALUE_SIZE = 13
    RECORDS_COUNT = 14
    BYTES_LEFT_OVER = 15
    MESSAGE_SIZE = 16
    INNER_MAGIC = 17
    INNER_COMPRESSED = 18
    WRAPPER_VALUE_NULL = 19
    WRAPPER_EMPTY = 20
    WRAPPER_OFFSET = 21
    OFFSET_NEGATIVE = 22

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
class RecordTooLargeError(KafkaFormatError): ...
class DecompressionLimitError(KafkaFormatError): ...
