"""Keys and values of internal topics as JSON: what precedes a message in the bytes, then the message.

    {"type": 1, "name": "OffsetCommitKey", "data": {...}}             a key: an int16 type, then the message
    {"name": "OffsetCommitValue", "version": 3, "data": {...}}        a value: an int16 version, then the message
    {"type": 3, "name": "PartitionRecord", "version": 2, "data": ...} a framed value: varints of frame, type and version
    {"type": 99, "base64": "AGM..."}                                  a type or a version that is not known
    {"type": 1, "name": ..., "base64": ..., "error": "..."}           bytes that do not follow the schema

A value without a known type in its key has no name. A null key or value is null.
"""

import numpy as np

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int16_t, int32_t, uint8_t

from ..wire.bytes cimport likely, unlikely
from ..wire.fields cimport FieldReader, end_of_frame, read_int16_field, read_unsigned_field, reader_of, refuse_field
from ..wire.rows cimport RecordRow
from ..wire.status cimport Failure, Status
from .message_programs cimport MessagePrograms
from .text cimport TEXT_SLACK, JsonText, put, put_base64, put_integer, put_text

cdef enum:
    FRAME = 1            # the only version of frames

TYPE_DTYPE = np.dtype([(name, "<i4") for name in (
    "key_program", "key_name_at", "key_name_size", "value_name_at", "value_name_size", "first_version",
    "version_count", "first_program", "early_program", "version_is_field",
)])
assert TYPE_DTYPE.itemsize == sizeof(TypeRow)


cdef inline Described nothing_known() noexcept nogil:
    cdef Described message
    message.has_type = message.has_version = False
    message.type = NO_TYPE
    message.version = 0
    message.name = NULL
    message.name_size = 0
    message.program = message.early_program = NO_PROGRAM
    return message


@cython.final
@cython.no_gc
cdef class TopicRecords:
    """The record types of an internal topic, as programs.

    types: an array of TYPE_DTYPE; the number of a type is the number of its row. control_types: the same for the
    control records. names: JSON strings. is_framed: the value has the type, else the key has it.

    Raises ValueError for a row that refers to a program or to a name that does not exist.
    """

    def __init__(self, MessagePrograms programs not None, types, control_types, bytes names not None, bint is_framed):
        self.programs = programs
        self._types = types
        self._control_types = control_types
        self._names = names + bytes(TEXT_SLACK)
        self.names = <const uint8_t*>PyBytes_AS_STRING(self._names)
        self.is_framed = is_framed
        self.check(self._types)
        self.check(self._control_types)

    cdef int check(self, const TypeRow[::1] types) except -1:
        cdef Py_ssize_t i, size = len(self._names) - TEXT_SLACK, most = len(self.programs)
        cdef const TypeRow* row
        for i in range(types.shape[0]):
            row = &types[i]
            for at, count in ((row.key_name_at, row.key_name_size), (row.value_name_at, row.value_name_size)):
                if at < 0 or count < 0 or count > size - at:
                    raise ValueError(f"type {i}: expected a name within {size} bytes, found {count} bytes at {at}")
            for first, count in ((row.key_program, 1), (row.early_program, 1), (row.first_program, row.version_count)):
                if first != NO_PROGRAM and not (0 <= first and 0 <= count <= most - first):
                    raise ValueError(f"type {i}: expected programs within {most}, found {count} from {first} on")
        return 0

    cdef const TypeRow* known(self, const TypeRow[::1] types, int32_t number) noexcept nogil:
        """Return the row of a type, or NULL."""
        if number < 0 or number >= types.shape[0] or types[number].value_name_size == 0:
            return NULL
        return &types[number]

    cdef const TypeRow* type_of_key(self, const RecordRow* record, bint is_control) noexcept nogil:
        """Return the type that the key of a record has, or NULL: the value of a framed record has it."""
        cdef FieldReader reader = reader_of(record.key, max(record.key_size, 0))
        if is_control:
            read_int16_field(&reader)  # the version of the key
            return self.known(self._control_types, read_int16_field(&reader) if record.key_size >= 4 else NO_TYPE)
        if self.is_framed or record.key_size < 2:
            return NULL
        return self.known(self._types, read_int16_field(&reader))

    cdef void write_key(
        self, const RecordRow* record, bint is_control, const ErrorText* error, JsonText* out, Failure* failure
    ) noexcept nogil:
        """Write the key of a record, or fill in `failure`. error: why the key cannot be decoded, or no text."""
        cdef FieldReader reader = reader_of(record.key, max(record.key_size, 0))
        cdef Described message = nothing_known()
        cdef const TypeRow* row = NULL
        failure.status = Status.OK
        if record.key_size < 0:
            put(out, b"null")
            return
        if is_control:
            message.version = read_int16_field(&reader)
            message.has_version = reader.failure.status == Status.OK
        if is_control or not self.is_framed:
            message.type = read_int16_field(&reader)
            message.has_type = reader.failure.status == Status.OK
            row = self.type_of_key(record, is_control)
        if is_control and message.has_type:  # the type is the first field of the message
            reader.pos -= sizeof(int16_t)
        if row != NULL:
            message.name = self.names + row.key_name_at
            message.name_size = row.key_name_size
            message.program = row.key_program if message.version == 0 else NO_PROGRAM
        self.write_message(&message, &reader, error, out)
        failure[0] = reader.failure

    cdef void write_value(
        self, const RecordRow* record, bint is_control, const ErrorText* error, JsonText* out, Failure* failure
    ) noexcept nogil:
        """Write the value of a record, or fill in `failure`. error: why the value cannot be decoded, or no text."""
        cdef FieldReader reader = reader_of(record.value, max(record.value_size, 0))
        cdef Described message = nothing_known()
        cdef const TypeRow* row
        failure.status = Status.OK
        if record.value_size < 0:
            put(out, b"null")
            return
        if self.is_framed and not is_control:
            message.version = <int32_t>read_unsigned_field(&reader)
            if unlikely(message.version != FRAME and reader.failure.status == Status.OK):
                refuse_field(&reader, Status.FRAME_VERSION, reader.start, FRAME, message.version)
            message.type = <int32_t>read_unsigned_field(&reader)
            message.version = <int32_t>read_unsigned_field(&reader)
            message.has_type = reader.failure.status == Status.OK
            row = self.known(self._types, message.type)
        else:
            message.version = read_int16_field(&reader)
            row = self.type_of_key(record, is_control)
        message.has_version = reader.failure.status == Status.OK
        if row != NULL and message.has_version:
            self.describe_value(row, &reader, &message)
        self.write_message(&message, &reader, error, out)
        failure[0] = reader.failure

    cdef void describe_value(
        self, const TypeRow* row, FieldReader* reader, Described* message
    ) noexcept nogil:
        message.name = self.names + row.value_name_at
        message.name_size = row.value_name_size
        if message.version < row.first_version or message.version >= row.first_version + row.version_count:
            return
        message.program = row.first_program + message.version - row.first_version
        if message.version == row.first_version:
            message.early_program = row.early_program
        if row.version_is_field:
            reader.pos = reader.start

    cdef void write_message(
        self, const Described* message, FieldReader* reader, const ErrorText* error, JsonText* out
    ) noexcept nogil:
        """Write the object of a key or value. If the bytes follow an early layout only, they are written as such."""
        cdef FieldReader begin
        cdef Failure failure
        cdef uint8_t* before
        put(out, b"{")
        if message.has_type:
            put(out, b'"type": ')
            put_integer(out, message.type)
            put(out, b", ")
        if message.name_size > 0:
            put(out, b'"name": ')
            put_text(out, message.name, message.name_size)
            put(out, b", ")
        if message.has_version:
            put(out, b'"version": ')
            put_integer(out, message.version)
            put(out, b", ")
        if unlikely(error.text != NULL or message.program == NO_PROGRAM):
            put(out, b'"base64": ')
            put_base64(out, reader.start, reader.end - reader.start)
            if error.text != NULL:
                put(out, b', "error": ')
                put_text(out, error.text, error.size)
            put(out, b"}")
            return
        put(out, b'"data": ')
        begin = reader[0]
        before = out.pos
        self.programs.write(message.program, reader, out)
        end_of_frame(reader)
        if unlikely(reader.failure.status != Status.OK and message.early_program != NO_PROGRAM and not out.is_full):
            failure = reader.failure
            reader[0] = begin
            out.pos = before
            self.programs.write(message.early_program, reader, out)
            end_of_frame(reader)
            if reader.failure.status != Status.OK:
                reader.failure = failure
        if likely(not out.is_full):
            put(out, b"}")
