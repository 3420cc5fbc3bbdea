# The fields of Kafka's requests and responses: a bounded reader and a writer.
#
# Versions that are flexible (KIP-482) have compact strings and arrays, whose lengths are varints of length + 1, and
# tagged fields at the end of each structure. A failed read returns zero. The first one fills in the failure and moves
# to the end, so that all later reads fail, too. So a caller checks `failure.status` at the end, not after each field.

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from .bytes cimport Cursor, get_int16, get_int32, get_int64, put_int16, put_int32, put_int64, unlikely
from .status cimport Failure, Status, fail
from .varint cimport read_unsigned, write_unsigned

cdef enum:
    FRAME_SIZE_BYTES = 4
    TOPIC_ID_BYTES = 16
    MAX_UNSIGNED_VARINT_BYTES = 5
    # The most bytes of a length or a count, and of the section of tagged fields if it is empty.
    MAX_LENGTH_BYTES = MAX_UNSIGNED_VARINT_BYTES
    EMPTY_TAGS_BYTES = 1
    NULL_LENGTH = -1

cdef enum LengthWidth:
    INT16_LENGTH = 2    # of a string
    INT32_LENGTH = 4    # of bytes, records, and the count of an array

cdef packed struct Span:
    int64_t position    # in the frame
    int32_t size        # NULL_LENGTH: null


cdef struct FieldReader:
    const uint8_t* start
    const uint8_t* pos
    const uint8_t* end
    bint is_flexible
    Failure failure     # of the first read that failed, with the position in the frame; status OK if none did


cdef inline FieldReader reader_of(const uint8_t* start, Py_ssize_t size) noexcept nogil:
    cdef FieldReader reader
    reader.start = reader.pos = start
    reader.end = start + size
    reader.is_flexible = False
    reader.failure.batch = 0
    fail(&reader.failure, Status.OK, 0, 0, 0)
    return reader


cdef inline Py_ssize_t field_bytes_left(const FieldReader* reader) noexcept nogil:
    return reader.end - reader.pos


cdef inline void refuse_field(
    FieldReader* reader, int status, const uint8_t* at, int64_t expected, int64_t found
) noexcept nogil:
    if reader.failure.status == Status.OK:
        fail(&reader.failure, status, at - reader.start, expected, found)
    reader.pos = reader.end


cdef inline const uint8_t* take_field(FieldReader* reader, Py_ssize_t size) noexcept nogil:
    """Return the next `size` bytes, or NULL if there are fewer. `size` is a constant or was checked."""
    cdef const uint8_t* at = reader.pos
    if unlikely(size > reader.end - at):
        refuse_field(reader, Status.FIELD_ENDS_EARLY, at, size, reader.end - at)
        return NULL
    reader.pos = at + size
    return at


cdef inline int16_t read_int16_field(FieldReader* reader) noexcept nogil:
    cdef const uint8_t* at = take_field(reader, sizeof(int16_t))
    return 0 if at == NULL else get_int16(at)


cdef inline int32_t read_int32_field(FieldReader* reader) noexcept nogil:
    cdef const uint8_t* at = take_field(reader, sizeof(int32_t))
    return 0 if at == NULL else get_int32(at)


cdef inline int64_t read_int64_field(FieldReader* reader) noexcept nogil:
    cdef const uint8_t* at = take_field(reader, sizeof(int64_t))
    return 0 if at == NULL else get_int64(at)


cdef inline uint32_t read_unsigned_field(FieldReader* reader) noexcept nogil:
    cdef Cursor cursor = Cursor(reader.pos, reader.end, Status.OK)
    cdef uint32_t value = read_unsigned(&cursor)
    if unlikely(cursor.status != Status.OK):
        if cursor.status == Status.ENDS_EARLY:
            refuse_field(reader, Status.FIELD_ENDS_EARLY, reader.end, 1, 0)
        else:
            refuse_field(reader, Status.VARINT_TOO_LONG, reader.pos, 0, 0)
        return 0
    reader.pos = cursor.pos
    return value


cdef inline int64_t _read_length(FieldReader* reader, LengthWidth width) noexcept nogil:
    if reader.is_flexible:
        return <int64_t>read_unsigned_field(reader) - 1
    if width == INT16_LENGTH:
        return read_int16_field(reader)
    return read_int32_field(reader)


cdef inline Span read_span(FieldReader* reader, LengthWidth width, bint is_nullable) noexcept nogil:
    """Read a string or bytes: where they are, not what. Null only if `is_nullable`."""
    cdef Span span = Span(0, 0)
    cdef const uint8_t* at = reader.pos
    cdef int64_t size = _read_length(reader, width)
    if unlikely(reader.failure.status != Status.OK):
        return span
    span.position = reader.pos - reader.start
    if size == NULL_LENGTH and is_nullable:
        span.size = NULL_LENGTH
    elif unlikely(size < 0 or size > field_bytes_left(reader)):
        refuse_field(reader, Status.FIELD_LENGTH, at, field_bytes_left(reader), size)
    else:
        reader.pos += size
        span.size = <int32_t>size
    return span


cdef inline Span read_topic_id(FieldReader* reader) noexcept nogil:
    cdef Span span = Span(reader.pos - reader.start, 0)
    if take_field(reader, TOPIC_ID_BYTES) != NULL:
        span.size = TOPIC_ID_BYTES
    return span


cdef inline int32_t read_count(FieldReader* reader, Py_ssize_t least_bytes, bint is_nullable) noexcept nogil:
    """Read the count of an array whose elements take `least_bytes` or more: no more than the bytes left can hold."""
    cdef const uint8_t* at = reader.pos
    cdef int64_t count = _read_length(reader, INT32_LENGTH)
    cdef int64_t most
    if unlikely(reader.failure.status != Status.OK):
        return 0
    if count == NULL_LENGTH and is_nullable:
        return NULL_LENGTH
    most = field_bytes_left(reader) // least_bytes
    if unlikely(count < 0 or count > most):
        refuse_field(reader, Status.FIELD_COUNT, at, most, count)
        return 0
    return <int32_t>count


cdef inline int32_t read_tag_count(FieldReader* reader) noexcept nogil:
    """Read how many tagged fields follow: 0 in versions that have none. A tag and a size take two bytes or more."""
    cdef const uint8_t* at = reader.pos
    cdef int64_t count, most
    if not reader.is_flexible:
        return 0
    count = read_unsigned_field(reader)
    most = field_bytes_left(reader) // 2
    if unlikely(count > most):
        refuse_field(reader, Status.FIELD_COUNT, at, most, count)
        return 0
    return <int32_t>count


cdef inline int64_t begin_tagged_field(FieldReader* reader, const uint8_t** outer_end) noexcept nogil:
    """Read the tag and the size of a tagged field, and let the reader end with the field. Returns the tag."""
    cdef uint32_t tag = read_unsigned_field(reader)
    cdef const uint8_t* at = reader.pos
    cdef int64_t size = read_unsigned_field(reader)
    outer_end[0] = reader.end
    if unlikely(size > field_bytes_left(reader)):
        refuse_field(reader, Status.FIELD_LENGTH, at, field_bytes_left(reader), size)
    elif reader.failure.status == Status.OK:
        reader.end = reader.pos + size
    return tag


cdef inline void end_tagged_field(FieldReader* reader, const uint8_t* outer_end) noexcept nogil:
    """Continue after a tagged field. The caller has read all of it, or the field is refused."""
    if unlikely(reader.pos != reader.end):
        refuse_field(reader, Status.FIELD_BYTES_LEFT, reader.pos, 0, field_bytes_left(reader))
    reader.end = outer_end
    if unlikely(reader.failure.status != Status.OK):
        reader.pos = outer_end


cdef inline void skip_tagged_field(FieldReader* reader) noexcept nogil:
    """Skip the field that `begin_tagged_field` began."""
    reader.pos = reader.end


cdef inline void skip_tagged_fields(FieldReader* reader) noexcept nogil:
    cdef int32_t _i
    cdef const uint8_t* outer_end
    for _i in range(read_tag_count(reader)):
        begin_tagged_field(reader, &outer_end)
        skip_tagged_field(reader)
        end_tagged_field(reader, outer_end)


cdef inline void end_of_frame(FieldReader* reader) noexcept nogil:
    if unlikely(reader.pos != reader.end):
        refuse_field(reader, Status.FIELD_BYTES_LEFT, reader.pos, 0, field_bytes_left(reader))


# The memory of a writer is sized by its caller, and its values are checked by its caller.

cdef struct FieldWriter:
    uint8_t* pos
    bint is_flexible


cdef inline void write_int8_field(FieldWriter* writer, int8_t value) noexcept nogil:
    writer.pos[0] = <uint8_t>value
    writer.pos += sizeof(int8_t)


cdef inline void write_int16_field(FieldWriter* writer, int16_t value) noexcept nogil:
    put_int16(writer.pos, value)
    writer.pos += sizeof(int16_t)


cdef inline void write_int32_field(FieldWriter* writer, int32_t value) noexcept nogil:
    put_int32(writer.pos, value)
    writer.pos += sizeof(int32_t)


cdef inline void write_int64_field(FieldWriter* writer, int64_t value) noexcept nogil:
    put_int64(writer.pos, value)
    writer.pos += sizeof(int64_t)


cdef inline void write_length(FieldWriter* writer, LengthWidth width, int32_t length) noexcept nogil:
    if writer.is_flexible:
        writer.pos = write_unsigned(writer.pos, <uint64_t>(<int64_t>length + 1))
    elif width == INT16_LENGTH:
        write_int16_field(writer, <int16_t>length)
    else:
        write_int32_field(writer, length)


cdef inline void write_count(FieldWriter* writer, int32_t count) noexcept nogil:
    write_length(writer, INT32_LENGTH, count)


cdef inline void write_field_bytes(FieldWriter* writer, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    memcpy(writer.pos, data, size)
    writer.pos += size


cdef inline void write_string(FieldWriter* writer, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """data: NULL for null."""
    write_length(writer, INT16_LENGTH, NULL_LENGTH if data == NULL else <int32_t>size)
    if data != NULL:
        write_field_bytes(writer, data, size)


cdef inline void write_no_tags(FieldWriter* writer) noexcept nogil:
    if writer.is_flexible:
        writer.pos[0] = 0
        writer.pos += EMPTY_TAGS_BYTES
