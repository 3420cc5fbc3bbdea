# Keys and values of the records of an internal topic as JSON objects.

from libc.stdint cimport int32_t, uint8_t

from ..wire.fields cimport FieldReader
from ..wire.rows cimport RecordRow
from ..wire.status cimport Failure
from .message_programs cimport MessagePrograms
from .text cimport JsonText

cdef enum:
    NO_PROGRAM = -1
    NO_TYPE = -1

cdef packed struct TypeRow:
    int32_t key_program
    int32_t key_name_at       # in the names: a JSON string; a size of 0: there is no such type
    int32_t key_name_size
    int32_t value_name_at
    int32_t value_name_size
    int32_t first_version     # of the value; the programs of its versions follow each other
    int32_t version_count
    int32_t first_program
    int32_t early_program     # of version `first_version` in an early layout, or NO_PROGRAM
    int32_t version_is_field  # of control records: the version is the first field of the value

cdef struct Described:
    # What precedes a message, and the programs that write it.
    bint has_type
    bint has_version
    int32_t type
    int32_t version
    const uint8_t* name
    int32_t name_size         # 0: not known
    int32_t program           # NO_PROGRAM: not known
    int32_t early_program

cdef struct ErrorText:
    const uint8_t* text       # a JSON string, or NULL
    Py_ssize_t size


cdef class TopicRecords:
    cdef MessagePrograms programs
    cdef const TypeRow[::1] _types
    cdef const TypeRow[::1] _control_types
    cdef object _names
    cdef const uint8_t* names
    cdef bint is_framed
    cdef int check(self, const TypeRow[::1] types) except -1
    cdef void write_key(
        self, const RecordRow* record, bint is_control, const ErrorText* error, JsonText* out, Failure* failure
    ) noexcept nogil
    cdef void write_value(
        self, const RecordRow* record, bint is_control, const ErrorText* error, JsonText* out, Failure* failure
    ) noexcept nogil
    cdef const TypeRow* type_of_key(self, const RecordRow* record, bint is_control) noexcept nogil
    cdef const TypeRow* known(self, const TypeRow[::1] types, int32_t number) noexcept nogil
    cdef void describe_value(
        self, const TypeRow* row, FieldReader* reader, Described* message
    ) noexcept nogil
    cdef void write_message(
        self, const Described* message, FieldReader* reader, const ErrorText* error, JsonText* out
    ) noexcept nogil
