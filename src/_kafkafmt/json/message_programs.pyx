"""Kafka's messages as JSON, without an object for any field.

The description of a message in one version is compiled to a program (`kafkafmt.schemas.json_programs`): a structure is
a range of steps, and a step is a field. A program has no jumps. A step refers to a structure with a lower number only,
so the depth of the interpreter's recursion is that of the description. The bytes bound its loops.

The JSON is what Kafka's JSON converters write: tagged fields with their default are left out, and so are tagged fields
that the description lacks; a UUID is base64 of URLs, bytes are base64.
"""

import numpy as np

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.math cimport isinf, isnan
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport strtod
from libc.string cimport memcmp, memcpy, memset

from ..wire.bytes cimport unlikely
from ..wire.fields cimport (
    INT16_LENGTH, INT32_LENGTH, NULL_LENGTH, FieldReader, Span, begin_tagged_field, end_tagged_field,
    read_count, read_int16_field, read_int32_field, read_int64_field, read_span, read_tag_count, read_unsigned_field,
    refuse_field, skip_tagged_field, take_field,
)
from ..wire.status cimport Status
from .text cimport (
    TEXT_SLACK, UUID_BYTES, JsonText, has_room, put, put_base64, put_integer, put_string, put_text, put_uuid,
)

cdef enum:
    MAX_TAGGED = 16
    MAX_STRING_BYTES = 0x7FFF
    MAX_FLOAT_SIZE = 32
    EXACT_DIGITS = 17     # that identify any float64
    SEPARATOR_SIZE = 2

STEP_DTYPE = np.dtype([(name, "<i4") for name in (
    "kind", "is_array", "is_nullable", "struct", "least_bytes", "tag", "name_at", "name_size", "default_at",
    "default_size",
)])
STRUCT_DTYPE = np.dtype([(name, "<i4") for name in ("first", "count", "tagged", "is_flexible")])
assert STEP_DTYPE.itemsize == sizeof(FieldStep) and STRUCT_DTYPE.itemsize == sizeof(StructSteps)


cdef void put_float(JsonText* out, double value) noexcept nogil:
    """Write the fewest digits that give the same float64, as a JSON number; NaN and infinities as strings."""
    cdef char digits[MAX_FLOAT_SIZE]
    cdef int i, size = 0, precision
    cdef bint is_integer = True
    if isnan(value):
        put(out, b'"NaN"')
        return
    if isinf(value):
        put(out, b'"Infinity"' if value > 0 else b'"-Infinity"')
        return
    for precision in range(1, EXACT_DIGITS + 1):
        size = snprintf(digits, MAX_FLOAT_SIZE, b"%.*g", precision, value)
        if strtod(digits, NULL) == value:
            break
    if not has_room(out, size + 2):
        return
    for i in range(size):
        if digits[i] == c"," or digits[i] == c".":  # the locale decides
            digits[i] = c"."
        if digits[i] == c"." or digits[i] == c"e":
            is_integer = False
    memcpy(out.pos, digits, size)
    out.pos += size
    if is_integer:
        put(out, b".0")


cdef const uint8_t* taken(FieldReader* reader, const Span* span) noexcept nogil:
    return reader.start + span.position


cdef bint read_is_null(const FieldStep* step, FieldReader* reader) noexcept nogil:
    """Read what precedes a structure that can be null: a varint of 0 in a tagged field, else a negative byte."""
    cdef const uint8_t* at
    if step.tag != NO_TAG:
        return read_unsigned_field(reader) == 0
    at = take_field(reader, sizeof(int8_t))
    return at != NULL and <int8_t>at[0] < 0


@cython.final
@cython.no_gc
cdef class MessagePrograms:
    """Programs that write messages as JSON. A program is the number of a structure.

    steps, structs: arrays of STEP_DTYPE and STRUCT_DTYPE. texts: JSON fragments.

    Raises ValueError for a step that refers to a structure that is not before its own, or to a text or a step that does
    not exist.
    """

    def __init__(self, steps, structs, bytes texts not None):
        cdef Py_ssize_t number
        self._steps = steps
        self._structs = structs
        self._texts = texts + bytes(TEXT_SLACK)
        self.texts = <const uint8_t*>PyBytes_AS_STRING(self._texts)
        self.text_size = len(texts)
        self.struct_count = self._structs.shape[0]
        if self.struct_count:
            self.structs = &self._structs[0]
        if self._steps.shape[0]:
            self.steps = &self._steps[0]
        for number in range(self.struct_count):
            self.check(number)

    def __len__(self):
        return self.struct_count

    cdef int check(self, Py_ssize_t number) except -1:
        cdef const StructSteps* steps = &self.structs[number]
        cdef const FieldStep* step
        cdef Py_ssize_t i
        if (
            steps.first < 0 or steps.count < 0 or not 0 <= steps.tagged <= MAX_TAGGED
            or <int64_t>steps.first + steps.count + steps.tagged > self._steps.shape[0]
        ):
            raise ValueError(f"structure {number}: expected steps that exist, and {MAX_TAGGED} tagged fields at most")
        for i in range(steps.first, steps.first + steps.count + steps.tagged):
            step = &self.steps[i]
            if not BOOL <= step.kind <= STRUCT or step.least_bytes < 1:
                raise ValueError(f"step {i}: expected a kind of field, and 1 byte or more")
            if step.kind == STRUCT and not 0 <= step.struct < number:
                raise ValueError(f"step {i}: expected a structure before {number}, found {step.struct}")
            self.check_text(step.name_at, step.name_size)
            if step.name_size < SEPARATOR_SIZE:
                raise ValueError(f"step {i}: expected a name")
            if i >= steps.first + steps.count:
                self.check_text(step.default_at, step.default_size)
        return 0

    cdef int check_text(self, int32_t at, int32_t size) except -1:
        if at < 0 or size < 0 or size > self.text_size - at:
            raise ValueError(f"text at {at}: expected one within {self.text_size} bytes, found {size} bytes")
        return 0

    cdef void write(self, int32_t program, FieldReader* reader, JsonText* out) noexcept nogil:
        """Write the message that the reader is at. A failure is in the reader, and lack of room in `out`."""
        reader.is_flexible = self.structs[program].is_flexible
        self.write_struct(program, reader, out)

    cdef void write_struct(self, int32_t number, FieldReader* reader, JsonText* out) noexcept nogil:
        cdef const StructSteps* steps = &self.structs[number]
        cdef const FieldStep* step = self.steps + steps.first
        cdef int32_t _i, skipped = SEPARATOR_SIZE
        put(out, b"{")
        for _i in range(steps.count):
            put_text(out, self.texts + step.name_at + skipped, step.name_size - skipped)
            self.write_field(step, reader, out)
            skipped = 0
            step += 1
            if unlikely(reader.failure.status != Status.OK or out.is_full):
                return
        if steps.is_flexible:
            self.write_tagged(steps, reader, out)
        put(out, b"}")

    cdef void write_tagged(self, const StructSteps* steps, FieldReader* reader, JsonText* out) noexcept nogil:
        """Write the tagged fields in the order of the description. Of a tag that is repeated, the last field counts."""
        cdef const FieldStep* first = self.steps + steps.first + steps.count
        cdef const uint8_t* starts[MAX_TAGGED]
        cdef const uint8_t* ends[MAX_TAGGED]
        cdef const uint8_t* outer_end
        cdef uint8_t* before
        cdef int32_t _i, k
        cdef int64_t tag
        cdef bint is_known
        cdef int32_t count = read_tag_count(reader)
        if count == 0:
            return
        memset(starts, 0, sizeof(starts))
        for _i in range(count):
            tag = begin_tagged_field(reader, &outer_end)
            is_known = False
            for k in range(steps.tagged):
                if first[k].tag == tag:
                    is_known = True
                    if starts[k] != NULL:  # it is checked, and left out
                        before = out.pos
                        self.write_tag(&first[k], starts[k], ends[k], reader, out)
                        out.pos = before
                    starts[k] = reader.pos
                    ends[k] = reader.end
            out.left_out += not is_known
            skip_tagged_field(reader)
            end_tagged_field(reader, outer_end)
            if unlikely(reader.failure.status != Status.OK):
                return
        for k in range(steps.tagged):
            if starts[k] != NULL:
                self.write_tag(&first[k], starts[k], ends[k], reader, out)

    cdef void write_tag(
        self, const FieldStep* step, const uint8_t* at, const uint8_t* end, FieldReader* reader, JsonText* out
    ) noexcept nogil:
        """Write a tagged field from `at` to `end`, unless its value is the default. The reader stays where it is.

        A structure with tagged fields that are left out differs from its default.
        """
        cdef const uint8_t* outer_pos = reader.pos
        cdef const uint8_t* outer_end = reader.end
        cdef uint8_t* before = out.pos
        cdef uint8_t* value
        cdef int32_t skipped = 0
        cdef Py_ssize_t left_out = out.left_out
        if unlikely(reader.failure.status != Status.OK or out.is_full):
            return
        if (out.pos - 1)[0] == 0x7B:  # the first field of a structure follows `{`
            skipped = SEPARATOR_SIZE
        reader.pos = at
        reader.end = end
        put_text(out, self.texts + step.name_at + skipped, step.name_size - skipped)
        value = out.pos
        self.write_field(step, reader, out)
        end_tagged_field(reader, outer_end)
        if reader.failure.status == Status.OK:
            reader.pos = outer_pos
        if (
            out.left_out == left_out and out.pos - value == step.default_size
            and memcmp(value, self.texts + step.default_at, step.default_size) == 0
        ):
            out.pos = before

    cdef void write_field(self, const FieldStep* step, FieldReader* reader, JsonText* out) noexcept nogil:
        if step.is_array:
            self.write_array(step, reader, out)
        elif step.kind == STRUCT and step.is_nullable and read_is_null(step, reader):
            put(out, b"null")
        else:
            self.write_value(step, reader, out)

    cdef void write_array(self, const FieldStep* step, FieldReader* reader, JsonText* out) noexcept nogil:
        cdef int32_t i, count = read_count(reader, step.least_bytes, step.is_nullable)
        if count == NULL_LENGTH:
            put(out, b"null")
            return
        put(out, b"[")
        for i in range(count):
            if i > 0:
                put(out, b", ")
            self.write_value(step, reader, out)
            if unlikely(reader.failure.status != Status.OK or out.is_full):
                return
        put(out, b"]")

    cdef void write_value(self, const FieldStep* step, FieldReader* reader, JsonText* out) noexcept nogil:
        """Write a value that is no array: an element of one, or a field."""
        cdef bint is_nullable = step.is_nullable and not step.is_array
        cdef const uint8_t* at
        cdef Span span
        cdef int64_t bits
        cdef double number
        if step.kind == INT32:
            put_integer(out, read_int32_field(reader))
        elif step.kind == INT64:
            put_integer(out, read_int64_field(reader))
        elif step.kind == STRING:
            at = reader.pos
            span = read_span(reader, INT16_LENGTH, is_nullable)
            if span.size == NULL_LENGTH:
                put(out, b"null")
            elif unlikely(span.size > MAX_STRING_BYTES):
                refuse_field(reader, Status.FIELD_LENGTH, at, MAX_STRING_BYTES, span.size)
            elif unlikely(not put_string(out, taken(reader, &span), span.size)):
                refuse_field(reader, Status.FIELD_NOT_UTF8, taken(reader, &span), span.size, 0)
        elif step.kind == STRUCT:
            self.write_struct(step.struct, reader, out)
        elif step.kind == INT16:
            put_integer(out, read_int16_field(reader))
        elif step.kind == UINT16:
            put_integer(out, <uint16_t>read_int16_field(reader))
        elif step.kind == UINT32:
            put_integer(out, <uint32_t>read_int32_field(reader))
        elif step.kind == BYTES:
            span = read_span(reader, INT32_LENGTH, is_nullable)
            if span.size == NULL_LENGTH:
                put(out, b"null")
            else:
                put_base64(out, taken(reader, &span), span.size)
        elif step.kind == UUID:
            at = take_field(reader, UUID_BYTES)
            if at != NULL:
                put_uuid(out, at)
        elif step.kind == FLOAT64:
            bits = read_int64_field(reader)
            memcpy(&number, &bits, sizeof(number))
            put_float(out, number)
        else:
            at = take_field(reader, sizeof(int8_t))
            if at != NULL and step.kind == BOOL:
                put(out, b"true" if at[0] else b"false")
            elif at != NULL:
                put_integer(out, <int8_t>at[0])
