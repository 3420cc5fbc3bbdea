# Kafka's messages as JSON: an interpreter of programs that were compiled from the descriptions of the messages.

from libc.stdint cimport int32_t, uint8_t

from ..wire.fields cimport FieldReader
from .text cimport JsonText

cpdef enum FieldKind:
    BOOL = 0
    INT8 = 1
    INT16 = 2
    UINT16 = 3
    INT32 = 4
    UINT32 = 5
    INT64 = 6
    FLOAT64 = 7
    UUID = 8
    STRING = 9
    BYTES = 10
    STRUCT = 11

cdef enum:
    NO_TAG = -1

cdef packed struct FieldStep:
    int32_t kind
    int32_t is_array
    int32_t is_nullable
    int32_t struct            # the number of the structure; of the kind STRUCT only
    int32_t least_bytes       # of an element of an array
    int32_t tag               # NO_TAG: the field has a place
    int32_t name_at           # in the texts: `, "name": `
    int32_t name_size
    int32_t default_at        # in the texts: the JSON of the default of a tagged field, which is left out
    int32_t default_size

cdef packed struct StructSteps:
    int32_t first             # the number of its first step
    int32_t count             # of the fields with a place
    int32_t tagged            # of the tagged fields, which follow
    int32_t is_flexible


cdef class MessagePrograms:
    cdef const FieldStep[::1] _steps
    cdef const StructSteps[::1] _structs
    cdef object _texts
    cdef const FieldStep* steps
    cdef const StructSteps* structs
    cdef const uint8_t* texts
    cdef Py_ssize_t struct_count
    cdef Py_ssize_t text_size
    cdef void write(self, int32_t program, FieldReader* reader, JsonText* out) noexcept nogil
    cdef void write_struct(self, int32_t number, FieldReader* reader, JsonText* out) noexcept nogil
    cdef void write_tagged(self, const StructSteps* steps, FieldReader* reader, JsonText* out) noexcept nogil
    cdef void write_tag(
        self, const FieldStep* step, const uint8_t* at, const uint8_t* end, FieldReader* reader, JsonText* out
    ) noexcept nogil
    cdef void write_field(self, const FieldStep* step, FieldReader* reader, JsonText* out) noexcept nogil
    cdef void write_array(self, const FieldStep* step, FieldReader* reader, JsonText* out) noexcept nogil
    cdef void write_value(self, const FieldStep* step, FieldReader* reader, JsonText* out) noexcept nogil
    cdef int check(self, Py_ssize_t number) except -1
    cdef int check_text(self, int32_t at, int32_t size) except -1
