"""The checks of `fuzz.kernel_records`, whose module documents them."""

from libc.stdint cimport INT64_MIN, int8_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from checks cimport Broken, expect

from _kafkafmt.batches.batch_header cimport fill_row
from _kafkafmt.records.convert_records cimport Messages, Source, convert_records, converted_records_size
from _kafkafmt.records.encode cimport message_size, record_body_size, write_message, write_record
from _kafkafmt.records.read cimport Header, read_any_record, read_header, read_message, read_record
from _kafkafmt.wire.bytes cimport COPY_SLACK, Cursor, bytes_left, get_int32, wrapping_add, wrapping_sub
from _kafkafmt.wire.layout cimport *
from _kafkafmt.wire.rows cimport BatchRow, RecordRow
from _kafkafmt.wire.status cimport Failure, Status
from _kafkafmt.wire.varint cimport size_of_varlong

cdef enum:
    OPTIONS = 2
    # Of the first byte of options; its lowest bit is the format to convert to.
    COUNTS_RECORDS = 2
    IS_RELATIVE = 4


def check(bytes given not None):
    cdef const uint8_t* data = given
    cdef Py_ssize_t size = len(given) - OPTIONS
    cdef uint8_t* batch
    cdef int flags
    cdef int64_t first_offset
    cdef Broken broken = NULL
    if size < MESSAGE_OVERHEAD_V0:
        return
    flags = data[0]
    first_offset = <int8_t>data[1]
    with nogil:
        batch = <uint8_t*>malloc(size)  # so that ASan knows its end
        memcpy(batch, &data[OPTIONS], size)
        if batch[MAGIC_OFFSET] < 2:
            if batch[MAGIC_OFFSET] == 0 or size >= MESSAGE_OVERHEAD_V1:
                broken = check_message(batch, size)
        elif batch[MAGIC_OFFSET] == 2 and size >= RECORD_BATCH_OVERHEAD:
            broken = check_batch(batch, size, flags, first_offset)
        free(batch)
    assert broken == NULL, broken.decode()


cdef Broken check_message(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef int magic = data[MAGIC_OFFSET]
    cdef RecordRow row
    cdef Failure failure
    cdef uint8_t* written
    cdef Py_ssize_t start = MESSAGE_ATTRIBUTES_OFFSET
    cdef Broken broken = NULL
    if read_message(data, size, magic, &row, &failure) != Status.OK:
        return expect(0 <= failure.at <= size, b"the position of a failure")
    if message_size(&row, magic) != size:
        return b"the size of a message"
    written = <uint8_t*>malloc(size)
    if write_message(written, &row, row.offset, magic, data[start], row.timestamp) != written + size:
        broken = b"the end of a written message"
    elif memcmp(written + start, data + start, size - start) != 0 or memcmp(written, data, LENGTH_OFFSET) != 0:
        broken = b"the bytes of a written message"
    elif get_int32(written + LENGTH_OFFSET) != size - LOG_OVERHEAD or written[MAGIC_OFFSET] != magic:
        broken = b"the header of a written message"
    free(written)
    return broken


cdef Broken check_batch(const uint8_t* data, Py_ssize_t size, int flags, int64_t first_offset) noexcept nogil:
    cdef BatchRow batch
    cdef RecordRow* rows
    cdef const uint8_t* records = data + RECORDS_OFFSET
    cdef Py_ssize_t left = size - RECORDS_OFFSET
    cdef int32_t count = 0
    cdef bint is_whole = False
    cdef Broken broken
    fill_row(data, 0, <int32_t>size, &batch)
    rows = <RecordRow*>malloc((left // MIN_RECORD_SIZE + 1) * sizeof(RecordRow))
    broken = check_records(&batch, records, left, rows, &count, &is_whole)
    if flags & COUNTS_RECORDS:
        batch.count = count
    if broken == NULL:
        broken = check_conversion(
            &batch, records, left, rows, flags & 1, flags & IS_RELATIVE != 0,
            INT64_MIN if flags & IS_RELATIVE else wrapping_add(batch.base_offset, first_offset),
            is_whole and count == batch.count,
        )
    free(rows)
    return broken


cdef Broken check_records(
    const BatchRow* batch, const uint8_t* data, Py_ssize_t size, RecordRow* rows, int32_t* count, bint* is_whole
) noexcept nogil:
    """Read records by both readers into `rows`, up to the first one that is damaged. is_whole: there is none."""
    cdef Cursor fast = Cursor(data, data + size, Status.OK)
    cdef Cursor careful = fast
    cdef RecordRow other
    cdef Failure failure
    cdef int status
    cdef const uint8_t* start
    cdef RecordRow* row
    cdef Broken broken
    while fast.pos < fast.end:
        row = &rows[count[0]]
        start = fast.pos
        status = read_record(&fast, batch.base_offset, batch.base_timestamp, row, &failure)
        if status != read_any_record(&careful, batch.base_offset, batch.base_timestamp, &other, &failure):
            return b"the status of the two readers"
        if not data <= careful.pos <= careful.end:
            return b"the position of the cursor"
        if status != Status.OK:
            return NULL
        if fast.pos != careful.pos or not is_same(row, &other) or row.headers != other.headers:
            return b"the rows of the two readers"
        if fast.pos != start + row.size or row.headers + row.headers_size != fast.pos or other.size != row.size:
            return b"the size of a record"
        broken = check_headers(row)
        if broken == NULL:
            broken = check_encoding(batch, row)
        if broken != NULL:
            return broken
        count[0] += 1
    is_whole[0] = True
    return NULL


cdef bint is_same(const RecordRow* row, const RecordRow* other) noexcept nogil:
    return (
        row.offset == other.offset
        and row.timestamp == other.timestamp
        and row.header_count == other.header_count
        and row.headers_size == other.headers_size
        and memcmp(row.headers, other.headers, row.headers_size) == 0
        and is_same_data(row, other)
    )


cdef bint is_same_data(const RecordRow* row, const RecordRow* other) noexcept nogil:
    return (
        row.key_size == other.key_size
        and row.value_size == other.value_size
        and (row.key == NULL) == (row.key_size < 0)
        and (row.value == NULL) == (row.value_size < 0)
        and (row.key_size <= 0 or memcmp(row.key, other.key, row.key_size) == 0)
        and (row.value_size <= 0 or memcmp(row.value, other.value, row.value_size) == 0)
    )


cdef Broken check_headers(const RecordRow* row) noexcept nogil:
    cdef Cursor cursor = Cursor(row.headers, row.headers + row.headers_size, Status.OK)
    cdef Header header
    cdef int32_t _
    for _ in range(row.header_count):
        if not read_header(&cursor, &header):
            return b"a header that was checked"
    return expect(bytes_left(&cursor) == 0, b"the size of the headers")


cdef Broken check_encoding(const BatchRow* batch, const RecordRow* row) noexcept nogil:
    """Write a record, and read it."""
    cdef int64_t offset_delta = wrapping_sub(row.offset, batch.base_offset)
    cdef int64_t timestamp_delta = wrapping_sub(row.timestamp, batch.base_timestamp)
    cdef int64_t body = record_body_size(row, offset_delta, timestamp_delta)
    cdef int64_t size = body + size_of_varlong(body)
    cdef uint8_t* written
    cdef RecordRow again
    cdef Failure failure
    cdef Cursor cursor
    cdef Broken broken = NULL
    if size > row.size:
        return b"the size of a written record"
    written = <uint8_t*>malloc(size)
    cursor = Cursor(written, written + size, Status.OK)
    if write_record(written, row, body, offset_delta, timestamp_delta) != cursor.end:
        broken = b"the end of a written record"
    elif read_record(&cursor, batch.base_offset, batch.base_timestamp, &again, &failure) != Status.OK:
        broken = b"the status of a written record"
    elif cursor.pos != cursor.end or not is_same(row, &again):
        broken = b"the row of a written record"
    free(written)
    return broken


cdef Broken check_conversion(
    const BatchRow* batch, const uint8_t* data, Py_ssize_t size, const RecordRow* rows, int to_magic,
    bint is_relative, int64_t first_offset, bint is_sound,
) noexcept nogil:
    """Convert a batch, and compare the messages with its records. is_sound: it must be possible."""
    cdef int64_t room = converted_records_size(batch, data, size, to_magic, first_offset)
    cdef Source source = Source(data, size, data + size, 0)
    cdef Messages messages
    cdef Failure failure
    cdef uint8_t* out = <uint8_t*>malloc(size * MESSAGE_OVERHEAD_V1 + COPY_SLACK if room < 0 else room + COPY_SLACK)
    cdef const uint8_t* end = convert_records(
        batch, &source, to_magic, first_offset, is_relative, out, &messages, &failure
    )
    cdef Broken broken = NULL
    if end == NULL and is_sound:
        broken = b"a conversion that fails"
    elif (end == NULL) != (room < 0):
        broken = b"the size of a conversion that fails"
    elif end != NULL and end != out + room:
        broken = b"the size of a conversion"
    elif end == NULL and not 0 <= failure.at <= size:
        broken = b"the position of a failure"
    elif end != NULL:
        broken = check_messages(batch, rows, out, end, to_magic, is_relative, first_offset, &messages)
    free(out)
    return broken


cdef Broken check_messages(
    const BatchRow* batch, const RecordRow* rows, const uint8_t* pos, const uint8_t* end, int to_magic,
    bint is_relative, int64_t first_offset, const Messages* messages,
) noexcept nogil:
    cdef const RecordRow* row
    cdef RecordRow message
    cdef Failure failure
    cdef bint is_log_append = batch.timestamp_type == LOG_APPEND_TIME
    cdef int64_t size, timestamp, base, count = 0, last_offset = -1
    cdef int64_t max_timestamp = batch.max_timestamp if is_log_append else NO_TIMESTAMP
    cdef int32_t i
    for i in range(batch.count):
        row = &rows[i]
        if row.offset < first_offset:
            continue
        count += 1
        last_offset = row.offset
        timestamp = batch.max_timestamp if is_log_append else row.timestamp
        max_timestamp = max(max_timestamp, timestamp)
        size = LOG_OVERHEAD + get_int32(pos + LENGTH_OFFSET) if end - pos >= MESSAGE_OVERHEAD_V0 else -1
        if size < MESSAGE_OVERHEAD_V0 + to_magic * MESSAGE_TIMESTAMP_LENGTH or size > end - pos:
            return b"the length of a message"
        if read_message(pos, size, to_magic, &message, &failure) != Status.OK:
            return b"the status of a message"
        base = rows[0].offset if is_relative else 0
        if message.offset != wrapping_sub(row.offset, base) or not is_same_data(&message, row):
            return b"the row of a message"
        if message.timestamp != (timestamp if to_magic == 1 else NO_TIMESTAMP):
            return b"the timestamp of a message"
        if pos[MAGIC_OFFSET] != to_magic or pos[MESSAGE_ATTRIBUTES_OFFSET] != (
            TIMESTAMP_TYPE_MASK if to_magic == 1 and is_log_append else 0
        ):
            return b"the header of a message"
        pos += size
    if messages.last_offset != last_offset or messages.max_timestamp != max_timestamp:
        return b"the end of the messages"
    return expect(pos == end and messages.count == count, b"the number of messages")
