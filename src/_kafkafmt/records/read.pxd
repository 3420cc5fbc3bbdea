# Reads one record, for the kernels that locate records and those that convert while they read.

from libc.stdint cimport int32_t, int64_t, uint8_t

from ..wire.bytes cimport (
    Cursor, bytes_left, get_int32, get_int64, latch, likely, read_bytes, read_int8, unlikely,
    wrapping_add,
)
from ..wire.layout cimport *
from ..wire.rows cimport RecordRow
from ..wire.status cimport Failure, Status, fail
from ..wire.varint cimport read_plain_varint, read_varint, read_varlong


cdef enum:
    PLAIN_VARINT_SIZE = 3
    # The most bytes before the key of a plain record, including attributes and key size.
    PLAIN_RECORD_MARGIN = 4 * PLAIN_VARINT_SIZE + 1


cdef inline int skip_headers(Cursor* cursor, int32_t count, int64_t* expected, int64_t* found) noexcept nogil:
    """Move the cursor past `count` headers, and check every size."""
    cdef int32_t _, size
    for _ in range(count):
        size = read_varint(cursor)
        if unlikely(size < 0 or size > bytes_left(cursor)):
            expected[0] = bytes_left(cursor)
            found[0] = size
            latch(cursor, Status.HEADER_KEY_SIZE)
        if unlikely(cursor.status != Status.OK):
            return cursor.status
        cursor.pos += size
        size = read_varint(cursor)
        if unlikely(size < -1 or size > bytes_left(cursor)):
            expected[0] = bytes_left(cursor)
            found[0] = size
            latch(cursor, Status.HEADER_VALUE_SIZE)
        if unlikely(cursor.status != Status.OK):
            return cursor.status
        if size > 0:
            cursor.pos += size
    return Status.OK


cdef inline bint read_plain_record(
    Cursor* cursor, int64_t base_offset, int64_t base_timestamp, RecordRow* row
) noexcept nogil:
    """Read a plain v2 record, as most are: without headers, without varints of more than three bytes.

    Checks only that reads stay within the cursor, and that the fields end where the record ends. Returns False, and
    leaves the cursor where it was, for every other record, also for damaged ones: `read_any_record` reads those.

    The position of the next record depends on the length field alone, so the processor need not wait for the sizes of
    key and value.
    """
    cdef const uint8_t* pos = cursor.pos
    cdef const uint8_t* end = cursor.end
    cdef const uint8_t* next
    cdef int32_t length, timestamp_delta, offset_delta
    if end - pos < PLAIN_RECORD_MARGIN:
        return False
    pos = read_plain_varint(pos, &length)
    if unlikely(pos == NULL or length < 0 or length > end - pos):
        return False
    next = pos + length
    pos = read_plain_varint(pos + 1, &timestamp_delta)
    if unlikely(pos == NULL):
        return False
    pos = read_plain_varint(pos, &offset_delta)
    if unlikely(pos == NULL):
        return False
    pos = read_plain_varint(pos, &row.key_size)
    if unlikely(pos == NULL):
        return False
    row.key = NULL
    if row.key_size >= 0:
        if unlikely(row.key_size > end - pos - PLAIN_VARINT_SIZE):
            return False
        row.key = pos
        pos += row.key_size
    elif unlikely(row.key_size != -1):
        return False
    if unlikely(end - pos < PLAIN_VARINT_SIZE):
        return False
    pos = read_plain_varint(pos, &row.value_size)
    if unlikely(pos == NULL):
        return False
    row.value = NULL
    if row.value_size >= 0:
        if unlikely(row.value_size >= end - pos):
            return False
        row.value = pos
        pos += row.value_size
    elif unlikely(row.value_size != -1 or pos == end):
        return False
    # The header count is 0, and the record ends after it.
    if unlikely(pos[0] != 0 or pos + 1 != next):
        return False
    row.timestamp = wrapping_add(base_timestamp, timestamp_delta)
    row.offset = wrapping_add(base_offset, offset_delta)
    row.header_count = 0
    row.headers = next
    row.headers_size = 0
    row.size = <int32_t>(next - cursor.pos)
    cursor.pos = next
    return True


cdef inline int read_record(
    Cursor* cursor, int64_t base_offset, int64_t base_timestamp, RecordRow* row, Failure* failure
) noexcept nogil:
    """Read one v2 record. Its `timestamp` is base + delta, whatever the batch's timestamp type. Returns a status."""
    if likely(read_plain_record(cursor, base_offset, base_timestamp, row)):
        return Status.OK
    return read_any_record(cursor, base_offset, base_timestamp, row, failure)


cdef inline int read_any_record(
    Cursor* cursor, int64_t base_offset, int64_t base_timestamp, RecordRow* row, Failure* failure
) noexcept nogil:
    """Read any v2 record, and check each length in it. Returns a status, and fills `failure` unless it is OK."""
    cdef const uint8_t* start = cursor.pos
    cdef Cursor body
    cdef int32_t length, size
    cdef int64_t expected = 0, found = 0
    length = read_varint(cursor)
    if unlikely(cursor.status != Status.OK):
        fail(failure, cursor.status, 0, 0, bytes_left(cursor))
        return cursor.status
    if unlikely(length < 0 or length > bytes_left(cursor)):
        fail(failure, Status.RECORD_LENGTH, 0, bytes_left(cursor), length)
        return Status.RECORD_LENGTH
    body.pos = cursor.pos
    body.end = cursor.pos + length
    body.status = Status.OK
    read_int8(&body)  # attributes, unused
    row.timestamp = wrapping_add(base_timestamp, read_varlong(&body))
    row.offset = wrapping_add(base_offset, read_varint(&body))
    size = read_varint(&body)
    found = size
    row.key_size = size
    row.key = read_bytes(&body, size, Status.KEY_SIZE)
    if likely(body.status == Status.OK):
        size = read_varint(&body)
        found = size
        row.value_size = size
        row.value = read_bytes(&body, size, Status.VALUE_SIZE)
    expected = bytes_left(&body)
    if likely(body.status == Status.OK):
        size = read_varint(&body)
        row.header_count = size
        row.headers = body.pos
        if unlikely(size != 0 and body.status == Status.OK):
            if size < 0 or size > bytes_left(&body) // MIN_HEADER_SIZE:
                expected = bytes_left(&body) // MIN_HEADER_SIZE
                found = size
                latch(&body, Status.HEADER_COUNT)
            else:
                skip_headers(&body, size, &expected, &found)
        row.headers_size = <int32_t>(body.pos - row.headers)
    if unlikely(body.status == Status.OK and body.pos != body.end):
        expected = length
        found = body.pos - cursor.pos
        latch(&body, Status.RECORD_HAS_MORE)
    if unlikely(body.status != Status.OK):
        if body.status == Status.ENDS_EARLY:
            found = bytes_left(&body)
        cursor.pos = body.pos
        fail(failure, body.status, 0, expected, found)
        return body.status
    cursor.pos = body.end
    row.size = <int32_t>(body.end - start)
    return Status.OK


cdef inline int read_message(
    const uint8_t* at, int64_t size, int magic, RecordRow* row, Failure* failure
) noexcept nogil:
    """Read one v0 or v1 message of `size` bytes, including the log overhead. Returns a status.

    The caller has checked that `size` is at least the overhead of a message.
    """
    cdef int64_t pos = MESSAGE_KEY_OFFSET_V1 if magic == 1 else MESSAGE_KEY_OFFSET_V0
    cdef int64_t left = size - pos - KEY_SIZE_LENGTH - VALUE_SIZE_LENGTH
    row.offset = get_int64(at + BASE_OFFSET_OFFSET)
    row.timestamp = get_int64(at + MESSAGE_TIMESTAMP_OFFSET) if magic == 1 else NO_TIMESTAMP
    row.headers = NULL
    row.headers_size = 0
    row.header_count = 0
    row.size = <int32_t>size
    row.key_size = get_int32(at + pos)
    if unlikely(row.key_size < -1 or row.key_size > left):
        fail(failure, Status.KEY_SIZE, pos, left, row.key_size)
        return Status.KEY_SIZE
    pos += KEY_SIZE_LENGTH
    row.key = NULL
    if row.key_size >= 0:
        row.key = at + pos
        pos += row.key_size
        left -= row.key_size
    row.value_size = get_int32(at + pos)
    if unlikely(row.value_size < -1 or row.value_size > left):
        fail(failure, Status.VALUE_SIZE, pos, left, row.value_size)
        return Status.VALUE_SIZE
    row.value = NULL
    if row.value_size >= 0:
        row.value = at + pos + VALUE_SIZE_LENGTH
        left -= row.value_size
    if unlikely(left != 0):
        fail(failure, Status.MESSAGE_SIZE, 0, size - left, size)
        return Status.MESSAGE_SIZE
    return Status.OK


cdef struct Header:
    const uint8_t* key
    int32_t key_size
    const uint8_t* value
    int32_t value_size


cdef inline bint read_header(Cursor* cursor, Header* header) noexcept nogil:
    """Read the next header of a located record. Returns False if the record's memory was changed since."""
    header.key_size = read_varint(cursor)
    header.key = read_bytes(cursor, header.key_size, Status.HEADER_KEY_SIZE)
    header.value_size = read_varint(cursor)
    header.value = read_bytes(cursor, header.value_size, Status.HEADER_VALUE_SIZE)
    return cursor.status == Status.OK and header.key != NULL
