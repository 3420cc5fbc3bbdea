# Converts the records of one v2 batch to messages of v1 or v0 while they are read, for the kernel that converts runs.

from libc.stdint cimport int32_t, int64_t, uint8_t, uintptr_t

from ..wire.bytes cimport Cursor, bytes_left, copy_short, prefetch, put_int32, unlikely, wrapping_sub
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow, RecordRow
from ..wire.status cimport Failure, Status, fail
from .encode cimport write_message_head
from .read cimport read_record

cdef enum:
    # How far ahead of the current record bytes are prefetched: values are copied faster than memory delivers them.
    PREFETCH_BYTES = 2048
    CACHE_LINE = 64


cdef struct Source:
    # The bytes of records, and the end of the memory that may be read after them.
    const uint8_t* data
    int64_t size
    const uint8_t* readable_end
    uintptr_t fetched            # the address up to which memory was prefetched


cdef struct Messages:
    # The messages made of one batch.
    int64_t count
    int64_t last_offset
    int64_t max_timestamp


cdef inline uint8_t* put_field(
    uint8_t* out, const uint8_t* data, int32_t size, const uint8_t* readable_end
) noexcept nogil:
    """Write the size of a key or value, -1 for null, and its bytes. Returns the end of what was written."""
    put_int32(out, size)
    out += KEY_SIZE_LENGTH
    if size <= 0:
        return out
    copy_short(out, data, size, readable_end)
    return out + size


cdef inline uintptr_t fetch_ahead(uintptr_t fetched, const uint8_t* pos) noexcept nogil:
    """Prefetch the bytes after `pos` into the cache; return the address up to which they are prefetched."""
    fetched = max(fetched, <uintptr_t>pos)
    while fetched < <uintptr_t>pos + PREFETCH_BYTES:
        prefetch(fetched)
        fetched += CACHE_LINE
    return fetched


cdef inline uint8_t* convert_records(
    const BatchRow* row, Source* source, int to_magic, int64_t first_offset, bint is_relative, uint8_t* out,
    Messages* messages, Failure* failure,
) noexcept nogil:
    """Write the records of a v2 batch as messages without CRCs; return their end, or NULL with `failure` set.

    With `is_relative` offsets count from that of the first record. Up to COPY_SLACK bytes after the messages are
    overwritten.
    """
    cdef RecordRow record
    cdef Cursor cursor
    cdef int32_t i
    cdef int64_t base = 0, count = 0, last_offset = -1
    cdef int64_t max_timestamp = NO_TIMESTAMP
    cdef const uint8_t* readable_end = source.readable_end
    cdef uintptr_t fetched = source.fetched
    cdef bint is_log_append = row.timestamp_type == LOG_APPEND_TIME
    cdef int attributes = TIMESTAMP_TYPE_MASK if to_magic == 1 and is_log_append else 0
    if unlikely(row.count < 0 or row.count > source.size // MIN_RECORD_SIZE):
        fail(failure, Status.RECORDS_COUNT, 0, source.size // MIN_RECORD_SIZE, row.count)
        return NULL
    cursor.pos = source.data
    cursor.end = source.data + source.size
    cursor.status = Status.OK
    for i in range(row.count):
        fetched = fetch_ahead(fetched, cursor.pos)
        if unlikely(
            read_record(&cursor, row.base_offset, row.base_timestamp, &record, failure) != Status.OK
        ):
            failure.at = cursor.pos - source.data
            return NULL
        if record.offset < first_offset:
            continue
        if is_log_append:
            record.timestamp = row.max_timestamp
        if is_relative and i == 0:
            base = record.offset
        if record.timestamp > max_timestamp:
            max_timestamp = record.timestamp
        last_offset = record.offset
        count += 1
        out = write_message_head(
            out, &record, wrapping_sub(record.offset, base), to_magic, attributes, record.timestamp
        )
        out = put_field(out, record.key, record.key_size, readable_end)
        out = put_field(out, record.value, record.value_size, readable_end)
    if unlikely(row.count > 0 and cursor.pos != cursor.end):
        fail(failure, Status.BYTES_LEFT_OVER, cursor.pos - source.data, 0, bytes_left(&cursor))
        return NULL
    source.fetched = fetched
    messages.count = count
    messages.last_offset = last_offset
    messages.max_timestamp = row.max_timestamp if is_log_append else max_timestamp
    return out


cdef inline int64_t converted_records_size(
    const BatchRow* row, const uint8_t* data, int64_t size, int to_magic, int64_t first_offset
) noexcept nogil:
    """Return how many bytes `convert_records` writes for the records of an uncompressed v2 batch; -1 if it fails."""
    cdef RecordRow record
    cdef Cursor cursor
    cdef Failure failure
    cdef int32_t _
    cdef int64_t total = 0, overhead = MESSAGE_OVERHEAD_V1 if to_magic == 1 else MESSAGE_OVERHEAD_V0
    if unlikely(row.count < 0 or row.count > size // MIN_RECORD_SIZE):
        return -1
    cursor.pos = data
    cursor.end = data + size
    cursor.status = Status.OK
    for _ in range(row.count):
        if unlikely(
            read_record(&cursor, row.base_offset, row.base_timestamp, &record, &failure) != Status.OK
        ):
            return -1
        if record.offset >= first_offset:
            total += overhead + max(record.key_size, 0) + max(record.value_size, 0)
    if unlikely(row.count > 0 and cursor.pos != cursor.end):
        return -1
    return total
