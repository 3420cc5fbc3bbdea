# The status codes of the kernels. A kernel returns a status and fills in a Failure. Only `raise_failure` in status.pyx
# turns these into a Python exception.

from libc.stdint cimport int64_t, uint8_t

from .rows cimport BatchRow

cpdef enum Status:
    OK = 0
    # The batch as a whole
    BATCH_TOO_SMALL
    UNKNOWN_MAGIC
    CRC_MISMATCH
    # A record or an inner message
    ENDS_EARLY
    VARINT_TOO_LONG
    RECORD_LENGTH
    RECORD_HAS_MORE
    KEY_SIZE
    VALUE_SIZE
    HEADER_COUNT
    HEADER_KEY_SIZE
    HEADER_VALUE_SIZE
    RECORDS_COUNT
    BYTES_LEFT_OVER
    MESSAGE_SIZE
    INNER_CRC
    INNER_PARTIAL
    INNER_MAGIC
    INNER_COMPRESSED
    WRAPPER_VALUE_NULL
    WRAPPER_EMPTY
    WRAPPER_OFFSET
    OFFSET_NEGATIVE
    # A field of a response, or of a message in a record
    FIELD_ENDS_EARLY
    FIELD_LENGTH
    FIELD_COUNT
    FIELD_BYTES_LEFT
    FIELD_NOT_UTF8
    FRAME_VERSION

cdef struct Failure:
    int status
    Py_ssize_t batch     # number of the batch among those that the kernel was given
    int64_t at           # bytes from the start of that batch, its decompressed records, a response or a message
    int64_t expected
    int64_t found

cdef inline void fail(Failure* failure, int status, int64_t at, int64_t expected, int64_t found) noexcept nogil:
    failure.status = status
    failure.at = at
    failure.expected = expected
    failure.found = found

cdef int raise_failure(
    const Failure* failure, const BatchRow* row, const uint8_t* batch, bint decompressed
) except -1

cdef str failure_text(const Failure* failure)

cdef int raise_malformed_response(const Failure* failure, str name) except -1
