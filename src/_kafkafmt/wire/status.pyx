"""The errors of the library, and the functions that raise them for a kernel's status.

Two families: the bytes are damaged (`CorruptRecordError`), or the bytes are intact and have a value that the format
does not allow (`InvalidRecordError`). A kernel that finds an invalid structure does not know which of them it is. The
CRC of the batch decides. It is checked here, because a failure need not be fast.
"""

from libc.stdint cimport int64_t, uint8_t

from ..crc.checksums cimport batch_crc
from .layout cimport *
from .rows cimport BatchRow


class KafkaFormatError(Exception):
    """The base class of all errors that data causes.

    Attributes, each None if it is not known:
        position: byte position of the batch in its source, a file or a buffer.
        base_offset, last_offset: the offsets in the header of the batch.
        next_position: byte position after the batch, by the size in its header; a reader may continue there.
        path: the file.
    """

    def __init__(
        self, message, *, position=None, base_offset=None, last_offset=None, next_position=None, path=None
    ):
        super().__init__(message)
        self.message = message
        self.position = position
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.next_position = next_position
        self.path = path

    def __str__(self):
        where = []
        if self.position is not None:
            where.append(f"position {self.position}")
        if self.base_offset is not None:
            where.append(f"offsets {self.base_offset} to {self.last_offset}")
        elif self.last_offset is not None:
            where.append(f"last offset {self.last_offset}")
        prefix = f"{self.path}: " if self.path is not None else ""
        return f"{prefix}{self.message}" + (f" (batch at {', '.join(where)})" if where else "")

    def __reduce__(self):
        return _rebuild, (type(self), self.message, self.__dict__.copy())


def _rebuild(cls, message, attributes):
    error = cls(message)
    error.__dict__.update(attributes)
    return error


class CorruptRecordError(KafkaFormatError):
    """The bytes are damaged: a CRC does not match, or a length or a compressed payload is invalid."""


class InvalidRecordError(KafkaFormatError):
    """The bytes are intact (the CRC matches), but have a value that the format does not allow."""


class UnsupportedCompressionTypeError(KafkaFormatError):
    """A codec that does not exist, or that the target format or consumer does not support."""


class UnsupportedVersionError(KafkaFormatError):
    """A message format that is not v0, v1 or v2."""


class RecordTooLargeError(KafkaFormatError):
    """A record alone in its batch is larger than the limit.

    Attributes, both empty unless a batch was split:
        records: a `TooLargeRecord` for each record that is too large.
        parts: the `RecordBatch` objects of the other records.
    """

    def __init__(self, message, *, records=(), parts=(), **where):
        super().__init__(message, **where)
        self.records = records
        self.parts = parts


class DecompressionLimitError(KafkaFormatError):
    """A batch decompresses to more than the limit allows."""


for _error in (KafkaFormatError, *KafkaFormatError.__subclasses__()):
    _error.__module__ = "kafkafmt.errors"  # users import them from there


class MalformedResponseError(KafkaFormatError):
    """A broker's response has a length or a count that is impossible, or does not end with its last field.

    position: byte position of the field in the response.
    """

    def __str__(self):
        return self.message


_MESSAGES = {
    Status.BATCH_TOO_SMALL: "batch size too small: expected at least {expected} bytes, found {found}",
    Status.UNKNOWN_MAGIC: "unknown magic: expected 0, 1 or 2, found {found}",
    Status.CRC_MISMATCH: "CRC mismatch: expected {expected:#010x} as stored, found {found:#010x} as computed",
    Status.ENDS_EARLY: "record ends early: expected more bytes, found {found} left",
    Status.VARINT_TOO_LONG: "varint too long: it does not end within 5 (int32) or 10 (int64) bytes or overflows",
    Status.RECORD_LENGTH: "record length: expected 0 to {expected}, found {found}",
    Status.RECORD_HAS_MORE: "record longer than its fields: expected them to take {expected} bytes, found {found}",
    Status.KEY_SIZE: "key size: expected -1 to {expected}, found {found}",
    Status.VALUE_SIZE: "value size: expected -1 to {expected}, found {found}",
    Status.HEADER_COUNT: "header count: expected 0 to {expected}, found {found}",
    Status.HEADER_KEY_SIZE: "header key size: expected 0 to {expected}, found {found}",
    Status.HEADER_VALUE_SIZE: "header value size: expected -1 to {expected}, found {found}",
    Status.RECORDS_COUNT: "records count: expected 0 to {expected} in these bytes, found {found}",
    Status.BYTES_LEFT_OVER: "bytes left after the last record: expected 0, found {found}",
    Status.MESSAGE_SIZE: "message size: expected {expected} bytes, found {found}",
    Status.INNER_CRC: (
        "CRC mismatch of an inner message: expected {expected:#010x} as stored, found {found:#010x} as computed"
    ),
    Status.INNER_PARTIAL: "message in a wrapper ends early: expected a whole message, found {found} bytes of one",
    Status.INNER_MAGIC: "magic of an inner message: expected 0 or 1, found {found}",
    Status.INNER_COMPRESSED: "inner message of a wrapper is itself compressed: expected codec 0, found {found}",
    Status.WRAPPER_VALUE_NULL: "wrapper message: expected a compressed message set, found a null value",
    Status.WRAPPER_EMPTY: "wrapper message: expected at least one inner message, found none",
    Status.WRAPPER_OFFSET: "wrapper offset: expected at least the last inner offset {expected}, found {found}",
    Status.OFFSET_NEGATIVE: "offset of a message in a wrapper: expected 0 or more, found {found}",
    Status.FIELD_ENDS_EARLY: "field ends early: expected {expected} bytes, found {found} left",
    Status.FIELD_LENGTH: "length of a field: expected 0 to {expected}, found {found}",
    Status.FIELD_COUNT: "count of elements: expected 0 to {expected} in these bytes, found {found}",
    Status.FIELD_BYTES_LEFT: "bytes left after the last field: expected 0, found {found}",
    Status.FIELD_NOT_UTF8: "string of {expected} bytes: expected UTF-8, found other bytes",
    Status.FRAME_VERSION: "frame version of a record: expected {expected}, found {found}",
}

_DAMAGED = frozenset((Status.BATCH_TOO_SMALL, Status.CRC_MISMATCH, Status.INNER_CRC))


cdef int raise_failure(
    const Failure* failure, const BatchRow* row, const uint8_t* batch, bint decompressed
) except -1:
    """Raise the error of a failure. row: the index row of its batch. batch: the bytes of that batch.

    decompressed: whether `failure.at` counts from the start of the decompressed records.
    """
    cdef int64_t size = row.size
    message = _MESSAGES[failure.status].format(expected=failure.expected, found=failure.found)
    if failure.at > 0:
        message += f", at byte {failure.at} of the {'decompressed records' if decompressed else 'batch'}"
    if failure.status == Status.UNKNOWN_MAGIC:
        error = UnsupportedVersionError if failure.found > 2 else CorruptRecordError
    elif failure.status in _DAMAGED or batch_crc(batch, row) != row.crc:
        error = CorruptRecordError
    else:
        error = InvalidRecordError
    sized = failure.status != Status.BATCH_TOO_SMALL
    offsets = sized and failure.status != Status.UNKNOWN_MAGIC
    raise error(
        message,
        position=row.position,
        base_offset=row.base_offset if offsets and row.base_offset >= 0 else None,
        last_offset=row.last_offset if offsets else None,
        next_position=row.position + size if sized else None,
    )


cdef str failure_text(const Failure* failure):
    """Return what is wrong with a field, and at which byte of the response or the message."""
    return f"{_MESSAGES[failure.status].format(expected=failure.expected, found=failure.found)}, at byte {failure.at}"


cdef int raise_malformed_response(const Failure* failure, str name) except -1:
    """Raise the error of a failure in a response. name: of the request that it answers."""
    raise MalformedResponseError(f"{name} response: {failure_text(failure)}", position=failure.at)
