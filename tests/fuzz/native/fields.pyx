"""The checks of `fuzz.kernel_fields`, whose module documents them."""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from checks cimport Broken, expect

from _kafkafmt.wire.fields cimport (
    INT16_LENGTH, INT32_LENGTH, FieldReader, FieldWriter, LengthWidth, Span, read_count, read_int16_field,
    read_int32_field, read_int64_field, read_span, read_topic_id, reader_of, skip_tagged_fields, write_count,
    write_field_bytes, write_int16_field, write_int32_field, write_int64_field, write_length, write_no_tags,
)
from _kafkafmt.wire.status cimport Status

cdef enum:
    OPTIONS = 2
    MAX_FIELDS = 32
    MIN_ELEMENT_BYTES = 3

cdef enum Kind:
    INT16
    INT32
    INT64
    STRING
    NULLABLE_STRING
    BYTES
    NULLABLE_BYTES
    TOPIC_ID
    COUNT
    NULLABLE_COUNT
    TAGS
    KINDS                     # how many there are

cdef struct Field:
    Kind kind
    int64_t number            # or a count
    Span span


def check(bytes given not None):
    cdef const uint8_t* data = given
    cdef Py_ssize_t count, size = len(given) - OPTIONS
    cdef uint8_t* frame
    cdef Field[MAX_FIELDS] fields
    cdef Py_ssize_t i
    cdef bint is_flexible
    cdef Broken broken
    if size < 0:
        return
    is_flexible = data[0] & 1
    count = min(<Py_ssize_t>(data[1] % (MAX_FIELDS + 1)), size)
    size -= count
    for i in range(count):
        fields[i].kind = <Kind>(data[OPTIONS + i] % KINDS)
    with nogil:
        frame = <uint8_t*>malloc(size)  # so that ASan knows its end
        if size:
            memcpy(frame, &data[OPTIONS + count], size)
        broken = check_fields(frame, size, fields, count, is_flexible)
        free(frame)
    assert broken == NULL, broken.decode()


cdef Broken check_fields(
    const uint8_t* frame, Py_ssize_t size, Field* fields, Py_ssize_t count, bint is_flexible
) noexcept nogil:
    """Read the fields of a frame, write them, and read them again."""
    cdef FieldReader reader = reader_of(frame, size)
    cdef FieldReader again
    cdef FieldWriter writer
    cdef Field other
    cdef uint8_t* written
    cdef Py_ssize_t i, written_size
    cdef Broken broken = NULL
    reader.is_flexible = is_flexible
    for i in range(count):
        read_field(&reader, &fields[i])
        if not frame <= reader.pos <= reader.end or reader.end != frame + size:
            return b"the position of the reader"
        if reader.failure.status != Status.OK and (
            reader.pos != reader.end or fields[i].number != 0 or fields[i].span.size != 0
        ):
            return b"a read that failed"
    if reader.failure.status != Status.OK:
        return expect(0 <= reader.failure.at <= size, b"the position of a failure")
    written = <uint8_t*>calloc(size, 1)  # no field takes more bytes than were read
    writer = FieldWriter(written, is_flexible)
    for i in range(count):
        write_field(&writer, &fields[i], frame)
    written_size = writer.pos - written
    if written_size > reader.pos - frame:
        broken = b"the size of written fields"
    elif not is_flexible and (written_size != reader.pos - frame or memcmp(written, frame, written_size) != 0):
        broken = b"the bytes of written fields"
    again = reader_of(written, size)  # not only the fields: a count is compared with the bytes that are left
    again.is_flexible = is_flexible
    for i in range(count):
        other.kind = fields[i].kind
        read_field(&again, &other)
        if broken == NULL and not is_same(&other, written, &fields[i], frame):
            broken = b"a field that was written"
    if broken == NULL and (again.failure.status != Status.OK or again.pos - written != written_size):
        broken = b"the end of written fields"
    free(written)
    return broken


cdef void read_field(FieldReader* reader, Field* field) noexcept nogil:
    field.number = 0
    field.span = Span(0, 0)
    if field.kind == INT16:
        field.number = read_int16_field(reader)
    elif field.kind == INT32:
        field.number = read_int32_field(reader)
    elif field.kind == INT64:
        field.number = read_int64_field(reader)
    elif field.kind == TOPIC_ID:
        field.span = read_topic_id(reader)
    elif field.kind == COUNT or field.kind == NULLABLE_COUNT:
        # The elements are not there: a count that is too large for what follows is refused.
        field.number = read_count(reader, MIN_ELEMENT_BYTES, field.kind == NULLABLE_COUNT)
    elif field.kind == TAGS:
        skip_tagged_fields(reader)
    else:
        field.span = read_span(
            reader, width_of(field.kind), field.kind == NULLABLE_STRING or field.kind == NULLABLE_BYTES
        )


cdef LengthWidth width_of(Kind kind) noexcept nogil:
    return INT16_LENGTH if kind == STRING or kind == NULLABLE_STRING else INT32_LENGTH


cdef void write_field(FieldWriter* writer, const Field* field, const uint8_t* frame) noexcept nogil:
    if field.kind == INT16:
        write_int16_field(writer, field.number)
    elif field.kind == INT32:
        write_int32_field(writer, field.number)
    elif field.kind == INT64:
        write_int64_field(writer, field.number)
    elif field.kind == TOPIC_ID:
        write_field_bytes(writer, frame + field.span.position, field.span.size)
    elif field.kind == COUNT or field.kind == NULLABLE_COUNT:
        write_count(writer, field.number)
    elif field.kind == TAGS:
        write_no_tags(writer)
    else:
        write_length(writer, width_of(field.kind), field.span.size)
        if field.span.size > 0:
            write_field_bytes(writer, frame + field.span.position, field.span.size)


cdef bint is_same(
    const Field* field, const uint8_t* frame, const Field* other, const uint8_t* other_frame
) noexcept nogil:
    return (
        field.number == other.number
        and field.span.size == other.span.size
        and (
            field.span.size <= 0
            or memcmp(frame + field.span.position, other_frame + other.span.position, field.span.size) == 0
        )
    )
