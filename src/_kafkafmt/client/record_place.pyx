"""The place of a record that a producer appended, and the fields that its acknowledgement needs.

One object is made for each record, and most are never read. So it has a few native fields only.
"""

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t

from ..wire.python_fields cimport size_of_bytes

cdef tuple NO_ARGUMENTS = ()


cdef class RecordPlace:
    """The record at `index` of a batch, which may be any object. Sizes of key and value are bytes, -1 for null."""

    def __init__(self, batch, Py_ssize_t index, int64_t timestamp, key, value):
        self.batch = batch
        self.index = index
        self.timestamp = timestamp
        self.key_size = size_of_bytes(key, "key")
        self.value_size = size_of_bytes(value, "value")


cdef RecordPlace new_place(type place_class):
    """Return an object of a subclass of RecordPlace whose fields are not set. `__init__` is not called."""
    return <RecordPlace?>(<PyTypeObject*>place_class).tp_new(place_class, <PyObject*>NO_ARGUMENTS, NULL)
