# Read the fields of a record that a Python caller passes: numbers, and keys and values in any kind of buffer.
# All functions here may run Python code of other objects.

from cpython.buffer cimport PyBUF_SIMPLE, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.number cimport PyNumber_Index
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

from .varint cimport write_varlong

cdef enum:
    MAX_VARINT_SIZE = 5
    # The length of a Py_buffer that was not acquired.
    NOT_HELD = -1


cdef inline int64_t as_int64(object number) except? -1:
    """Convert an int, or an object with `__index__`. Raises TypeError for others, such as floats."""
    return <int64_t>number if PyLong_CheckExact(number) else <int64_t>PyNumber_Index(number)


cdef inline int64_t as_milliseconds(object timestamp, object convert) except? -1:
    """Convert a timestamp to milliseconds. convert: `types.milliseconds`, which is not called for an int."""
    return <int64_t>timestamp if PyLong_CheckExact(timestamp) else <int64_t>convert(timestamp)


cdef inline int32_t held_bytes(
    object source, const uint8_t** data, Py_buffer* view, str name
) except? -1:
    """Set `data` to the bytes of a key or value, and return their size; -1 for None.

    The caller must release `view` if its length is no longer NOT_HELD. Raises TypeError for an object that is not a
    buffer, and OverflowError for 2 GiB or more; `name` is for the message.
    """
    if source is None:
        return -1
    if PyBytes_CheckExact(source):
        data[0] = <const uint8_t*>PyBytes_AS_STRING(source)
        return checked_size(PyBytes_GET_SIZE(source))
    if not PyObject_CheckBuffer(source):
        raise TypeError(f"{name}: expected bytes, another buffer or None, found {type(source).__name__}")
    PyObject_GetBuffer(source, view, PyBUF_SIMPLE)
    data[0] = <const uint8_t*>view.buf
    return checked_size(view.len)


cdef inline int32_t size_of_bytes(object source, str name) except? -1:
    """Return the size of a key or value in bytes, -1 for None. Raises as `held_bytes` does."""
    if source is None:
        return -1
    if not PyObject_CheckBuffer(source):
        raise TypeError(f"{name}: expected bytes, another buffer or None, found {type(source).__name__}")
    return checked_size(PyBytes_GET_SIZE(source) if PyBytes_CheckExact(source) else memoryview(source).nbytes)


cdef inline int32_t checked_size(Py_ssize_t size) except -1:
    if size > INT32_MAX:
        raise OverflowError(f"{size} bytes do not fit into a record")
    return <int32_t>size


cdef inline int append_sized(bytearray out, data) except -1:
    """Append the size of a header's key or value, and its bytes. None is null."""
    cdef uint8_t varint[MAX_VARINT_SIZE]
    cdef int32_t size = -1 if data is None else checked_size(len(data))
    if size > INT32_MAX - MAX_VARINT_SIZE - len(out):
        raise OverflowError("headers of 2 GiB or more")
    out += varint[: write_varlong(varint, size) - varint]
    if size > 0:
        out += data
    return 0
