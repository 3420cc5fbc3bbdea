# Writes one record or message, for the kernels that encode rows and those that convert while they read; and seals and
# wraps whole batches. The caller must provide enough memory: see `record_body_size` and `message_size`.

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from ..wire.bytes cimport put_int32, put_int64
from ..wire.layout cimport *
from ..wire.rows cimport BatchRow, RecordRow
from ..wire.varint cimport size_of_varlong, write_varlong


cdef inline int64_t record_fields_size(const RecordRow* row) noexcept nogil:
    """Return the bytes of key, value and headers in a v2 record, including their sizes and the header count."""
    return (
        size_of_varlong(row.key_size)
        + max(row.key_size, 0)
        + size_of_varlong(row.value_size)
        + max(row.value_size, 0)
        + size_of_varlong(row.header_count)
        + row.headers_size
    )


cdef inline int64_t record_body_size(
    const RecordRow* row, int64_t offset_delta, int64_t timestamp_delta
) noexcept nogil:
    """Return the value of the length field of a v2 record: the bytes after that field."""
    return 1 + size_of_varlong(timestamp_delta) + size_of_varlong(offset_delta) + record_fields_size(row)


cdef inline uint8_t* write_record(
    uint8_t* out, const RecordRow* row, int64_t body_size, int64_t offset_delta, int64_t timestamp_delta
) noexcept nogil:
    """Write a v2 record; return its end. body_size: the result of `record_body_size` for the same deltas."""
    out = write_varlong(out, body_size)
    out[0] = 0
    out = write_varlong(out + 1, timestamp_delta)
    out = write_varlong(out, offset_delta)
    out = write_varlong(out, row.key_size)
    if row.key_size > 0:
        memcpy(out, row.key, row.key_size)
        out += row.key_size
    out = write_varlong(out, row.value_size)
    if row.value_size > 0:
        memcpy(out, row.value, row.value_size)
        out += row.value_size
    out = write_varlong(out, row.header_count)
    if row.headers_size > 0:
        memcpy(out, row.headers, row.headers_size)
        out += row.headers_size
    return out


cdef inline int64_t message_size(const RecordRow* row, int magic) noexcept nogil:
    """Return the bytes of a v0 or v1 message, including the log overhead."""
    return (
        (MESSAGE_OVERHEAD_V1 if magic == 1 else MESSAGE_OVERHEAD_V0)
        + max(row.key_size, 0)
        + max(row.value_size, 0)
    )


cdef inline uint8_t* write_message_head(
    uint8_t* out, const RecordRow* row, int64_t offset, int magic, int attributes, int64_t timestamp
) noexcept nogil:
    """Write the fields of a message before its key size, except the CRC, which `seal_messages` writes."""
    put_int64(out + BASE_OFFSET_OFFSET, offset)
    put_int32(out + LENGTH_OFFSET, <int32_t>(message_size(row, magic) - LOG_OVERHEAD))
    out[MESSAGE_MAGIC_OFFSET] = <uint8_t>magic
    out[MESSAGE_ATTRIBUTES_OFFSET] = <uint8_t>attributes
    if magic == 1:
        put_int64(out + MESSAGE_TIMESTAMP_OFFSET, timestamp)
        return out + MESSAGE_KEY_OFFSET_V1
    return out + MESSAGE_KEY_OFFSET_V0


cdef inline uint8_t* write_message(
    uint8_t* out, const RecordRow* row, int64_t offset, int magic, int attributes, int64_t timestamp
) noexcept nogil:
    """Write a v0 or v1 message, except its CRC, which `seal_messages` writes. Returns its end."""
    out = write_message_head(out, row, offset, magic, attributes, timestamp)
    put_int32(out, row.key_size)
    out += KEY_SIZE_LENGTH
    if row.key_size > 0:
        memcpy(out, row.key, row.key_size)
        out += row.key_size
    put_int32(out, row.value_size)
    out += VALUE_SIZE_LENGTH
    if row.value_size > 0:
        memcpy(out, row.value, row.value_size)
        out += row.value_size
    return out


cdef int seal(uint8_t* at, Py_ssize_t size, const BatchRow* row) except -1
cdef object sealed(const uint8_t* records, Py_ssize_t records_size, const BatchRow* row, bint is_writable)
cdef bytes wrap(object payload, const BatchRow* row)
cdef int check_range(str name, int64_t value, int64_t least, int64_t most) except -1
cdef int check_producer(
    int64_t producer_id, int64_t producer_epoch, int64_t base_sequence, bint is_transactional, bint is_control
) except -1
cdef void put_crc(uint8_t* at, Py_ssize_t size) noexcept nogil
